package adsclient

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// TestATypeWithoutAnAnswerIsLetGo_C21: pushes of other types are no first answers.
func TestATypeWithoutAnAnswerIsLetGo_C21(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := &fakexds.Server{}
		nw.serve(t, "server", s)
		s.Withhold(meshURL, true)
		var asked [][]string
		var at time.Duration
		h := newRecorder()
		nw.start(t, h, func(c *Config) {
			began := time.Now()
			c.Protocol, c.ResyncInterval = SotW, time.Minute
			c.Silent = func(types []string) []string {
				asked, at = append(asked, types), time.Since(began)
				return nil
			}
		}, "server")
		h.awaitResponses(t, 2)
		for range 15 {
			s.Push(seURL)
			await.Pass(time.Second)
		}
		h.await(t, "the sync", func() bool { return h.synced == "server" })
		if len(asked) != 1 || !slices.Equal(asked[0], []string{meshURL}) || at < 10*time.Second || at > 15*time.Second {
			t.Errorf("asked about %v after %v", asked, at)
		}
		await.Pass(2 * time.Hour)
		if n := s.Streams(); n != 1 {
			t.Errorf("%d streams in two hours", n)
		}
		s.Withhold(meshURL, false)
		await.Pass(3 * time.Minute)
		h.mu.Lock()
		defer h.mu.Unlock()
		first := slices.IndexFunc(h.responses, func(r string) bool { return r == meshURL })
		if first < 0 || h.relist[first] {
			t.Errorf("the late answer is number %d, and counts as drift: %v", first, first >= 0 && h.relist[first])
		}
	})
}

// TestTypesThatAreAwaitedStallTheStream_C21, also if others are let go.
func TestTypesThatAreAwaitedStallTheStream_C21(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := &fakexds.Server{}
		nw.serve(t, "server", s)
		s.Offer(seURL)
		h := newRecorder()
		nw.start(t, h, func(c *Config) {
			c.Protocol = SotW
			c.Silent = func([]string) []string { return []string{vsURL} }
		}, "server")
		await.Pass(50 * time.Second)
		h.mu.Lock()
		defer h.mu.Unlock()
		want := "1 of 3 types were not answered and nothing came for 30s: " + vsURL + ";"
		i := slices.IndexFunc(h.states, at("server", Disconnected))
		if i < 0 || !strings.Contains(h.states[i].Err.Error(), want) {
			t.Errorf("states %v", h.states)
		}
	})
}

// streams returns when each stream began that a client opened in a time.
func streams(t *testing.T, s *fakexds.Server, within time.Duration, change func(*Config), addresses ...string) (begun []time.Duration) {
	inBubble(t, func(t *testing.T, nw *network) {
		nw.serve(t, addresses[0], s)
		for _, a := range addresses {
			nw.at[a] = nw.at[addresses[0]]
		}
		began := time.Now()
		h := newRecorder()
		nw.start(t, h, func(c *Config) {
			c.Protocol = SotW
			change(c)
		}, addresses...)
		for seen := 0; time.Since(began) < within; await.Pass(time.Second) {
			h.mu.Lock()
			for ; seen < len(h.states); seen++ {
				if h.states[seen].Phase == Streaming {
					begun = append(begun, time.Since(began))
				}
			}
			h.mu.Unlock()
		}
	})
	return begun
}

// TestTheOnlyAddressHasMoreTimeOnEachStream_C21, up to ten minutes. Answers that are repeated meanwhile do
// not count.
func TestTheOnlyAddressHasMoreTimeOnEachStream_C21(t *testing.T) {
	awaits := func(c *Config) {
		c.ResyncInterval = 4 * time.Minute
		c.Silent = func(types []string) []string { return types }
	}
	for name, tc := range map[string]struct {
		offers    []string
		addresses []string
		want      []time.Duration
	}{
		"some answers":  {[]string{seURL}, []string{"a"}, []time.Duration{30, 60, 120, 240, 480, 600, 600, 600}},
		"no answers":    {[]string{"none"}, []string{"a"}, []time.Duration{30, 30, 30, 30, 30, 30}},
		"two addresses": {[]string{seURL}, []string{"a", "b"}, []time.Duration{30, 30, 30, 30, 30, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &fakexds.Server{}
			begun := streams(t, s, 2*time.Hour, func(c *Config) { awaits(c); s.Offer(tc.offers...) }, tc.addresses...)
			for i, want := range tc.want {
				if i+1 >= len(begun) {
					t.Fatalf("streams after %v", begun)
				}
				if lasted := begun[i+1] - begun[i]; lasted < want*time.Second || lasted > (want+90)*time.Second {
					t.Errorf("stream %d is followed by another after %v, want %v", i, lasted, want*time.Second)
				}
			}
		})
	}
}

// TestASyncEndsThePatience_C21: the next stall is judged as the first one.
func TestASyncEndsThePatience_C21(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := &fakexds.Server{}
		nw.serve(t, "server", s)
		s.Offer(seURL)
		h := newRecorder()
		nw.start(t, h, sotw, "server")
		await.Pass(10 * time.Minute)
		s.Offer()
		await.Pass(20 * time.Minute)
		h.await(t, "a sync", func() bool { return h.synced == "server" })
		s.Offer(seURL)
		streams := s.Streams()
		s.End(nil)
		await.Pass(90 * time.Second)
		if n := s.Streams() - streams; n < 2 {
			t.Errorf("%d streams in 90 s after a sync", n)
		}
	})
}

