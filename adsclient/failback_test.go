package adsclient

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// clients counts the streams that are open at a server.
type clients struct {
	mu        sync.Mutex
	open, max int
}

func (n *clients) add(d int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open += d
	n.max = max(n.max, n.open)
}

// await waits until that many are open.
func (n *clients) await(t *testing.T, want int) {
	t.Helper()
	await.Equal(t, "open streams", want, func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.open
	})
}

// counted starts a server whose streams are counted.
func counted(t *testing.T, nw *network, address string, s *fakexds.Server) (*fakexds.Server, *clients) {
	t.Helper()
	n := &clients{}
	s.Options = append(s.Options, grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		n.add(1)
		defer n.add(-1)
		return handler(srv, ss)
	}))
	return nw.serve(t, address, s), n
}

var errDown = status.Error(codes.Unavailable, "down")

func failback(after time.Duration) func(*Config) {
	return func(c *Config) {
		impatient(c)
		c.FailbackAfter = after
	}
}

// phases returns the phases of an address that was answered by, in order.
func (h *recorder) phases(of ...Phase) (phases []string) {
	for _, s := range h.states {
		if slices.Contains(of, s.Phase) {
			phases = append(phases, fmt.Sprintf("%s %s", s.Phase, s.Address))
		}
	}
	return phases
}

func TestTheStreamMovesBackToAnAddressThatIsHealthy(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server func() *fakexds.Server
		change func(*Config)
	}{
		{"SotW", func() *fakexds.Server { return &fakexds.Server{} }, func(*Config) {}},
		{"a relay", func() *fakexds.Server { return &fakexds.Server{Relay: true} }, func(c *Config) { c.Protocol = Auto }},
		{"delta alone", func() *fakexds.Server { return &fakexds.Server{NoSotW: true} }, func(c *Config) { c.Protocol = Auto }},
		{"delta configured", func() *fakexds.Server { return &fakexds.Server{} }, delta},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, nw *network) {
				const after = 200 * time.Millisecond
				first, atFirst := counted(t, nw, "first", tc.server())
				second, atSecond := counted(t, nw, "second", tc.server())
				first.Fail(errDown)
				h := newRecorder()
				c := nw.start(t, h, func(c *Config) { failback(after)(c); tc.change(c) }, first.Addr, second.Addr)
				awaitSync(t, h, c, second.Addr)
				h.mu.Lock()
				h.held = map[string]map[string]string{seURL: {"shop/a": "1"}}
				h.mu.Unlock()
				before := len(first.Requests())
				healed := time.Now()
				first.Fail(nil)
				awaitSync(t, h, c, first.Addr)
				if took := time.Since(healed); took < after {
					t.Errorf("it moved after %v", took)
				}
				// Streams that probes left behind end, and so does the stream that was left.
				atFirst.await(t, 1)
				atSecond.await(t, 0)
				var last int
				subscribed := map[int][]string{}
				resumed := false
				for _, r := range first.Requests()[before:] {
					last = r.Stream
					if r.Nonce == "" {
						subscribed[r.Stream] = append(subscribed[r.Stream], r.TypeURL)
					}
					resumed = resumed || r.Held["shop/a"] == "1"
				}
				if len(subscribed) < 2 {
					t.Errorf("%d streams: want a probe and the stream", len(subscribed))
				}
				for stream, types := range subscribed {
					if stream != last && !slices.Equal(types, []string{meshURL}) {
						t.Errorf("a probe asked for %q", types)
					}
				}
				if wantResumed := c.Addresses()[0].Active && last > 0 && first.Requests()[len(first.Requests())-1].Delta; resumed != wantResumed {
					t.Errorf("resumed is %v", resumed)
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if !h.has(at(first.Addr, Connected)) || c.Switches() != 1 {
					t.Errorf("states %v, %d switches", h.states, c.Switches())
				}
				moved := slices.IndexFunc(h.states, func(s State) bool { return at(second.Addr, Disconnected)(s) })
				if moved < 0 || !h.states[moved].Answered || !strings.Contains(h.states[moved].Err.Error(), "left for "+first.Addr) {
					t.Errorf("states %v", h.states)
				}
				if a := c.Addresses(); !a[0].Active || a[0].HealthySince.IsZero() || a[1].Active || a[1].LastError != "" || !a[1].HealthySince.IsZero() {
					t.Errorf("addresses %+v", a)
				}
			})
		})
	}
}

