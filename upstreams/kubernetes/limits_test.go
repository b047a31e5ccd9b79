package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/config"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
)

// What was refused for want of room is listed once more, as nobody tells of it again.
func TestARunningSourceFollowsTheLimitsOfAReload_K7(t *testing.T) {
	for name, settings := range map[string][2]string{
		"more bytes":     {"{maxBytes: 40000}", "{maxBytes: 400000}"},
		"more resources": {"{maxResources: 10}", "{maxResources: 100}"},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			for i := range 40 {
				s.entry(fmt.Sprintf("shop/a%02d", i), strings.Repeat("a", 1000))
			}
			w := s.mirrors("", "  limits: "+settings[0]+"\n")
			w.synced()
			w.until("some are refused", func() bool { return len(w.has()) < 40 && w.status().RefusedTotal > 0 })
			source := w.source
			w.reload("", "  limits: "+settings[1]+"\n")
			w.until("all are served", func() bool { return len(w.has()) == 40 && w.status().RefusedTotal == 0 })
			if w.source != source {
				t.Error("another source runs")
			}
		})
	}
}

func TestARunningSourceFollowsALowerLimitOfAReload_K7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		for i := range 400 {
			s.entry(fmt.Sprintf("shop/a%03d", i), "a.x")
		}
		w := s.mirrors("", "")
		w.synced()
		w.reload("", "  limits: {maxBytes: 40000}\n")
		w.relist()
		w.until("the list is an error", func() bool {
			return strings.Contains(w.status().LastError, "more objects of the kind than limits.maxBytes of the upstream (40000)")
		})
		if n := len(w.has()); n != 400 {
			t.Errorf("%d of 400 are served", n)
		}
		w.reload("", "")
		w.synced()
	})
}

// A list refuses nothing that its events would bring, whatever it takes to read it, and nothing that is held.
func TestAListFillsTheLimitsAsEventsDo_K7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		for i := range 100 {
			s.entry(fmt.Sprintf("shop/a%02d", i), "a.x")
		}
		w := s.mirrors("", "  limits: {maxBytes: 48000}\n")
		w.synced()
		check := func(when string) {
			t.Helper()
			if st := w.status(); len(w.has()) != 100 || st.RefusedTotal > 0 {
				t.Errorf("%s: %d of 100 are served, %d refused: %v", when, len(w.has()), st.RefusedTotal, st.Refused[:min(1, len(st.Refused))])
			}
		}
		check("a first list")
		lists := s.Asked("/serviceentries", "sendInitialEvents")
		w.relist()
		w.until("it is listed anew", func() bool { return s.Asked("/serviceentries", "sendInitialEvents") > lists })
		w.synced()
		check("a list of the same")
		for i := range 100 {
			s.entry(fmt.Sprintf("shop/a%02d", i), "b.x")
		}
		s.entry("shop/last", "c.x")
		w.until("the last is there", func() bool { return len(w.has()) == 101 })
		if n := w.status().RefusedTotal; n > 0 {
			t.Errorf("events: %d refused", n)
		}
	})
}

// Limits of found clusters change whenever another cluster comes or goes: nobody is listed for that.
func TestOtherLimitsListOnlyWhatLacksRoom_K7(t *testing.T) {
	s := &Source{st: newStatus(), lists: object.NewBudget(0)}
	var relisted []string // sorted, as Limit goes by kind
	for name, shown := range map[string]CollectionState{"follows": Following, "cramped": Following, "fails": Failing} {
		c := &collection{source: s, shown: shown}
		c.entry = &ledger.Entry{Relist: func() { relisted = append(relisted, name) }}
		c.Kind.Kind = name
		c.entry.Cramped.Store(name == "cramped")
		s.st.collections[c.Kind] = []*collection{c}
	}
	listed := func(want string) {
		t.Helper()
		if fmt.Sprint(relisted) != want {
			t.Errorf("listed: %s, want %s", relisted, want)
		}
		relisted = nil
	}
	s.Limit(config.Limits{MaxBytes: 100})
	listed("[]") // there was no limit before
	s.Limit(config.Limits{MaxBytes: 100})
	listed("[]")
	s.Limit(config.Limits{MaxBytes: 50})
	listed("[]")
	s.Limit(config.Limits{MaxBytes: 51})
	listed("[cramped fails]")
	s.Limit(config.Limits{})
	listed("[cramped fails]")
}