// TestSilenceShorterThanSyncTimeoutIsWaitedFor_C21: with a short SyncTimeout, a server that has answered
// something is not left before types are let go.
func TestSilenceShorterThanSyncTimeoutIsWaitedFor_C21(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := &fakexds.Server{}
		nw.serve(t, "server", s)
		s.Withhold(meshURL, true)
		h := newRecorder()
		nw.start(t, h, func(c *Config) {
			c.Protocol, c.SyncTimeout = SotW, time.Second
			c.Silent = func([]string) []string { return nil }
		}, "server", "other")
		h.await(t, "the first answer", func() bool { return len(h.responses) > 0 })
		await.Pass(15 * time.Second)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.synced != "server" || s.Streams() != 1 {
			t.Errorf("synced with %q after %d streams", h.synced, s.Streams())
		}
	})
}

func TestQuietCountsOnlyTheTimeOfTheServer(t *testing.T) {
	type look struct {
		after, times   int // seconds, number of looks
		frames, firsts int64
		busy, receives bool
	}
	for rule, tc := range map[string]struct {
		looks        []look
		frame, first int // seconds
	}{
		"silence":                                  {[]look{{1, 12, 0, 1, false, false}}, 12, 11},
		"repeated answers are no first ones":       {[]look{{1, 1, 1, 1, false, false}, {1, 1, 2, 1, false, false}, {1, 1, 3, 1, false, false}}, 0, 2},
		"a first answer ends it":                   {[]look{{1, 9, 0, 1, false, false}, {1, 1, 1, 2, false, false}}, 0, 0},
		"a handler that is busy":                   {[]look{{1, 1, 1, 1, false, false}, {1, 60, 1, 1, true, true}}, 0, 0},
		"a response on its way":                    {[]look{{1, 1, 1, 1, false, false}, {1, 1, 2, 1, false, true}, {1, 1, 3, 1, false, true}}, 0, 0},
		"a response that is stuck":                 {[]look{{1, 1, 1, 1, false, false}, {1, 1, 2, 1, false, true}, {1, 9, 2, 1, false, true}}, 9, 9},
		"time in which the process stood still":    {[]look{{1, 1, 1, 1, false, false}, {3600, 1, 1, 1, false, false}}, 2, 2},
		"a handler that was busy does not restart": {[]look{{1, 1, 1, 1, false, false}, {1, 5, 1, 1, false, false}, {1, 5, 2, 1, true, true}, {1, 4, 2, 1, false, false}}, 4, 9},
	} {
		t.Run(rule, func(t *testing.T) {
			now := time.Unix(0, 0)
			q := quiet{every: time.Second, last: now}
			for _, l := range tc.looks {
				for range l.times {
					now = now.Add(time.Duration(l.after) * time.Second)
					q.look(now, l.frames, l.firsts, l.busy, l.receives)
				}
			}
			if q.frame != time.Duration(tc.frame)*time.Second || q.first != time.Duration(tc.first)*time.Second {
				t.Errorf("no frame for %v, no first answer for %v; want %d s and %d s", q.frame, q.first, tc.frame, tc.first)
			}
		})
	}
}

// TestAResponseCountsAsReceivedInPart_C16: until its end comes.
func TestAResponseCountsAsReceivedInPart_C16(t *testing.T) {
	conns, _ := crowd(10<<20, 1)
	r := conns[0]
	holds := func() bool { _, receives := r.busy(); return receives }
	if holds() {
		t.Error("received before anything came")
	}
	r.take(shortRead)
	if holds() || r.progress.Load() != 1 {
		t.Error("a little counts")
	}
	r.take(16 << 10)
	if !holds() {
		t.Error("a part does not count")
	}
	r.handle()
	r.handled()
	if holds() {
		t.Error("what was handled still counts")
	}
}

// TestSilentRunsAlone: never with a method of the handler.
func TestSilentRunsAlone(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Withhold(vsURL, true)
	h := &alone{recorder: newRecorder()}
	var asked atomic.Int32
	start(t, h, func(c *Config) {
		c.Protocol, c.SyncTimeout, c.Silence = SotW, 20*time.Second, time.Millisecond
		c.Silent = func(types []string) []string {
			defer h.enter()()
			asked.Add(1)
			return types
		}
	}, s.Addr)
	h.awaitResponses(t, 2)
	for n := 2; n < 500 || asked.Load() == 0; {
		for range 25 {
			s.Push(seURL)
			n++
		}
		h.awaitResponses(t, n)
	}
	if h.twice.Load() {
		t.Error("Silent ran at the same time as a method of the handler")
	}
}

// TestAProbeAsksForATypeThatIsOffered_C16: a preferred address without MeshConfig is taken up again.
func TestAProbeAsksForATypeThatIsOffered_C16(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		first, second := nw.serve(t, "first", &fakexds.Server{}), nw.serve(t, "second", &fakexds.Server{})
		first.Withhold(meshURL, true)
		second.Withhold(meshURL, true)
		first.Fail(errDown)
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) {
			failback(20 * time.Millisecond)(c)
			c.SyncTimeout, c.Silence = time.Second, 50*time.Millisecond
			c.Silent = func([]string) []string { return nil }
		}, first.Addr, second.Addr)
		awaitSync(t, h, c, second.Addr)
		first.Fail(nil)
		awaitSync(t, h, c, first.Addr)
	})
}
