package adsclient

import (
	"cmp"
	"crypto/x509"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/fakexds"
)

// impatient makes the times short, for bubbles.
func impatient(c *Config) {
	c.Protocol = SotW
	c.SyncTimeout = 300 * time.Millisecond
	c.FailbackAfter = -1
	c.connectTimeout = 500 * time.Millisecond
	c.soon = 1
}

// large returns a resource of some n bytes.
func large(name string, n int) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{strings.Repeat("x", n)}})
}

// has reports whether the recorder, which is locked, was told of such a state.
func (h *recorder) has(match func(State) bool) bool { return slices.ContainsFunc(h.states, match) }

func at(address string, phase Phase) func(State) bool {
	return func(s State) bool { return s.Address == address && s.Phase == phase }
}

// awaitSync waits until an address has answered everything.
func awaitSync(t *testing.T, h *recorder, c *Client, address string) {
	t.Helper()
	h.await(t, "the sync with "+address, func() bool { return h.synced == address }, func() any { return c.Addresses() })
}

// TestABadAddressIsLeftForTheNext_C16 has a second address that works, and a first one
// that does not.
func TestABadAddressIsLeftForTheNext_C16(t *testing.T) {
	serve := func(change func(*fakexds.Server)) func(*testing.T, *network) string {
		return func(t *testing.T, nw *network) string {
			change(nw.serve(t, "bad", &fakexds.Server{}))
			return "bad"
		}
	}
	fails := func(err error) func(*testing.T, *network) string {
		return serve(func(s *fakexds.Server) { s.Fail(err) })
	}
	wire := func(t *testing.T, nw *network) *netProxy {
		s := nw.serve(t, "behind the wire", &fakexds.Server{})
		s.Set(seURL, large("shop/a", 1<<20))
		return nw.between(t, "bad", s)
	}
	for _, tc := range []struct {
		rule string
		bad  func(*testing.T, *network) string
		// reason is a part of the reason; answered is set when the bad address answers something.
		reason   string
		answered bool
		phase    Phase
	}{
		{"accepts connections and sends nothing", func(t *testing.T, nw *network) string {
			wire(t, nw).Freeze()
			return "bad"
		}, "", false, Disconnected},
		{"unauthenticated", fails(status.Error(codes.Unauthenticated, "who?")), "who?", false, Denied},
		{"denied", fails(status.Error(codes.PermissionDenied, "not you")), "not you", false, Denied},
		{"not ready", fails(status.Error(codes.Unavailable, "not yet")), "not yet", false, Disconnected},
		{"never answers", serve(func(s *fakexds.Server) {
			for _, u := range []string{meshURL, seURL, vsURL} {
				s.Withhold(u, true)
			}
		}), "3 of 3 types were not answered", false, Disconnected},
		{"never answers one type", serve(func(s *fakexds.Server) { s.Withhold(seURL, true) }), "1 of 3 types were not answered and nothing came for 300ms: " + seURL, true, Disconnected},
		{"stalls in the middle of a response", func(t *testing.T, nw *network) string {
			wire(t, nw).After.Store(200 << 10)
			return "bad"
		}, seURL, true, Disconnected},
		{"resets in the middle of a response", func(t *testing.T, nw *network) string {
			w := wire(t, nw)
			w.After.Store(200 << 10)
			w.Reset.Store(true)
			return "bad"
		}, "", true, Disconnected},
		{"sends what is too large", serve(func(s *fakexds.Server) { s.Set(seURL, large("shop/a", 3<<20)) }), "limit of 2097152 bytes", true, Disconnected},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			inBubble(t, func(t *testing.T, nw *network) {
				good, bad := nw.serve(t, "good", &fakexds.Server{}), tc.bad(t, nw)
				leaves(t, nw.over(impatient), bad, good, tc.reason, tc.answered, tc.phase)
			})
		})
	}
	// These are of the dialer and of the network of the machine.
	for rule, bad := range map[string]string{"unreachable": "127.0.0.1:1", "name that does not exist": "no.such.name.invalid:15010"} {
		t.Run(rule, func(t *testing.T) {
			reason := map[string]string{"unreachable": "connection refused"}[rule]
			nothing := &names{records: map[string][]string{}}
			leaves(t, resolving(nothing.resolver(t), func(string) {}), bad, fakexds.Start(t, &fakexds.Server{}), cmp.Or(reason, "no such host"), false, Disconnected)
		})
	}
}

