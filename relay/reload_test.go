package relay

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/push"
)

// TestClientsWaitUntilAReloadIsMerged: the reload ends after the resources of all upstreams are merged again.
func TestClientsWaitUntilAReloadIsMerged(t *testing.T) {
	dir := t.TempDir()
	for _, source := range []string{"a", "b"} {
		text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: shop}\nspec: {hosts: [%s.example]}\n", source)
		if err := os.WriteFile(filepath.Join(dir, source+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parse := func(order ...string) *config.Config {
		t.Helper()
		text := "downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\nupstreams:\n"
		for _, source := range order {
			text += fmt.Sprintf("- {name: %s, file: {path: %s.yaml}}\n", source, source)
		}
		cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), []byte(text), Sources()...)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	log := slog.New(slog.DiscardHandler)
	cfg := parse("a", "b")
	// Once asking is set, each handler of a change waits for permission first.
	var asking atomic.Bool
	leave, asks := make(chan struct{}), make(chan struct{}, 100)
	let := sync.OnceFunc(func() { close(leave) })
	r, err := New(Options{Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(*config.Config) {}, Logger: log, LogLevel: new(slog.LevelVar)})
	if err != nil {
		t.Fatal(err)
	}
	err = r.aggregate.RegisterHandler(func(c mirror.Change) {
		if c.Visible() && asking.Load() {
			asks <- struct{}{}
			<-leave
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- r.aggregate.Run(ctx) }()
	go func() { ended <- r.manager.Run(ctx) }()
	defer func() {
		let()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	select {
	case <-r.aggregate.Synced():
	case <-time.After(30 * time.Second):
		t.Fatal("the sources have not synced within 30 s")
	}
	asking.Store(true)

	done := make(chan error, 1)
	go func() { _, err := r.apply(ctx, parse("b", "a")); done <- err }()
	<-asks // b takes over
	pushed := make(chan struct{})
	go func() { defer close(pushed); r.server.Push(&push.Request{Full: true}) }()
	select {
	case err := <-done:
		t.Errorf("taken over before it is merged: %v", err)
		done <- err
	case <-pushed:
		t.Error("pushed in the middle of a reload")
	case <-time.After(50 * time.Millisecond):
	}
	let()
	if err := <-done; err != nil {
		t.Error(err)
	}
	<-pushed
}
