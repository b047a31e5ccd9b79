package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/semaphore"

	"meshrelay/upstreams"
)

// A discovery that fails is not one that lacks a kind.
func TestHostileDiscoveriesChangeNothing_K4(t *testing.T) {
	for want, answer := range map[string]string{
		"too many fields and elements: look at kubectl get": `{"items":[` + strings.Repeat(`{},`, 1<<20) + `{}]}`,
		"a value of more than 64 KiB":                       `{"items":[{"versions":[{"resources":[{"verbs":[` + strings.Repeat(`"",`, 1<<20) + `""]}]}]}]}`,
		`a version or a plural is not 1 to 63 lower-case`:   `{"items":[{"metadata":{"name":"networking.istio.io"},"versions":[{"version":"../../secrets","resources":[{"resource":"serviceentries","responseKind":{"kind":"ServiceEntry"},"verbs":["list","watch"]}]}]}]}`,
		`a plural is not 1 to 63 lower-case letters`:        `{"items":[{"metadata":{"name":"networking.istio.io"},"versions":[{"version":"v1","resources":[{"resource":"a?watch=false&b=","responseKind":{"kind":"ServiceEntry"},"verbs":["list","watch"]}]}]}]}`,
		"the server has compressed its answer":              "gzip",
		"unexpected EOF":                                    `{"items":[`,
	} {
		inBubble(t, want, func(t *testing.T) {
			s := newAPIServer(t)
			s.entry("shop/a", "a.x")
			hostile := false
			s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
				s.Lock()
				defer s.Unlock()
				if !hostile || r.URL.Path != "/apis" {
					return false
				}
				if answer == "gzip" {
					w.Header().Set("Content-Encoding", answer)
				}
				fmt.Fprint(w, answer)
				return true
			}
			w := s.mirrors("", "")
			w.synced()
			s.Set(func() { hostile = true })
			w.until("the status tells of it", func() bool { return strings.Contains(w.status().LastError, want) })
			w.serves("ServiceEntry shop/a")
			s.Set(func() { hostile = false })
			w.synced()
		})
	}
}

func TestDiscoveriesOfAllSourcesTakeTurns_K8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := Kind()
		var sources []*Source
		for range 2 {
			one, err := kind.New(configOf(), envOf())
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, one.(*Source))
		}
		if sources[0].discoveries != sources[1].discoveries {
			t.Error("the sources of a kind do not share the places of discoveries")
		}
		s := newAPIServer(t)
		cfg := configOf()
		sectionOf(cfg).Cluster.Kubeconfig = s.kubeconfig("t")
		source := newSource(cfg, upstreams.Env{Log: envOf().Log})
		source.discoveries = semaphore.NewWeighted(1)
		if err := source.client.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer source.client.Close()
		if !source.discoveries.TryAcquire(1) {
			t.Fatal("there is no place")
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		go func() {
			_, err := source.fetch(ctx, source.client.Current())
			errs <- err
		}()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) || s.Asked("/apis?") != 0 {
			t.Errorf("%v, %d requests without a place", err, s.Asked("/apis?"))
		}
		source.discoveries.Release(1)
		for range 2 { // the place is given back
			if _, err := source.fetch(t.Context(), source.client.Current()); err != nil {
				t.Error(err)
			}
		}
	})
}
