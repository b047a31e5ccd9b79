//go:build linux

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/push"
	"meshrelay/upstreams"
)

// TestAReloadIsTakenOverAtOnce: two configs serve the copies of a alone, the one because of the
// order of the upstreams, the other because of the view. Reloads from one to the other show
// nobody those of b.
func TestAReloadIsTakenOverAtOnce(t *testing.T) {
	const entries, reloads = 3000, 5
	p := newProcess(t, "")
	write := func(source, more string) {
		t.Helper()
		var b strings.Builder
		for i := range entries {
			fmt.Fprintf(&b, "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e%d, namespace: shop}\nspec: {hosts: [%s.example]}\n", i, source)
		}
		path := filepath.Join(p.dir, source+".yaml")
		if err := os.WriteFile(path+".new", []byte(b.String()+more), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "")
	write("b", "")
	const (
		byOrder = "upstreams: [{name: a, file: {path: a.yaml}}, {name: b, file: {path: b.yaml}}]\ndownstream: {LISTEN}\n"
		byView  = "upstreams: [{name: b, file: {path: b.yaml}}, {name: a, file: {path: a.yaml}}]\nviews: [{name: all, default: true, sources: [a]}]\ndownstream: {LISTEN}\n"
	)
	p.write(byOrder)
	p.start()
	w := watchEntries(t, p.xds)
	// receive takes one response, and returns how many entries are of a and of b, and whether
	// one is the last that there will be.
	receive := func() (ofA, ofB int, last bool) {
		resp, err := w.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		w.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: entryType, ResponseNonce: resp.Nonce})
		for _, r := range resp.Resources {
			switch body := string(r.Resource.Value); {
			case strings.Contains(body, "a.example"):
				ofA++
			case strings.Contains(body, "b.example"):
				ofB++
			case strings.Contains(body, "last.example"):
				last = true
			}
		}
		return ofA, ofB, last
	}
	for got := 0; got < entries; {
		ofA, _, _ := receive()
		got += ofA
	}
	for i := range 2 * reloads {
		p.write([]string{byView, byOrder}[i%2])
		p.signal(syscall.SIGHUP)
		within(t, "the config is reloaded", func() bool { return strings.Count(p.log.String(), "config reloaded") > i })
	}
	write("a", "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: last, namespace: shop}\nspec: {hosts: [last.example]}\n")
	for {
		ofA, ofB, last := receive()
		if ofA+ofB > 0 {
			t.Errorf("%d copies of a were sent again, and %d of b, which nothing serves", ofA, ofB)
		}
		if last {
			break
		}
	}
}

// TestClientsWaitUntilAReloadIsMerged: it is not taken over before what the upstreams have is
// merged anew.
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
		cfg, err := config.Parse(filepath.Join(dir, "relay.yaml"), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	log := slog.New(slog.DiscardHandler)
	cfg, aggregate := parse("a", "b"), mirror.NewAggregate()
	// Once asking is set, whoever is told of something asks for leave first.
	var asking atomic.Bool
	leave, asks := make(chan struct{}), make(chan struct{}, 100)
	let := sync.OnceFunc(func() { close(leave) })
	manager, err := upstreams.NewManager(cfg, aggregate, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	err = aggregate.RegisterEventHandler(mirror.Kind{}, func(_, _ *mirror.Resource, _ mirror.Event) {
		if asking.Load() {
			asks <- struct{}{}
			<-leave
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	serverConfig, err := downstreamConfig(cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	server, err := downstream.New(serverConfig, downstream.Deps{Configs: aggregate, Registerer: prometheus.NewRegistry(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	debouncer, err := push.NewDebouncer(push.Options{After: time.Millisecond, Max: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := &reloader{
		running: cfg, now: cfg, flags: func(*config.Config) {}, manager: manager, aggregate: aggregate, server: server,
		debouncer: debouncer, memory: newMemoryGuard(90), level: new(slog.LevelVar), log: log,
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- aggregate.Run(ctx) }()
	go func() { ended <- manager.Run(ctx) }()
	defer func() {
		let()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	within(t, "the sources have synced", aggregate.HasSynced)
	asking.Store(true)

	done := make(chan error, 1)
	go func() { _, err := r.apply(ctx, parse("b", "a")); done <- err }()
	<-asks // b takes over
	pushed := make(chan struct{})
	go func() { defer close(pushed); server.Push(&push.Request{Full: true}) }()
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