func TestNamesMoveBackToo_N2(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, atFirst := counted(t, nw, "first", &fakexds.Server{})
		second, _ := counted(t, nw, "second", &fakexds.Server{})
		for _, s := range []*fakexds.Server{first, second} {
			s.Set(edsURL, cluster("a"), cluster("b"))
		}
		first.Fail(errDown)
		h := newRecorder()
		w := startNamed(t, h, second, func(c *Config) {
			nw.over(failback(50 * time.Millisecond))(c)
			c.Addresses = []string{first.Addr, second.Addr}
		}, "a", "b")
		awaitSync(t, h, w.client, second.Addr)
		first.Fail(nil)
		awaitSync(t, h, w.client, first.Addr)
		atFirst.await(t, 1)
		for _, r := range first.Requests() {
			if len(r.Names) == 0 {
				t.Errorf("a request without names asks for everything: %+v", r)
			}
		}
		first.Await("all names", asks("a", "b"))
	})
}

// TestAnAddressThatFlapsIsNotMovedTo: it answers each probe, and goes away again.
func TestAnAddressThatFlapsIsNotMovedTo(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, _ := counted(t, nw, "first", &fakexds.Server{})
		second, _ := counted(t, nw, "second", &fakexds.Server{})
		first.Fail(errDown)
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) { failback(2 * time.Second)(c); c.MinBackoff = time.Millisecond }, first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		first.Fail(nil)
		for n := range 3 {
			probes := map[int]bool{}
			first.Await("a probe", func(r fakexds.Request) bool {
				probes[r.Stream] = true
				return len(probes) > n
			})
			first.End(errDown)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.has(at(first.Addr, Connected)) || second.Streams() != 1 || c.Switches() != 0 {
			t.Errorf("states %v", h.states)
		}
	})
}

// TestAMoveThatFailsIsUndoneAtOnce: the preferred address answers probes, and then not
// everything. Nothing is lost.
func TestAMoveThatFailsIsUndoneAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		const after = 100 * time.Millisecond
		first, _ := counted(t, nw, "first", &fakexds.Server{Relay: true})
		second, _ := counted(t, nw, "second", &fakexds.Server{Relay: true})
		for _, s := range []*fakexds.Server{first, second} {
			s.Set(seURL, entry("shop/a").WithVersion("1"))
		}
		first.Fail(errDown)
		first.Withhold(vsURL, true)
		h := newRecorder()
		h.held = map[string]map[string]string{seURL: {"shop/a": "1"}}
		c := nw.start(t, h, func(c *Config) {
			failback(after)(c)
			c.Protocol, c.MinBackoff, c.MaxBackoff = Auto, time.Millisecond, 0
		}, first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		first.Fail(nil)
		h.await(t, "the way there and back", func() bool {
			back := slices.IndexFunc(h.states, at(first.Addr, Connected))
			return back >= 0 && slices.ContainsFunc(h.states[back:], at(second.Addr, Connected))
		})
		awaitSync(t, h, c, second.Addr)
		h.mu.Lock()
		defer h.mu.Unlock()
		i := slices.IndexFunc(h.states, at(first.Addr, Connected))
		tail := h.states[i+1:]
		if tail[0].Phase != Disconnected || !tail[0].Answered || status.Code(tail[0].Err) != codes.DeadlineExceeded || !at(second.Addr, Connecting)(tail[1]) {
			t.Errorf("states %v", tail)
		}
		for _, r := range h.responses {
			if strings.Contains(r, " -") || strings.HasPrefix(r, seURL+" ") {
				t.Errorf("a switch is no resume: %q", r)
			}
		}
		if n := c.Switches(); n != 2 {
			t.Errorf("%d switches", n)
		}
	})
}