// leaves fails the test unless a client leaves the bad address, for the reason and in the phase, and stays at
// the good one. answered is set when the bad address answers something.
func leaves(t *testing.T, change func(*Config), bad string, good *fakexds.Server, reason string, answered bool, phase Phase) {
	t.Helper()
	good.Set(seURL, entry("shop/a"))
	h := newRecorder()
	c := start(t, h, func(c *Config) { change(c); c.MaxResponseBytes = 2 << 20 }, bad, good.Addr)
	awaitSync(t, h, c, good.Addr)
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.states, at(bad, phase))
	if i < 0 || h.states[i].Answered != answered || !strings.Contains(h.states[i].Err.Error(), reason) {
		t.Fatalf("states %v", h.states)
	}
	if !h.has(at(good.Addr, Connected)) || c.Switches() != map[bool]uint64{true: 1}[answered] {
		t.Errorf("states %v, %d switches", h.states, c.Switches())
	}
	for i, r := range h.responses {
		if strings.Contains(r, " -") || !h.complete[i] {
			t.Errorf("the handler was told of a deletion: %s", r)
		}
	}
	all := c.Addresses()
	if a := all[0]; a.Active || a.LastError == "" || !strings.Contains(a.LastError, reason) || !a.HealthySince.IsZero() || a.LastAttempt.IsZero() {
		t.Errorf("bad address: %+v", a)
	}
	if a := all[1]; !a.Active || a.LastError != "" || a.HealthySince.IsZero() || a.LastAttempt.IsZero() {
		t.Errorf("good address: %+v", a)
	}
}

// TestASlowLinkIsWaitedFor has responses that take several times the SyncTimeout, over a
// slow link.
func TestASlowLinkIsWaitedFor_C16(t *testing.T) {
	for _, link := range []string{"plaintext", "TLS"} {
		t.Run(link, func(t *testing.T) {
			inBubble(t, func(t *testing.T, nw *network) {
				s, change := &fakexds.Server{}, impatient
				if link == "TLS" {
					a := newAuthority(t)
					s.Options = a.demands(t)
					a.issue(t, "client", x509.ExtKeyUsageClientAuth)
					tls := withTLS(t, TLSFiles{CAFile: a.file("ca"), CertFile: a.file("client"), KeyFile: a.file("client-key")}, "istiod.istio-system.svc")
					change = func(c *Config) { impatient(c); tls(c) }
				}
				nw.serve(t, "server", s)
				s.Set(seURL, large("shop/a", 192<<10))
				w := nw.between(t, "slow", s)
				w.Pace = rate.NewLimiter(96<<10, 1<<10)
				w.Pace.ReserveN(time.Now(), 1<<10) // it starts empty
				h := newRecorder()
				c := nw.start(t, h, change, "slow", "nowhere")
				began := time.Now()
				awaitSync(t, h, c, "slow")
				if took := time.Since(began); took < 4*300*time.Millisecond {
					t.Errorf("it took %v only: the link is not slow", took)
				}
				if n := s.Streams(); n != 1 {
					t.Errorf("%d streams", n)
				}
			})
		})
	}
}

// TestTheOnlyAddressIsTriedAgainWhenItStalls: the server has everything but one type for
// some time.
func TestTheOnlyAddressIsTriedAgainWhenItStalls_C21(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{})
		s.Withhold(seURL, true)
		h := newRecorder()
		c := nw.start(t, h, impatient, s.Addr)
		s.Await("a second stream", func(r fakexds.Request) bool { return r.Stream == 2 })
		s.Withhold(seURL, false)
		awaitSync(t, h, c, s.Addr)
		if n := c.Switches(); n != 0 {
			t.Errorf("%d switches with one address", n)
		}
		if a := c.Addresses()[0]; a.LastError != "" || !a.Active {
			t.Errorf("%+v", a)
		}
	})
}

// TestAHandlerThatTakesItsTimeIsNoStall: while it has a response nothing is read. It keeps one for as long
// as another client, with the same timeout, takes to give up two streams on which nothing comes.
func TestAHandlerThatTakesItsTimeIsNoStall(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		silent := nw.serve(t, "silent", &fakexds.Server{})
		silent.Withhold(seURL, true)
		s := nw.serve(t, "s", &fakexds.Server{})
		s.Set(vsURL, large("shop/a", 4<<20)) // more than windows and buffers hold
		h := newRecorder()
		begun, done := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(begun) })
		h.reject = func(r *Response) error {
			if r.TypeURL == seURL {
				begin()
				<-done // it works
			}
			return nil
		}
		finish := sync.OnceFunc(func() { close(done) })
		c := nw.start(t, h, impatient, s.Addr)
		t.Cleanup(finish) // before the end of the client, which waits for the handler
		<-begun
		nw.start(t, newRecorder(), impatient, silent.Addr)
		silent.Await("a third stream", func(r fakexds.Request) bool { return r.Stream == 3 })
		finish()
		awaitSync(t, h, c, s.Addr)
		if n := s.Streams(); n != 1 {
			t.Errorf("%d streams", n)
		}
	})
}

// TestNamesHaveNoSyncTimeout_N2: what is asked for by name may not be there yet.
func TestNamesHaveNoSyncTimeout_N2(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{})
		s.Withhold(edsURL, true)
		h := newRecorder()
		startNamed(t, h, s, nw.over(func(c *Config) { c.SyncTimeout, c.ResyncInterval = time.Millisecond, 50*time.Millisecond }), "a")
		asked := 0
		s.Await("more requests on the same stream", func(r fakexds.Request) bool {
			asked++
			return asked == 6
		})
		if n := s.Streams(); n != 1 {
			t.Errorf("%d streams", n)
		}
	})
}

