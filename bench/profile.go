package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
)

// profile starts to fetch a profile of the relay, if profiles are wanted, and returns what
// waits for it. of is its path and query.
func (b *bench) profile(name, of string) (wait func()) {
	if b.profiles == "" || !b.contender.product {
		return func() {}
	}
	var fetch sync.WaitGroup
	fetch.Go(func() {
		if err := b.process.listening(b.admin, patience); err != nil {
			fmt.Fprintln(os.Stderr, "bench: profile:", err)
			return
		}
		path := filepath.Join(b.profiles, b.scenario.Name+"."+b.contender.name+"."+name)
		if err := download("http://"+b.admin+"/debug/pprof/"+of, path); err != nil {
			fmt.Fprintln(os.Stderr, "bench: profile:", err)
		}
	})
	return fetch.Wait
}

func download(url, path string) error {
	resp, err := http.Get(url) // it is the relay's own address
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}
