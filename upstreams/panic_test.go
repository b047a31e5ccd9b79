package upstreams

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
)

// overBad panics over what is called "bad", and counts.
func overBad(n *int) func(*mirror.Resource) {
	return func(r *mirror.Resource) {
		if r.Key().Name == "bad" {
			*n++
			panic("no good")
		}
	}
}

func TestPanicOverAResourceCostsThatResource_C7(t *testing.T) {
	for _, protocol := range []adsclient.Protocol{adsclient.SotW, adsclient.Delta} {
		t.Run(string(protocol), func(t *testing.T) {
			s := newXDSScript(t)
			send := func(resources ...fakexds.Resource) error {
				if protocol == adsclient.Delta {
					return s.delta(xdsEntryURL, nil, resources...)
				}
				return s.sotw(xdsEntryURL, resources...)
			}
			s.ok(send(xdsEntry("shop/a", "a1"), xdsEntry("shop/bad", "b1")))
			tried := 0
			s.x.table.fault = overBad(&tried)
			again := func(tries int) {
				t.Helper()
				err := send(xdsEntry("shop/a", "a2"), xdsEntry("shop/bad", "b2"), xdsEntry("shop/c", "c"))
				if err == nil || !strings.Contains(err.Error(), "shop/bad") || !strings.Contains(err.Error(), "internal error") {
					t.Errorf("the NACK is %v", err)
				}
				s.holds("shop/a=a2", "shop/bad=b1", "shop/c=c")
				if st := s.x.Status(); tried != tries || st.Panics != uint64(tries) || st.RefusedTotal != 1 {
					t.Errorf("tried %d times, want %d; %d panics, refused %v", tried, tries, st.Panics, st.Refused)
				}
			}
			again(1)
			again(1) // the same content is not tried again
			if err := send(xdsEntry("shop/a", "a2"), xdsEntry("shop/bad", "b3"), xdsEntry("shop/c", "c")); err == nil || tried != 2 {
				t.Errorf("other content is not tried: %v", err)
			}
			s.x.table.fault = nil
			s.ok(send(xdsEntry("shop/a", "a2"), xdsEntry("shop/bad", "b4"), xdsEntry("shop/c", "c")))
			s.holds("shop/a=a2", "shop/bad=b4", "shop/c=c")
		})
	}
}

func TestPanicOverAResponseCostsThatResponse(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/a", "a"), xdsEntry("shop/b", "b")))
	later := s.x.table.later
	s.x.table.later = func(kind mirror.Kind) {
		later(kind)
		panic("no")
	}
	if err := s.sotw(xdsEntryAlpha); err == nil || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("the NACK is %v", err)
	}
	s.holds("shop/a=a", "shop/b=b")
	s.x.table.later = later
	s.lapse()
	s.ok(s.sotw(xdsEntryAlpha, xdsEntry("shop/b", "b2")))
	s.holds("shop/b=b2")
}

// TestWhatADiskHasAndPanicsIsSetAside: neither does it end the process, nor does it panic
// again and again.
func TestWhatADiskHasAndPanicsIsSetAside(t *testing.T) {
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, xdsEntry("shop/a", "a"), xdsEntry("shop/bad", "b")))
	saved := savedOf(before, time.Now())
	cfg, node := xdsConfig("127.0.0.1:1")
	x, err := NewXDS(cfg, node, config.Provenance{}, mirror.NewStore(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &xdsScript{t: t, x: x, store: x.store}
	tried := 0
	x.table.fault = overBad(&tried)
	x.gate.keeps = true
	x.restore(saved)
	x.adopt(saved.Records, false)
	s.holds("shop/a=a")
	if st := x.Status(); st.Panics != 1 || st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Resource, "shop/bad") {
		t.Errorf("status %+v", st)
	}
	if changes, _ := x.gate.TakeChanges(); !slices.ContainsFunc(changes, func(c state.Change) bool { return c.Key.Name == "bad" && c.Record == nil }) {
		t.Errorf("it stays on the disk: %v", changes)
	}
}

func TestPanicOverAnObjectOfAFileCostsThatObject(t *testing.T) {
	dir := t.TempDir()
	write := func(name, host string) {
		t.Helper()
		text := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + ", namespace: shop}\nspec: {hosts: [" + host + "], ports: [{number: 1, name: a}], resolution: NONE}\n"
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store := mirror.NewStore()
	f, err := NewFile(fileUpstream("local", dir), config.Provenance{}, store, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	f.fault = func(r *mirror.Resource) {
		if broken.Load() && r.Key().Name == "bad" {
			panic("no good")
		}
	}
	write("a", "a1")
	write("bad", "b1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not so: %s; %+v", what, f.Status())
			}
		}
	}
	hosts := func() (out string) {
		for _, r := range store.List(xdsEntryKind, "") {
			out += hostOf(t, r) + " "
		}
		return out
	}
	await("both are served", func() bool { return hosts() == "a1 b1 " })
	broken.Store(true)
	write("a", "a2")
	write("bad", "b2")
	await("the good one is, and the last of the bad one", func() bool { return hosts() == "a2 b1 " && f.Status().Panics == 1 })
	if st := f.Status(); st.RefusedTotal != 1 || !strings.Contains(st.Refused[0].Reason, "no good") {
		t.Errorf("refused %+v", st.Refused)
	}
	write("a", "a3") // the loop goes on, and does not try the bad one again
	await("changes are served", func() bool { return hosts() == "a3 b1 " })
	if n := f.Status().Panics; n != 1 {
		t.Errorf("%d panics", n)
	}
}