func TestAnEndInTheCourseOfThingsIsFollowedByTheSameAddress_C18(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first := nw.serve(t, "first", &fakexds.Server{})
		first.Fail(status.Error(codes.Unavailable, "not ready"))
		second := nw.serve(t, "second", &fakexds.Server{Options: []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 100 * time.Millisecond, MaxConnectionAgeGrace: 20 * time.Millisecond,
		})}})
		h := newRecorder()
		c := nw.start(t, h, impatient, first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		tried := first.Streams()
		for n := range 3 {
			h.await(t, "another stream", func() bool {
				count := 0
				for _, s := range h.states {
					if at(second.Addr, Connected)(s) {
						count++
					}
				}
				return count > n+1
			})
		}
		if n := first.Streams(); n != tried {
			t.Errorf("the first address was tried %d times meanwhile", n-tried)
		}
		if c.Switches() != 0 {
			t.Errorf("%d switches", c.Switches())
		}
	})
}

// TestDeltaResumesAcrossASwitch_C14: the second server is told what is held from the first.
func TestDeltaResumesAcrossASwitch_C14(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first := nw.serve(t, "first", &fakexds.Server{Relay: true})
		second := nw.serve(t, "second", &fakexds.Server{Relay: true})
		for _, s := range []*fakexds.Server{first, second} {
			s.Set(seURL, entry("shop/a").WithVersion("1"), entry("shop/b").WithVersion("2"))
		}
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) { impatient(c); c.Protocol = Auto }, first.Addr, second.Addr)
		awaitSync(t, h, c, first.Addr)
		h.mu.Lock()
		h.held = map[string]map[string]string{seURL: {"shop/a": "1", "shop/b": "2"}}
		h.mu.Unlock()
		first.Stop()
		awaitSync(t, h, c, second.Addr)
		req := second.Await("the subscription", func(r fakexds.Request) bool { return r.TypeURL == seURL && r.Nonce == "" })
		if len(req.Held) != 2 || req.Held["shop/b"] != "2" {
			t.Errorf("held: %q", req.Held)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		n := 0
		for i, r := range h.responses {
			if r == seURL && !h.complete[i] {
				n++ // nothing to send, nothing to remove
			}
		}
		if n != 1 || c.Switches() != 1 {
			t.Errorf("responses %q, %d switches", h.responses, c.Switches())
		}
	})
}

// TestASilentConnectionIsNoticed_C17 has a server that vanishes while its host's kernel
// still answers: nothing but pings can tell. gRPC allows for none more often than 10 s.
func TestASilentConnectionIsNoticed_C17(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, second := nw.serve(t, "first", &fakexds.Server{}), nw.serve(t, "second", &fakexds.Server{})
		w := nw.between(t, "wire", first)
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) {
			impatient(c)
			c.keepalive = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}
		}, w.Addr, second.Addr)
		awaitSync(t, h, c, w.Addr)
		w.Freeze()
		began := time.Now()
		awaitSync(t, h, c, second.Addr)
		if took := time.Since(began); took < 9*time.Second || took > 15*time.Second {
			t.Errorf("noticed after %v", took)
		}
	})
}

// TestPausesGrowAreBoundedAndDiffer_A57 watches clients of servers that are gone for two
// hours.
func TestPausesGrowAreBoundedAndDiffer_A57(t *testing.T) {
	for _, addresses := range [][]string{{"127.0.0.1:1"}, {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}} {
		watch := func() (rounds []time.Duration) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				n := 0
				dialled := make(chan string, 100)
				newCfg := func(c *Config) {
					c.Protocol, c.MinBackoff, c.MaxBackoff = SotW, 250*time.Millisecond, 30*time.Second
					c.DialOptions = append(c.DialOptions, countingDialer(func(address string) { dialled <- address }))
				}
				runClient(t, newClient(t, newRecorder(), newCfg, addresses...))
				for time.Since(began) < 2*time.Hour {
					if address := <-dialled; address != addresses[n%len(addresses)] {
						t.Fatalf("attempt %d is to %s", n, address)
					}
					if n%len(addresses) == 0 {
						rounds = append(rounds, time.Since(began))
					}
					n++
				}
			})
			return rounds
		}
		rounds, others := watch(), watch()
		for i := 1; i < len(rounds); i++ {
			pause := rounds[i] - rounds[i-1]
			if pause < 100*time.Millisecond || pause > 46*time.Second {
				t.Fatalf("round %d comes after %v", i, pause)
			}
			if i > 20 && pause < 15*time.Second {
				t.Fatalf("round %d comes after %v: the pause does not grow", i, pause)
			}
		}
		if n := len(rounds); n < 2*60 || n > 2*60*4 {
			t.Errorf("%d rounds in two hours", n)
		}
		if slices.Equal(rounds[1:10], others[1:10]) {
			t.Error("two clients come at the same moments")
		}
	}
}
