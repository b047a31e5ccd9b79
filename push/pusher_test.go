package push

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(name string) mirror.Key {
	return mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: name}
}

func options() Options {
	return Options{After: 100 * time.Millisecond, Max: time.Second, MaxShare: 0.5, CPUs: 2}
}

func TestMergedRequestsAskForAllThatTheirPartsAsk(t *testing.T) {
	var got []*Request
	run(t, func(_ *Pusher, r *Request) { got = append(got, r) }, func(p *Pusher) {
		p.Changed("east", key("a"), ConfigUpdate)
		p.Changed("east", key("b"), CopyUpdate)
		await.Pass(time.Microsecond)
		p.Changed("west", key("b"), ConfigUpdate)
		p.Changed("west", key("c"), ConfigUpdate)
	})
	if len(got) != 1 {
		t.Fatalf("%d pushes", len(got))
	}
	want := &Request{
		ConfigsUpdated: map[mirror.Key]struct{}{key("a"): {}, key("b"): {}, key("c"): {}},
		Reason:         map[Reason]int{ConfigUpdate: 3, CopyUpdate: 1}, Start: got[0].Start,
	}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// pushed is one call of the push function.
type pushed struct {
	at   time.Duration // since the start
	wait time.Duration // of the oldest part
	keys int
}

// pushes runs a Pusher in a bubble while f makes changes, and returns its pushes. Each push takes
// cost.
func pushes(t *testing.T, cost time.Duration, f func(p *Pusher)) (out []pushed) {
	t.Helper()
	var began time.Time
	run(t, func(p *Pusher, r *Request) {
		out = append(out, pushed{time.Since(began), time.Since(r.Start), len(r.ConfigsUpdated)})
		await.Pass(cost)
		p.work.Busy(cost)
	}, func(p *Pusher) {
		began = time.Now()
		f(p)
	})
	return out
}

// run runs a Pusher in a bubble while f makes changes, long after the last push.
func run(t *testing.T, push func(*Pusher, *Request), f func(p *Pusher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := NewPusher(options(), NewWork())
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Run(ctx, func(r *Request) { push(p, r) }); err != nil {
				t.Error(err)
			}
		})
		await.Pass(time.Minute)
		f(p)
		await.Pass(time.Minute)
		cancel()
		wg.Wait()
	})
}

