package upstreams

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"meshrelay/config"
)

const (
	startupTimeout = 30 * time.Second
	early, late    = startupTimeout - 1, startupTimeout
)

var end = time.Unix(1_000_000, 0)

func TestWhoClientsWaitForAtTheStart(t *testing.T) {
	// Kinds of starts: with a state or not, and whether that has served.
	const (
		fresh  = "fresh state"
		served = "state that has served"
		none   = "no state"
	)
	for _, tc := range []struct {
		state string
		c     candidate
		// early and late are how it is before and after startupTimeout: "waits for ever",
		// "waits" (until then), or "" (does not); reason is part of why.
		early, late, reason string
	}{
		{fresh, candidate{mode: "auto"}, "waits for ever", "waits for ever", "never served from this state.dir"},
		{served, candidate{mode: "auto"}, "waits", "", "it is new"},
		{none, candidate{mode: "auto"}, "waits", "", "set state.dir, or firstSync: wait"},

		{fresh, candidate{mode: "auto", mayWait: MayWaitHolds}, "waits", "", "holds its own clients"},
		{fresh, candidate{mode: "auto", mayWait: becauseClient}, "waits", "", "that of a client"},
		{fresh, candidate{mode: "auto", mayWait: becauseView}, "waits", "", "that of a view"},
		{fresh, candidate{mode: "auto", mayWait: MayWaitSameName}, "waits", "", "name of this relay"},
		{served, candidate{mode: "auto", mayWait: MayWaitHolds}, "waits", "", "it is new"},
		{none, candidate{mode: "auto", mayWait: MayWaitHolds}, "waits", "", "state.dir"},

		{fresh, candidate{mode: "wait"}, "waits for ever", "waits for ever", "firstSync is wait"},
		{served, candidate{mode: "wait"}, "waits for ever", "waits for ever", "firstSync is wait"},
		{none, candidate{mode: "wait"}, "waits for ever", "waits for ever", "firstSync is wait"},
		{fresh, candidate{mode: "wait", mayWait: MayWaitHolds}, "waits for ever", "waits for ever", "firstSync is wait"},
		{fresh, candidate{mode: "wait", added: true}, "waits for ever", "waits for ever", "firstSync is wait"},

		{fresh, candidate{mode: "optional"}, "", "", "firstSync is optional"},
		{served, candidate{mode: "optional"}, "", "", "firstSync is optional"},
		{none, candidate{mode: "optional"}, "", "", "firstSync is optional"},

		{fresh, candidate{mode: "auto", added: true}, "", "", "added by a reload"},
		{none, candidate{mode: "auto", added: true}, "", "", "added by a reload"},

		{fresh, candidate{mode: "auto", without: true}, "", "", "serve-without"},
		{served, candidate{mode: "auto", without: true}, "", "", "serve-without"},
		{none, candidate{mode: "wait", without: true}, "", "", "serve-without"},
	} {
		for i, when := range []string{tc.early, tc.late} {
			elapsed := []time.Duration{early, late}[i]
			s := start{kept: tc.state != none, served: tc.state == served, elapsed: elapsed, timeout: startupTimeout, until: end}
			tc.c.name = "east"
			verdicts := s.decide([]candidate{tc.c})
			if len(verdicts) != 1 || verdicts[0].name != "east" {
				t.Fatalf("%s, %+v: %+v", tc.state, tc.c, verdicts)
			}
			v := verdicts[0]
			got := ""
			switch {
			case v.Awaited && v.Until.IsZero():
				got = "waits for ever"
			case v.Awaited && v.Until.Equal(end):
				got = "waits"
			}
			if got != when || !strings.Contains(v.Reason, tc.reason) {
				t.Errorf("%s, %+v, after %v: %q (%s), want %q (%s)", tc.state, tc.c, elapsed, got, v.Reason, when, tc.reason)
			}
		}
	}
}

func TestWhatIsKnownIsNotWaitedFor(t *testing.T) {
	s := start{kept: true, timeout: startupTimeout}
	for _, mode := range []string{"auto", "wait", "optional"} {
		if v := s.decide([]candidate{{name: "east", mode: mode, known: true}}); len(v) != 0 {
			t.Errorf("%s: %+v", mode, v)
		}
	}
}

// TestTheWaitOnlyEverEnds draws any sources: as time passes, and as they sync, are given up,
// or are seen to wait themselves, nobody is waited for who was not before.
func TestTheWaitOnlyEverEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := start{kept: rapid.Bool().Draw(t, "kept"), timeout: startupTimeout, until: end}
		s.served = s.kept && rapid.Bool().Draw(t, "served")
		var all []candidate
		for i := range rapid.IntRange(1, 4).Draw(t, "sources") {
			all = append(all, candidate{
				name:  fmt.Sprint("s", i),
				mode:  rapid.SampledFrom([]string{config.FirstSyncAuto, config.FirstSyncWait, config.FirstSyncOptional}).Draw(t, "mode"),
				known: rapid.Bool().Draw(t, "known"), added: rapid.Bool().Draw(t, "added"),
			})
		}
		before := s.decide(all)
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			c := &all[rapid.IntRange(0, len(all)-1).Draw(t, "source")]
			switch rapid.SampledFrom([]string{"time", "syncs", "without", "holds"}).Draw(t, "step") {
			case "time":
				s.elapsed += startupTimeout / 2
			case "syncs":
				c.known = true
			case "without":
				c.without = true
			case "holds":
				c.mayWait = MayWaitHolds
			}
			now := s.decide(all)
			for _, v := range now {
				had := slices.ContainsFunc(before, func(b verdict) bool { return b.name == v.name && b.Awaited })
				if v.Awaited && !had {
					t.Fatalf("%+v is waited for now: %+v", v, s)
				}
				if v.Awaited && !v.Until.IsZero() && s.elapsed >= startupTimeout {
					t.Fatalf("%+v is waited for beyond the timeout: %+v", v, s)
				}
				if v.Reason == "" {
					t.Fatalf("%+v has no reason", v)
				}
			}
			before = now
		}
	})
}

func TestAPatternForEveryClusterSaysNothingOfOne(t *testing.T) {
	patterns := clustersOf([]config.View{
		{ClusterID: "east"}, {Match: config.Match{ClusterIDs: []string{"*", "prod-*", "**"}}}, {},
	})
	for cluster, want := range map[string]bool{"east": true, "prod-1": true, "west": false, "prod": false} {
		if got := isOneOf(cluster, patterns); got != want {
			t.Errorf("%s: %v, want %v (%q)", cluster, got, want, patterns)
		}
	}
}
