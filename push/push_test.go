package push

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"meshrelay/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(name string) mirror.Key {
	return mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: name}
}

func TestMergedRequestsAskForAllThatTheirPartsAsk(t *testing.T) {
	var got []*Request
	debounceWith(t, func(r *Request) { got = append(got, r) }, func(d *Debouncer) {
		d.UpdateKey(key("a"), ConfigUpdate)
		d.UpdateKey(key("b"), CopyUpdate)
		time.Sleep(time.Microsecond)
		d.UpdateKey(key("b"), ConfigUpdate)
	})
	if len(got) != 1 {
		t.Fatalf("%d pushes", len(got))
	}
	want := &Request{
		ConfigsUpdated: map[mirror.Key]struct{}{key("a"): {}, key("b"): {}},
		Reason:         map[Reason]int{ConfigUpdate: 2, CopyUpdate: 1}, Start: got[0].Start,
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestContradictoryOptionsAreErrors(t *testing.T) {
	for _, o := range []Options{{}, {After: time.Second, Max: time.Millisecond}, {After: -1, Max: 1}} {
		if _, err := NewDebouncer(o); err == nil {
			t.Errorf("%+v is no error", o)
		}
	}
}

// pushed is one call of the push function.
type pushed struct {
	at   time.Duration // since the start
	wait time.Duration // of the oldest part
	keys int
}

// debounce runs a Debouncer in a bubble while f makes requests, and returns its
// pushes. Each push takes cost.
func debounce(t *testing.T, cost time.Duration, f func(d *Debouncer)) (out []pushed) {
	t.Helper()
	var began time.Time
	debounceWith(t, func(r *Request) {
		out = append(out, pushed{time.Since(began), time.Since(r.Start), len(r.ConfigsUpdated)})
		time.Sleep(cost)
	}, func(d *Debouncer) {
		began = time.Now()
		f(d)
	})
	return out
}

// debounceWith runs a Debouncer in a bubble while f makes requests, long after the last push.
func debounceWith(t *testing.T, push func(*Request), f func(d *Debouncer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, err := NewDebouncer(Options{After: 100 * time.Millisecond, Max: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := d.Run(ctx, push); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Minute)
		f(d)
		time.Sleep(time.Minute)
		cancel()
		wg.Wait()
	})
}

func TestIsolatedChangeLeavesWithinAMillisecond(t *testing.T) {
	got := debounce(t, 0, func(d *Debouncer) {
		for i := range 5 {
			d.UpdateKey(key(fmt.Sprint(i)), ConfigUpdate)
			time.Sleep(150 * time.Millisecond)
		}
	})
	if len(got) != 5 {
		t.Fatalf("%d pushes, want one for each: %v", len(got), got)
	}
	for _, p := range got {
		if p.wait >= time.Millisecond {
			t.Errorf("a change waited %v", p.wait)
		}
	}
}

func TestChangesThatComeTogetherLeaveTogether(t *testing.T) {
	got := debounce(t, 0, func(d *Debouncer) {
		for i := range 1000 { // as the parts of one response do
			d.UpdateKey(key(fmt.Sprint(i)), ConfigUpdate)
			time.Sleep(2 * time.Microsecond)
		}
	})
	if len(got) != 1 || got[0].keys != 1000 {
		t.Errorf("pushes %v, want one of 1000", got)
	}
}

func TestStreamOfChangesIsCoalescedAndNoneWaitsLongerThanMax(t *testing.T) {
	got := debounce(t, 0, func(d *Debouncer) {
		for i := range 2000 * 5 { // 2,000 a second for five seconds
			d.UpdateKey(key(fmt.Sprint(i)), ConfigUpdate)
			time.Sleep(500 * time.Microsecond)
		}
	})
	total := 0
	for _, p := range got {
		total += p.keys
		if p.wait > time.Second {
			t.Errorf("a change waited %v, more than the maximum", p.wait)
		}
	}
	if total != 10000 || len(got) > 8 {
		t.Errorf("%d changes in %d pushes: %v", total, len(got), got)
	}
}

func TestQuietTimeEndsTheWait(t *testing.T) {
	got := debounce(t, 0, func(d *Debouncer) {
		d.UpdateKey(key("a"), ConfigUpdate)
		time.Sleep(10 * time.Millisecond)
		d.UpdateKey(key("b"), ConfigUpdate)
		time.Sleep(10 * time.Millisecond)
		d.UpdateKey(key("c"), ConfigUpdate)
	})
	if len(got) != 2 || got[1].keys != 2 || got[1].at != 120*time.Millisecond {
		t.Errorf("pushes %v, want the first alone and the others after 100 ms of quiet", got)
	}
}

func TestRequestsDuringAPushAreMergedIntoTheNext(t *testing.T) {
	got := debounce(t, 300*time.Millisecond, func(d *Debouncer) {
		d.UpdateKey(key("a"), ConfigUpdate)
		time.Sleep(10 * time.Millisecond)
		for i := range 50 {
			d.UpdateKey(key(fmt.Sprint(i)), ConfigUpdate)
			time.Sleep(time.Millisecond)
		}
	})
	if len(got) != 2 || got[1].keys != 50 {
		t.Errorf("pushes %v, want two", got)
	}
}

func BenchmarkUpdateKey(b *testing.B) {
	d, err := NewDebouncer(Options{After: time.Millisecond, Max: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	k := key("a")
	b.ReportAllocs()
	for b.Loop() {
		d.UpdateKey(k, ConfigUpdate)
	}
}

func TestOptionsAreReplacedWhileAChangeWaits(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		at   time.Duration // of the second push
	}{
		{"shorter", Options{After: 20 * time.Millisecond, Max: 40 * time.Millisecond}, 40 * time.Millisecond},
		{"shorter than it has waited", Options{After: time.Millisecond, Max: time.Millisecond}, 30 * time.Millisecond},
		{"longer", Options{After: 300 * time.Millisecond, Max: time.Second}, 320 * time.Millisecond},
		{"contradictory: they stay", Options{After: time.Second, Max: time.Millisecond}, 120 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := debounce(t, 0, func(d *Debouncer) {
				d.UpdateKey(key("a"), ConfigUpdate)
				time.Sleep(20 * time.Millisecond)
				d.UpdateKey(key("b"), ConfigUpdate)
				time.Sleep(10 * time.Millisecond)
				if err := d.SetOptions(tc.opts); (err != nil) != (tc.opts.check() != nil) {
					t.Errorf("%+v: %v", tc.opts, err)
				}
			})
			if len(got) != 2 || got[1].at != tc.at {
				t.Errorf("pushes %v, want the second at %v", got, tc.at)
			}
		})
	}
}

// TestOptionsAreReplacedWhileChangesCome is for the race detector; no change is lost.
func TestOptionsAreReplacedWhileChangesCome(t *testing.T) {
	d, err := NewDebouncer(Options{After: time.Millisecond, Max: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pushed := make(chan int)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, func(r *Request) { pushed <- len(r.ConfigsUpdated) }) }()
	const n = 2000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			d.UpdateKey(key(fmt.Sprint(i)), ConfigUpdate)
		}
	})
	wg.Go(func() {
		for i := range n {
			if err := d.SetOptions(Options{After: time.Duration(1 + i), Max: time.Duration(1+i) * time.Microsecond}); err != nil {
				t.Error(err)
			}
		}
	})
	for total := 0; total < n; {
		total += <-pushed
	}
	wg.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
