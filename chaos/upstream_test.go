package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

// pair is an upstream and a client that is connected to it without a relay in between.
type pair struct {
	t        *testing.T
	world    *world
	upstream *upstream
	client   *client
	bad      chan *violation
}

func newPair(t *testing.T, delta bool) *pair {
	t.Helper()
	w := newWorld([]string{"east"}, 40, 1, newJournal(t.Output()))
	p := &pair{t: t, world: w, upstream: newUpstream("east", w.sources[0], delta, "127.0.0.1:0"), bad: make(chan *violation, 100)}
	for key := range 30 {
		p.put(key)
	}
	if err := p.upstream.start(); err != nil {
		t.Fatal(err)
	}
	var responses atomic.Int64
	// The third-oldest spelling is the newest.
	p.client = newClient("client", p.upstream.address, delta, 2, w, &reader{world: w}, &responses, func(v *violation) {
		select {
		case p.bad <- v:
		default: // the first is enough
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.client.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; p.upstream.stop() })
	return p
}

func (p *pair) put(key int) {
	p.t.Helper()
	if err := p.world.put(0, key); err != nil {
		p.t.Fatal(err)
	}
}

// settles waits until the client holds what there is.
func (p *pair) settles() {
	p.t.Helper()
	var bad *violation
	p.awaits("the client holds what there is", func() bool {
		bad = p.client.check(p.world.expected())
		return bad == nil
	}, func() any { return bad })
}

// awaits waits until ok returns true. The client must not notice anything until then.
func (p *pair) awaits(what string, ok func() bool, seen ...func() any) {
	p.t.Helper()
	await.Until(p.t, what, func() bool {
		select {
		case v := <-p.bad:
			p.t.Fatal(v)
		default:
		}
		return ok()
	}, seen...)
}

func eachProtocol(t *testing.T, f func(t *testing.T, p *pair)) {
	for _, delta := range []bool{false, true} {
		t.Run(protocolOf(delta), func(t *testing.T) { f(t, newPair(t, delta)) })
	}
}

func TestClientSeesWhatAnUpstreamHas(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p *pair) {
		p.settles()
		p.put(3)
		p.put(35)
		p.world.remove(0, 7, 0)
		p.settles()
		p.upstream.restart(same)
		p.put(4)
		p.world.remove(0, 8, 0)
		p.settles()
		p.upstream.stop()
		p.world.remove(0, 9, 0)
		if err := p.upstream.start(); err != nil {
			t.Fatal(err)
		}
		p.settles()
	})
}

// Without a relay that keeps the last good state, each of these is seen.
func TestClientNoticesWrongAnswersOfAnUpstream(t *testing.T) {
	for name, tt := range map[string]struct {
		mood mood
		want string
	}{
		"empty":         {mood{empty: true}, lost},
		"truncated":     {mood{lies: lieTruncated}, wrong},
		"duplicates":    {mood{lies: lieDuplicates}, wrong},
		"wrong types":   {mood{lies: lieTypes}, wrong},
		"no UTF-8":      {mood{lies: lieUTF8}, wrong},
		"unnamed":       {mood{lies: lieUnnamed}, wrong},
		"long names":    {mood{lies: lieLong}, wrong},
		"not asked for": {mood{lies: lieURL}, wrong},
	} {
		t.Run(name, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, p *pair) {
				p.settles()
				p.upstream.feel(func(m *mood) { *m = tt.mood })
				for key := range 30 {
					p.put(key)
				}
				if v := await.Value(t, "it is noticed", p.bad); v.invariant != tt.want {
					t.Errorf("got %v, want %s", v, tt.want)
				}
			})
		})
	}
}

