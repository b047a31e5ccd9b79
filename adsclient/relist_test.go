package adsclient

import (
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/internal/fakexds"
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
		s := fakexds.Start(t, &fakexds.Server{})
		h := newRecorder()
		start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = 30 * time.Millisecond }, s.Addr)
		h.await(t, "answers", func() bool { return len(relists(h, seURL)) >= 4 })
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, marked := range relists(h, seURL) {
			if marked != (i > 0) {
				t.Errorf("response %d: marked is %v", i, marked)
			}
		}
	})
	t.Run("no push", func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{})
		h := newRecorder()
		start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = time.Hour }, s.Addr)
		h.awaitResponses(t, 3)
		s.Push(seURL)
		h.awaitResponses(t, 4)
		if slices.Contains(h.relist, true) {
			t.Errorf("marks %v", h.relist)
		}
	})
	t.Run("no push after the answer", func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{})
		h := newRecorder()
		start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = 300 * time.Millisecond }, s.Addr)
		h.await(t, "a second answer", func() bool { return len(relists(h, seURL)) == 2 })
		s.Push(seURL)
		h.await(t, "a third", func() bool { return len(relists(h, seURL)) >= 3 })
		h.mu.Lock()
		defer h.mu.Unlock()
		if marks := relists(h, seURL); !marks[1] || marks[2] {
			t.Errorf("marks %v", marks)
		}
	})
	t.Run("not the first answer, however late", func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{})
		s.Withhold(seURL, true)
		h := newRecorder()
		start(t, h, func(c *Config) { sotw(c); c.ResyncInterval = 30 * time.Millisecond }, s.Addr)
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
	t.Run("not what is asked for by name", func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{})
		s.Set(edsURL, cluster("a"))
		h := newRecorder()
		startNamed(t, h, s, func(c *Config) { c.ResyncInterval = 30 * time.Millisecond }, "a")
		h.awaitResponses(t, 4)
		if slices.Contains(h.relist, true) {
			t.Errorf("marks %v", h.relist)
		}
	})
}
