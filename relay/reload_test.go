package relay

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/push"
)

// TestClientsWaitUntilAReloadIsMerged: the reload ends after the resources of all upstreams are merged again.
func TestClientsWaitUntilAReloadIsMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The upstreams have no API server, so the reload takes away what the stores of the test have.
		const text = "downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\nupstreams:\n- {name: a, kubernetes: {cluster: {kubeconfig: nowhere}}}\n- {name: b, kubernetes: {cluster: {kubeconfig: nowhere}}}\n"
		cfg, err := config.Parse(filepath.Join(t.TempDir(), "relay.yaml"), []byte(text), Sources()...)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(Options{Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(*config.Config) {}, Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar)})
		if err != nil {
			t.Fatal(err)
		}
		// Once asking is set, each handler of a change waits for permission first.
		var asking atomic.Bool
		leave, asks := make(chan struct{}), make(chan struct{}, 100)
		let := sync.OnceFunc(func() { close(leave) })
		r.aggregate.RegisterHandler(func(c mirror.Change) {
			if c.Visible() && asking.Load() {
				asks <- struct{}{}
				<-leave
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, run := range []func(context.Context) error{r.aggregate.Run, r.manager.Run} {
			running.Go(func() {
				if err := run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		defer func() { let(); cancel(); running.Wait() }()
		synctest.Wait()
		var sources []mirror.Source
		for _, name := range []string{"a", "b"} {
			store := mirror.NewStore()
			store.Put(resource(t, name, name))
			sources = append(sources, mirror.Source{Name: name, Store: store})
		}
		r.aggregate.SetSources(sources)
		if err := r.aggregate.CaughtUp(ctx); err != nil {
			t.Fatal(err)
		}
		asking.Store(true)

		done := make(chan error, 1)
		go func() { _, err := r.apply(ctx, cfg); done <- err }()
		<-asks // the first resource goes
		pushed := make(chan struct{})
		go func() { defer close(pushed); r.server.Push(&push.Request{Full: true}) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("taken over before it is merged: %v", err)
			done <- err
		case <-pushed:
			t.Error("pushed in the middle of a reload")
		default:
		}
		let()
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-pushed
		if r.aggregate.Get(entryKey("a")) != nil || r.aggregate.Get(entryKey("b")) != nil {
			t.Error("the reload has ended before it was merged")
		}
	})
}