func TestIsolatedChangeLeavesWithinAMillisecond(t *testing.T) {
	got := pushes(t, 5*time.Millisecond, func(p *Pusher) {
		for i := range 5 {
			p.Changed("east", key(fmt.Sprint(i)), ConfigUpdate)
			await.Pass(20 * time.Millisecond)
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
	got := pushes(t, 0, func(p *Pusher) { response(p, "east", 1000) })
	if len(got) != 1 || got[0].keys != 1000 || got[0].wait > 3*time.Millisecond {
		t.Errorf("pushes %v, want one of 1000", got)
	}
}

// response makes changes as the parts of one response do.
func response(p *Pusher, upstream string, n int) {
	for i := range n {
		p.Changed(upstream, key(fmt.Sprint(upstream, time.Now().UnixNano(), i)), ConfigUpdate)
		await.Pass(2 * time.Microsecond)
	}
}

func TestUpstreamInABurstWaitsUntilItIsQuietAndNobodyElseDoes(t *testing.T) {
	got := pushes(t, 0, func(p *Pusher) { // an upstream that starts
		response(p, "east", 1000) // leaves at 2.25 ms
		for range 3 {
			await.Pass(50 * time.Millisecond)
			response(p, "east", 1000) // the last ends at 158 ms
		}
		await.Pass(50 * time.Millisecond)
		p.Changed("west", key("alone"), ConfigUpdate)
	})
	if len(got) != 3 || got[0].keys != 1000 || got[1].keys != 1 || got[1].wait > time.Millisecond ||
		got[2].keys != 3000 || got[2].at.Round(time.Millisecond) != 258*time.Millisecond {
		t.Errorf("pushes %v, want the first response, that of west at once, and the others after 100 ms of quiet", got)
	}
}

func TestBurstWithoutEndIsPushedAfterTheMaximum(t *testing.T) {
	got := pushes(t, 0, func(p *Pusher) {
		for range 300 { // three seconds
			response(p, "east", 100)
			await.Pass(9800 * time.Microsecond)
		}
	})
	for _, p := range got {
		if p.wait > time.Second {
			t.Errorf("a change waited %v, more than the maximum", p.wait)
		}
	}
	if n := len(got); n > 40 || got[n-1].wait != time.Second && got[n-2].wait != time.Second {
		t.Errorf("%d pushes: %v", n, got)
	}
}

// TestRestEndsABurst: the next change is an isolated one.
func TestRestEndsABurst(t *testing.T) {
	got := pushes(t, 0, func(p *Pusher) {
		response(p, "east", 5000)
		await.Pass(100 * time.Millisecond)
		p.Changed("east", key("a"), ConfigUpdate)
	})
	if len(got) != 2 || got[1].wait > time.Millisecond {
		t.Errorf("pushes %v, want the second at once", got)
	}
}

func TestChangesDuringAPushAreMergedIntoTheNext(t *testing.T) {
	got := pushes(t, 300*time.Millisecond, func(p *Pusher) {
		p.Changed("east", key("a"), ConfigUpdate)
		await.Pass(10 * time.Millisecond)
		for i := range 50 {
			p.Changed("east", key(fmt.Sprint(i)), ConfigUpdate)
			await.Pass(time.Millisecond)
		}
	})
	if len(got) != 2 || got[1].keys != 50 {
		t.Errorf("pushes %v, want two", got)
	}
}

func TestDelaysAreCountedByReason(t *testing.T) {
	var p *Pusher
	pushes(t, 50*time.Millisecond, func(pusher *Pusher) {
		p = pusher
		p.mu.Lock()
		p.pace.opts.MaxShare = 0.25
		p.mu.Unlock()
		p.Changed("east", key("a"), ConfigUpdate)
		await.Pass(time.Millisecond)
		p.Changed("east", key("b"), ConfigUpdate) // waits for what the push of a has cost
		await.Pass(time.Second)
		p.work.track(func() { p.work.Told() }) // never reached
		p.Changed("east", key("c"), ConfigUpdate)
		await.Pass(2 * time.Second)
		p.work.Reached()
		response(p, "east", 1000)
		await.Pass(50 * time.Millisecond)
		p.Changed("east", key("d"), ConfigUpdate)
	})
	for _, why := range []string{"share", "backlog", "burst"} {
		if got := testutil.ToFloat64(p.delayed.WithLabelValues(why)); got != 1 {
			t.Errorf("%v pushes were delayed by %s, want 1", got, why)
		}
	}
	const busy = `# HELP relay_push_busy_seconds_total Time that CPUs have worked to plan and encode responses and to hand them to transports.
# TYPE relay_push_busy_seconds_total counter
relay_push_busy_seconds_total 0.25
`
	if err := testutil.CollectAndCompare(p, strings.NewReader(busy), "relay_push_busy_seconds_total"); err != nil {
		t.Error(err)
	}
}

func BenchmarkChanged(b *testing.B) {
	p := NewPusher(options(), NewWork())
	k := key("a")
	b.ReportAllocs()
	for b.Loop() {
		p.Changed("east", k, ConfigUpdate)
	}
}

// TestNoChangeIsLostBesidePushes is for the race detector.
func TestNoChangeIsLostBesidePushes(t *testing.T) {
	p := NewPusher(options(), NewWork())
	ctx, cancel := context.WithCancel(t.Context())
	pushed := make(chan int)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, func(r *Request) { pushed <- len(r.ConfigsUpdated) }) }()
	const n = 2000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			p.Changed(fmt.Sprint("upstream-", i%7), key(fmt.Sprint(i)), ConfigUpdate)
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

// TestFlushedWaitsForWhatCameBefore, also while it is being pushed, and for nothing that comes later.
func TestFlushedWaitsForWhatCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work := NewWork()
		p := NewPusher(options(), work)
		if err := p.Flushed(t.Context()); err != nil {
			t.Errorf("with nothing to push: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx, func(*Request) { await.Pass(50 * time.Millisecond) }) }()
		p.Changed("east", key("a"), ConfigUpdate)
		called := time.Now()
		await.Pass(time.Millisecond)
		p.Changed("east", key("b"), ConfigUpdate) // waits for the push of a
		if err := p.Flushed(t.Context()); err != nil || time.Since(called) < 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(called))
		}
		p.Changed("east", key("c"), ConfigUpdate)
		short, end := context.WithTimeout(t.Context(), time.Millisecond)
		defer end()
		if err := p.Flushed(short); err == nil {
			t.Error("a change is pushed at once")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
