package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// watchFor samples an istiod's configs until stop is called, and reports what keys
// were missing at any time.
func watchFor(t *testing.T, i *istiod, want configs) (stop func() []string) {
	t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	missing := map[string]bool{}
	samples := 0
	wg.Go(func() {
		ticks := time.NewTicker(20 * time.Millisecond)
		defer ticks.Stop()
		for {
			if now, err := configz(i.http); err == nil {
				samples++
				for k := range want {
					if _, ok := now[k]; !ok {
						missing[k] = true
					}
				}
			}
			select {
			case <-done:
				return
			case <-ticks.C:
			}
		}
	})
	return func() (keys []string) {
		close(done)
		wg.Wait()
		if samples == 0 {
			t.Error("no sample was taken")
		}
		for k := range missing {
			keys = append(keys, k)
		}
		return keys
	}
}

func TestDeadUpstreamLosesNothingAndReturnsWithTheDifference_C16(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west")
	for i := range 5 {
		east.write(t, fmt.Sprintf("e%d", i), fmt.Sprintf("e%d.example", i))
		west.write(t, fmt.Sprintf("w%d", i), fmt.Sprintf("w%d.example", i))
	}
	east.start().ready()
	west.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc, "west=" + west.grpc}).start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	want := union(east.configs(), west.configs())
	eventually(t, "all is there", func() error { return differs(third.configs(), want) })

	f := dial(t, r.xds).follow(seV1, nil)
	f.mark()
	stop := watchFor(t, third, want)
	west.kill()
	eventually(t, "the relay notices", func() error {
		body, err := httpGet("http://" + r.admin + "/debug/upstreams")
		if err == nil && !contains(body, `"disconnected"`) {
			err = fmt.Errorf("%s", body)
		}
		return err
	})
	// The other upstream's changes go on.
	east.write(t, "e9", "e9.example")
	eventually(t, "east's change arrives", func() error {
		if _, ok := third.configs()["networking.istio.io/ServiceEntry shop/e9"]; !ok {
			return fmt.Errorf("not there")
		}
		return nil
	})
	if got := f.sent(1); !slices.Equal(got, []string{"+shop/e9"}) {
		t.Errorf("while west was down the relay's clients were sent %q", got)
	}
	if lost := stop(); len(lost) > 0 {
		t.Errorf("lost while west was down: %v", lost)
	}

	f.mark()
	west.write(t, "w0", "other.example")
	west.remove(t, "w1")
	west.write(t, "w9", "w9.example")
	west.start().ready()
	eventually(t, "the third istiod has what is new", func() error {
		return differs(third.configs(), union(east.configs(), west.configs()))
	})
	if got := f.sent(3); !slices.Equal(got, []string{"+shop/w0", "+shop/w9", "-shop/w1"}) {
		t.Errorf("the difference was sent as %q", got)
	}
}

func contains(body []byte, part string) bool {
	return strings.Contains(string(body), part)
}

func TestRelayStartsWhileAnUpstreamIsDown_S4(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	east.write(t, "a", "a.example")
	east.start().ready()
	west := newIstiod(t, "west") // not started
	west.write(t, "b", "b.example")
	r := newRelay(t, "hub", []string{"east=" + east.grpc, "west=" + west.grpc}, "startupTimeout: 2s").start()
	third := newIstiod(t, "third", r.xds).start().ready()
	eventually(t, "east is served", func() error { return differs(third.configs(), east.configs()) })
	body, err := httpGet("http://" + r.admin + "/debug/upstreams")
	if err != nil || !contains(body, `"connecting"`) {
		t.Errorf("the state does not say that west is missing (%v): %s", err, body)
	}
	west.start().ready()
	eventually(t, "west is served once it is up", func() error {
		return differs(third.configs(), union(east.configs(), west.configs()))
	})
}

func TestRelayIsKilledAndNothingIsLost_S5(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west")
	copySamples(t, "east", east.configDir)
	copySamples(t, "west", west.configDir)
	east.start().ready()
	west.start().ready()
	r := newRelay(t, "hub", []string{"east=" + east.grpc, "west=" + west.grpc}).start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()
	want := union(east.configs(), west.configs())
	eventually(t, "all is there", func() error { return differs(third.configs(), want) })

	f := dial(t, r.xds).follow(seV1, nil)
	held := map[string]string{}
	for k, v := range f.have {
		held[k] = v
	}
	stop := watchFor(t, third, want)
	r.kill()
	east.write(t, "new", "new.example")
	r.start().ready()
	// A client that comes back with what it holds is sent the difference alone: versions
	// are made from content, so a restarted relay gives the same.
	again := dial(t, r.xds).follow(seV1, held)
	eventually(t, "the difference", func() error {
		if got := again.events(); got != "+shop/new" {
			return fmt.Errorf("sent %q", got)
		}
		return nil
	})
	eventually(t, "the third istiod converges", func() error {
		if _, ok := third.configs()["networking.istio.io/ServiceEntry shop/new"]; !ok {
			return fmt.Errorf("the change is not there")
		}
		return differs(third.configs(), union(east.configs(), west.configs()))
	})
	if lost := stop(); len(lost) > 0 {
		t.Errorf("lost while the relay was away: %v", lost)
	}
}
