package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/cmd/relay/internal/lister"
	"meshrelay/cmd/relay/internal/selection"
	"meshrelay/config"
	"meshrelay/internal/logring"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/relay"
)

// running is a relay inside the test process.
type running struct{ xds, admin string }

// runRelay runs a relay over upstreams, given as YAML, until the test ends, and waits until
// it is ready.
func runRelay(t *testing.T, upstreams string) running {
	t.Helper()
	ports := freePorts(t, 2)
	r := running{xds: fmt.Sprintf("127.0.0.1:%d", ports[0]), admin: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	r.run(t, "hub", upstreams)
	r.awaitReady(t)
	return r
}

// run runs a relay of that name until the test ends.
func (r running) run(t *testing.T, name, upstreams string) {
	t.Helper()
	serveConfig(t, fmt.Sprintf("node: {id: %s}\nadmin: {address: %q}\ndownstream: {startupTimeout: 500ms, listeners: [{address: %q, plaintext: true}]}\n%s", name, r.admin, r.xds, upstreams))
}

// serveConfig runs a relay with that config until stop is called, or the test ends.
func serveConfig(t *testing.T, text string) (stop func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	watcher := config.NewWatcher(file, relay.Sources()...)
	cfg, err := watcher.Load()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	recent := new(logring.Ring)
	r, err := relay.New(relay.Options{
		Config: cfg, Watcher: watcher, Complete: func(*config.Config) {},
		Logger: slog.New(recent.Handler(slog.DiscardHandler)), LogLevel: new(slog.LevelVar), Log: recent,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func (r running) awaitReady(t *testing.T) {
	t.Helper()
	await.Until(t, "the relay is ready", func() bool {
		ready, err := admin.Client{Address: r.admin}.Ready(t.Context())
		return err == nil && ready.Ready && len(ready.Reasons) == 0
	})
}

// listerConfig requests one kind under the given type URLs.
func (r running) listerConfig(kind mirror.Kind, typeURLs ...string) lister.Config {
	return lister.Config{
		Server: r.xds, Kinds: []selection.Kind{{Kind: kind, TypeURLs: typeURLs}}, Timeout: 30 * time.Second,
		Node:        adsclient.Node(adsclient.NodeConfig{Name: "test", Namespace: "istio-system", IP: "127.0.0.1", ClusterID: "test"}),
		Credentials: insecure.NewCredentials(),
		Logger:      slog.New(slog.DiscardHandler),
	}
}

// versionedKinds are the kinds that have several API versions, with a resource of each.
func versionedKinds() map[mirror.Kind]proto.Message {
	return map[mirror.Kind]proto.Message{
		{Group: "networking.istio.io", Kind: "ServiceEntry"}: &networking.ServiceEntry{
			Hosts: []string{"db.example"}, Ports: []*networking.ServicePort{{Number: 443, Name: "tls", Protocol: "TLS"}},
			Resolution: networking.ServiceEntry_DNS,
		},
		{Group: "networking.istio.io", Kind: "DestinationRule"}: &networking.DestinationRule{Host: "db.example"},
		{Group: "networking.istio.io", Kind: "VirtualService"}:  &networking.VirtualService{Hosts: []string{"db.example"}},
		{Group: "networking.istio.io", Kind: "Gateway"}:         &networking.Gateway{Selector: map[string]string{"istio": "ingress"}},
		{Group: "networking.istio.io", Kind: "Sidecar"}:         &networking.Sidecar{},
	}
}

// TestEveryVersionOfASourceReachesClientsOfEveryVersion_C1_S13 is the matrix of sources that answer one API version, or
// all, and of clients that request one.
func TestEveryVersionOfASourceReachesClientsOfEveryVersion_C1_S13(t *testing.T) {
	versions := []string{"v1", "v1beta1", "v1alpha3"}
	for _, answers := range [][]string{{"v1alpha3"}, {"v1beta1"}, {"v1"}, versions} {
		t.Run("source answers "+strings.Join(answers, " and "), func(t *testing.T) {
			source := fakexds.Start(t, &fakexds.Server{})
			for kind, body := range versionedKinds() {
				for _, v := range answers {
					source.Set(kind.TypeURL(v), fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body))
				}
			}
			r := runRelay(t, fmt.Sprintf("upstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\n", source.Addr))
			for kind := range versionedKinds() {
				for _, asked := range versions {
					got, problems, err := lister.List(t.Context(), r.listerConfig(kind, kind.TypeURL(asked)))
					if err != nil || len(problems) > 0 {
						t.Fatalf("%s: %v %v", kind.TypeURL(asked), err, problems)
					}
					var names []string
					for _, g := range got {
						names = append(names, g.FullName())
					}
					if want := []string{"shop/a", "shop/b"}; !slices.Equal(names, want) {
						t.Errorf("%s brings %v, want %v", kind.TypeURL(asked), names, want)
					}
				}
			}
		})
	}
}

// TestUpgradeOfASourceInMidStreamIsNoDeletion_C1: the old version becomes empty, and the new one gets the resources a
// moment later, on one stream and across a reconnect.
func TestUpgradeOfASourceInMidStreamIsNoDeletion_C1(t *testing.T) {
	t.Parallel() // it waits
	kind := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	old, cur := kind.TypeURL("v1alpha3"), kind.TypeURL("v1")
	body := versionedKinds()[kind]
	for name, upgrade := range map[string]func(*fakexds.Server){
		"the old version goes empty first": func(s *fakexds.Server) {
			s.Set(old)
			s.Push(old)
			s.Set(cur, fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body))
			s.Push(cur)
		},
		"the new version fills first": func(s *fakexds.Server) {
			s.Set(cur, fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body))
			s.Push(cur)
			s.Set(old)
			s.Push(old)
		},
		"in a restart": func(s *fakexds.Server) {
			s.Set(old)
			s.Set(cur, fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body))
			s.End(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := fakexds.Start(t, &fakexds.Server{})
			source.Set(old, fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body))
			r := runRelay(t, fmt.Sprintf("upstreams: [{name: east, xds: {addresses: [%q], plaintext: true}}]\n", source.Addr))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			events := make(chan lister.Event, 100)
			done := make(chan error, 1)
			go func() {
				done <- lister.Watch(ctx, r.listerConfig(kind, kind.TypeURL("v1beta1")), func(all []lister.Event) error {
					for _, e := range all {
						events <- e
					}
					return nil
				}, func(error) {})
			}()
			for range 2 {
				await.Value(t, "a resource", events)
			}
			upgrade(source)
			// A push of a third resource shows that the client has seen all before it.
			source.Set(cur, fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body), fakexds.MCP("shop/c", body))
			await.Until(t, "the source is connected", func() bool { return source.Streams() > 0 })
			source.Push(cur)
			for e := range events {
				if e.Cur == nil {
					t.Fatalf("a deletion was seen: %s", e.Old.Key())
				}
				if e.Cur.FullName() == "shop/c" {
					break
				}
			}
			// Later deletions are carried out.
			source.Set(cur, fakexds.MCP("shop/c", body))
			source.Push(cur)
			for range 2 {
				if e := await.Value(t, "a deletion", events); e.Cur != nil {
					t.Errorf("%s is no deletion", e.Cur.Key())
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
