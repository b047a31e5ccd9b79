package adsclient

import (
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/internal/testing/fakexds"
)

// TestARelistIsMarked_C4 counts marks in each type's responses.
func TestARelistIsMarked_C4(t *testing.T) {
	relists := func(h *recorder, typeURL string) (marks []bool) {
		for i, r := range h.responses {
			if strings.HasPrefix(r, typeURL) {
				marks = append(marks, h.relist[i])
			}
		}
		return marks
	}
	t.Run("the answer to each request, and not the first", func(t *testing.T) {
		inBubble(t, func(t *testing.T, nw *network) {
			s := nw.serve(t, "server", &fakexds.Server{})
			h := newRecorder()
			nw.start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = 30 * time.Millisecond }, s.Addr)
			h.await(t, "answers", func() bool { return len(relists(h, seURL)) >= 4 })
			h.mu.Lock()
			defer h.mu.Unlock()
			for i, marked := range relists(h, seURL) {
				if marked != (i > 0) {
					t.Errorf("response %d: marked is %v", i, marked)
				}
			}
		})
	})
	t.Run("no push", func(t *testing.T) {
		inBubble(t, func(t *testing.T, nw *network) {
			s := nw.serve(t, "server", &fakexds.Server{})
			h := newRecorder()
			nw.start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = time.Hour }, s.Addr)
			h.awaitResponses(t, 3)
			s.Push(seURL)
			h.awaitResponses(t, 4)
			if slices.Contains(h.relist, true) {
				t.Errorf("marks %v", h.relist)
			}
		})
	})
	t.Run("no push after the answer", func(t *testing.T) {
		inBubble(t, func(t *testing.T, nw *network) {
			s := nw.serve(t, "server", &fakexds.Server{})
			h := newRecorder()
			nw.start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = 2 * time.Second }, s.Addr) // long enough to push before the next one
			h.await(t, "a second answer", func() bool { return len(relists(h, seURL)) >= 2 })
			s.Push(seURL)
			h.await(t, "a third", func() bool { return len(relists(h, seURL)) >= 3 })
			h.mu.Lock()
			defer h.mu.Unlock()
			if marks := relists(h, seURL); !marks[1] || marks[2] {
				t.Errorf("marks %v", marks)
			}
		})
	})
	t.Run("not the first answer, however late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, nw *network) {
			s := nw.serve(t, "server", &fakexds.Server{})
			s.Withhold(seURL, true)
			h := newRecorder()
			nw.start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = 30 * time.Millisecond }, s.Addr)
			asked := 0
			s.Await("requests for it", func(r fakexds.Request) bool {
				if r.TypeURL == seURL {
					asked++
				}
				return asked == 3
			})
			s.Withhold(seURL, false)
			h.await(t, "answers", func() bool { return len(relists(h, seURL)) >= 3 })
			h.mu.Lock()
			defer h.mu.Unlock()
			if marks := relists(h, seURL); marks[0] || !marks[1] {
				t.Errorf("marks %v", marks)
			}
		})
	})
	t.Run("not what is asked for by name", func(t *testing.T) {
		inBubble(t, func(t *testing.T, nw *network) {
			s := nw.serve(t, "server", &fakexds.Server{})
			s.Set(edsURL, cluster("a"))
			h := newRecorder()
			startNamed(t, h, s, nw.over(func(c *Config) { c.ResyncInterval = 30 * time.Millisecond }), "a")
			h.awaitResponses(t, 4)
			if slices.Contains(h.relist, true) {
				t.Errorf("marks %v", h.relist)
			}
		})
	})
}

// TestRelistAsksForEverythingAgain_C4_C14: with an empty nonce on a SotW stream, with a new
// subscription to the wildcard on a delta stream.
func TestRelistAsksForEverythingAgain_C4_C14(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol func(*Config)
		names    []string
	}{
		"sotw":  {func(c *Config) { sotw(c); c.ResyncInterval = time.Hour }, nil},
		"delta": {delta, []string{"*"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{})
			s.Set(seURL, entry("a/b").WithVersion("1"))
			h := newRecorder()
			c := start(t, h, tc.protocol, s.Addr)
			h.awaitResponses(t, 3)
			if slices.Contains(h.relist, true) {
				t.Errorf("before: marks %v", h.relist)
			}
			first := len(s.Requests())
			c.Relist()
			h.awaitResponses(t, 6)
			h.mu.Lock()
			defer h.mu.Unlock()
			asked := map[string]bool{}
			for _, r := range s.Requests()[first:] {
				if r.Nonce == "" && slices.Equal(r.Names, tc.names) {
					asked[r.TypeURL] = true
				}
			}
			if len(asked) != 3 {
				t.Errorf("asked again for %v", asked)
			}
			if !slices.Equal(h.relist, []bool{false, false, false, true, true, true}) {
				t.Errorf("marks %v", h.relist)
			}
			again := h.responses[3:]
			if !slices.ContainsFunc(again, func(r string) bool { return strings.HasPrefix(r, seURL+" ") }) {
				t.Errorf("not everything came again: %q", again)
			}
		})
	}
	t.Run("nothing without a stream", func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{})
		h := newRecorder()
		c := newClient(t, h, sotw, s.Addr)
		c.Relist()
		runClient(t, c)
		h.awaitResponses(t, 3)
		s.Push(seURL)
		h.awaitResponses(t, 4)
		if slices.Contains(h.relist, true) {
			t.Errorf("marks %v", h.relist)
		}
	})
}
