package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"meshrelay/admin"
	"meshrelay/internal/testing/await"
)

// fromFormat1 copies a state directory of format 1 and a config file to a directory, and returns them with the admin
// address. The config has all upstreams of the state; none of them answers.
func fromFormat1(t *testing.T) (file, stateDir, address string) {
	t.Helper()
	dir, ports := t.TempDir(), freePorts(t, 2)
	text, err := os.ReadFile("testdata/format-1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("127.0.0.1:15010"), fmt.Append(nil, "127.0.0.1:", ports[0]), 1)
	text = bytes.Replace(text, []byte("127.0.0.1:15014"), fmt.Append(nil, "127.0.0.1:", ports[1]), 1)
	file, stateDir = filepath.Join(dir, "relay.yaml"), filepath.Join(dir, "state")
	if err := os.CopyFS(stateDir, os.DirFS("../../state/local/testdata/1")); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{file: text, filepath.Join(dir, "south", "empty.yaml"): nil} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file, stateDir, fmt.Sprint("127.0.0.1:", ports[1])
}

// TestAStateOfFormatOneIsUsed: a relay starts with it, twice, and serves what was in it.
func TestAStateOfFormatOneIsUsed(t *testing.T) {
	file, _, address := fromFormat1(t)
	client := admin.Client{Address: address}
	for _, start := range []string{"the first start", "the next start"} {
		_, stop := background(t, "serve", "-c", file)
		await.Until(t, start+": everything is served", func() bool {
			objects, err := client.Resources(t.Context())
			return err == nil && len(objects) == 3
		})
		all, err := client.Upstreams(t.Context())
		if err != nil || len(all) != 3 {
			t.Fatalf("%s: %d upstreams, %v", start, len(all), err)
		}
		if f := all[0].Frozen; f == nil || f.Reason != "ticket 17" || f.Revision != 2 {
			t.Errorf("%s: frozen %+v", start, f)
		}
		if err := stop(); err != nil {
			t.Errorf("%s: %v", start, err)
		}
	}
}

// TestARelayDoesNotStartOnAStateOfALaterFormat: it could not read all of its resources.
func TestARelayDoesNotStartOnAStateOfALaterFormat(t *testing.T) {
	file, stateDir, _ := fromFormat1(t)
	path := filepath.Join(stateDir, "upstream-west.state")
	later, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	later[8]++
	binary.LittleEndian.PutUint64(later[24:], xxh3.Hash(later[:24]))
	if err := os.WriteFile(path, later, 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop := background(t, "serve", "-c", file)
	err = stop()
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "it has format 2, and this release reads format 1: start the release that wrote it, or set state.dir to another directory") {
		t.Errorf("error %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, later) {
		t.Errorf("the file has changed: %v", err)
	}
}