// TestTheBestThatWorksIsMovedTo: not the first, which stays away, but the second of three.
func TestTheBestThatWorksIsMovedTo(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		var servers []*fakexds.Server
		var addresses []string
		for i := range 3 {
			s := nw.serve(t, fmt.Sprint("server-", i), &fakexds.Server{})
			s.Fail(errDown)
			servers, addresses = append(servers, s), append(addresses, s.Addr)
		}
		servers[2].Fail(nil)
		h := newRecorder()
		c := nw.start(t, h, failback(50*time.Millisecond), addresses...)
		awaitSync(t, h, c, addresses[2])
		servers[1].Fail(nil)
		awaitSync(t, h, c, addresses[1])
		servers[0].Fail(nil)
		awaitSync(t, h, c, addresses[0])
		h.mu.Lock()
		defer h.mu.Unlock()
		want := []string{"connected " + addresses[2], "connected " + addresses[1], "connected " + addresses[0]}
		if got := h.phases(Connected); !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
}

// TestWithoutFailbackNothingIsProbed: the second address is as good.
func TestWithoutFailbackNothingIsProbed(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, second := nw.serve(t, "first", &fakexds.Server{}), nw.serve(t, "second", &fakexds.Server{})
		first.Fail(errDown)
		h := newRecorder()
		c := nw.start(t, h, failback(-1), first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		tried := c.Addresses()[0].LastAttempt
		for range 5 {
			second.End(errDown)
			n := second.Streams()
			second.Await("the next stream", func(r fakexds.Request) bool { return r.Stream > n && r.TypeURL == vsURL })
			awaitSync(t, h, c, second.Addr) // one that ends before that is a failure
		}
		if last := c.Addresses()[0].LastAttempt; !last.Equal(tried) {
			t.Error("the first address was tried again")
		}
	})
}

// TestAddressesMayBeReadAtAnyTime reads while the client switches.
func TestAddressesMayBeReadAtAnyTime(t *testing.T) {
	first, second := fakexds.Start(t, &fakexds.Server{}), fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	c := start(t, h, func(c *Config) { failback(20 * time.Millisecond)(c); c.SyncTimeout, c.connectTimeout = -1, 0 }, first.Addr, second.Addr)
	done := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			active := 0
			for i, a := range c.Addresses() {
				if a.Active {
					active++
				}
				a.LastError = "changed by the reader"
				if a.Address != []string{first.Addr, second.Addr}[i] {
					t.Errorf("address %d is %s", i, a.Address)
				}
			}
			if active > 1 || c.Switches() > 100 {
				t.Errorf("%d are active", active)
			}
		}
	})
	for range 3 {
		awaitSync(t, h, c, first.Addr)
		first.Fail(errDown)
		first.End(errDown)
		awaitSync(t, h, c, second.Addr)
		first.Fail(nil)
	}
	awaitSync(t, h, c, first.Addr)
	close(done)
	work.Wait()
	for _, a := range c.Addresses() {
		if a.LastError == "changed by the reader" {
			t.Error("what is read is what is kept")
		}
	}
}

// TestStreamsThatEndAsSoonAsTheyHaveSyncedSlowTheClientDown_C16: a server that crashes on
// a request would otherwise have to send everything again, several times a second.
func TestStreamsThatEndAsSoonAsTheyHaveSyncedSlowTheClientDown_C16(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{})
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) { sotw(c); c.MinBackoff, c.MaxBackoff = 10*time.Millisecond, time.Hour }, s.Addr)
		began := time.Now()
		for n := range 11 {
			s.Await("a stream", func(r fakexds.Request) bool { return r.Stream == n+1 })
			awaitSync(t, h, c, s.Addr)
			s.End(errDown)
			h.await(t, "its end", func() bool { return len(h.phases(Disconnected)) == n+1 })
		}
		// 11 pauses of 10 ms × 1.6^n, at the least half of that each: 560 ms.
		if took := time.Since(began); took < 500*time.Millisecond {
			t.Errorf("eleven streams within %v", took)
		}
	})
}