func TestReplicaThatLagsSendsOlderContentsThatMayBeSeen(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p *pair) {
		p.settles()
		p.upstream.lag(true)
		p.put(3)
		other := newUpstream("other", p.world.sources[0], p.upstream.relay, "127.0.0.1:0")
		if err := other.start(); err != nil {
			t.Fatal(err)
		}
		defer other.stop()
		// It is with the other server, which does not lag, and then with the first again.
		c := newClient("mover", other.address, p.client.delta, 2, p.world, p.client.reader, p.client.responses, p.client.fail)
		all := func(answered int) bool { return answered == len(kinds) }
		for _, tt := range []struct {
			address string
			seq     int
		}{{other.address, 2}, {p.upstream.address, 1}} {
			c.address = tt.address
			clear(c.holds[3%len(kinds)]) // so that it is told all
			if err := c.stream(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			if got := c.view.shown[3].seq; got != tt.seq {
				t.Errorf("it sees #%d, want #%d", got, tt.seq)
			}
		}
		p.upstream.lag(false)
		p.settles()
	})
}

func TestUpstreamRefusesStreamsWhenItIsToldTo(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p *pair) {
		p.settles()
		p.upstream.restart(func(m *mood) { m.refuses = errDenied })
		c := newClient("other", p.upstream.address, p.client.delta, 2, p.world, p.client.reader, p.client.responses, p.client.fail)
		if err := c.stream(t.Context(), func(int) bool { return true }); !errors.Is(err, errDenied) {
			t.Errorf("a new stream ends with %v", err)
		}
		p.upstream.restart(func(m *mood) { m.refuses = nil })
		p.put(1)
		p.settles()
	})
}

// TestASilentUpstreamIsHeardLater: on the same stream, and about the other types at once.
func TestASilentUpstreamIsHeardLater(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p *pair) {
		p.settles()
		const quiet, loud = 0, 1 // keys, which are of kinds with these numbers
		covers := func(s silence, kind int) bool { return s.covers(kinds[kind].typeURL(kinds[kind].versions[0])) }
		about := silence(1)
		for !covers(about, quiet) || covers(about, loud) {
			about++
		}
		shown := func(key int) int {
			p.client.mu.Lock()
			defer p.client.mu.Unlock()
			return p.client.view.shown[key].seq
		}
		p.upstream.restart(func(m *mood) { m.silent = about })
		p.put(quiet)
		p.put(loud)
		p.awaits("the other types are answered", func() bool { return shown(loud) == 2 })
		if seq := shown(quiet); seq != 1 {
			t.Errorf("it sees #%d of a type that is not answered", seq)
		}
		p.upstream.feel(func(m *mood) { m.silent = 0 })
		p.settles()
	})
}

func TestSilenceIsAboutHalfOfTheTypes(t *testing.T) {
	silent, all := 0, 0
	for n := range silence(500) {
		for _, k := range kinds {
			url := k.typeURL(k.versions[0])
			if all++; n.covers(url) {
				silent++
			}
			if n == 0 && n.covers(url) {
				t.Fatalf("silence %d about %s", n, url)
			}
		}
	}
	if silent < all*4/10 || silent > all*6/10 {
		t.Errorf("silent about %d of %d", silent, all)
	}
}

func TestLinkThatIsCutComesBack(t *testing.T) {
	p := newPair(t, false)
	l, err := newLink(newProxies(), "link", "127.0.0.1:0", p.upstream.address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ask := func() error {
		c := newClient("other", l.proxy.Listen, false, 2, p.world, p.client.reader, p.client.responses, p.client.fail)
		return c.stream(await.Context(t), func(int) bool { return true })
	}
	for _, bad := range []func() error{
		func() error { l.cut(); return nil },
		func() error { return l.poison("reset_peer", "downstream", map[string]int{"timeout": 0}) },
		func() error { return l.poison("limit_data", "downstream", map[string]int{"bytes": 10}) },
	} {
		if err := ask(); err != nil {
			t.Fatalf("a good link: %v", err)
		}
		if err := bad(); err != nil {
			t.Fatal(err)
		}
		if err := ask(); err == nil {
			t.Error("a bad link is as good as others")
		}
		if err := l.heal(); err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(); err != nil {
		t.Errorf("a link that was mended: %v", err)
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("a violation")
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		if err := sleep(ctx, time.Hour); !errors.Is(err, why) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := sleep(t.Context(), time.Second); err != nil {
			t.Error(err)
		}
	})
}
