package main

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func roundsOf(seed uint64, sc scenario, n int) (first []change, rounds [][]step) {
	w := newWorld(sc.sources, sc.keys, cmp.Or(sc.most, 2), newJournal(io.Discard))
	s := newSchedule(seed, sc, len(sc.sources), w.holders)
	first = s.first()
	for range n {
		rounds = append(rounds, s.round())
	}
	return first, rounds
}

func TestScheduleFollowsFromTheSeedAlone(t *testing.T) {
	for _, sc := range scenarios() {
		first, rounds := roundsOf(7, sc, 4)
		again, roundsAgain := roundsOf(7, sc, 4)
		if !reflect.DeepEqual(first, again) || !reflect.DeepEqual(rounds, roundsAgain) {
			t.Errorf("%s: the same seed gives another schedule", sc.name)
		}
		if _, other := roundsOf(8, sc, 4); reflect.DeepEqual(rounds, other) {
			t.Errorf("%s: another seed gives the same schedule", sc.name)
		}
	}
}

func TestFaultsEndWithinTheirRoundAndDoNotOverlapOnOneThing(t *testing.T) {
	for _, sc := range append(scenarios(), hugeScenario()) {
		seen := map[string]int{}
		for seed := range uint64(20) {
			_, rounds := roundsOf(seed, sc, 5)
			for _, steps := range rounds {
				busy := map[string]*fault{}
				var at time.Duration
				for _, s := range steps {
					if s.at < at || s.at > sc.round {
						t.Fatalf("%s: a step at %v after one at %v, in a round of %v", sc.name, s.at, at, sc.round)
					}
					if at = s.at; s.fault == nil {
						continue
					}
					info, ok := faultKinds[s.fault.kind]
					if !ok {
						t.Fatalf("%s: there is no fault %q", sc.name, s.fault.kind)
					}
					for _, name := range info.claims(sc, s.fault.target) {
						switch {
						case s.ends && busy[name] != s.fault:
							t.Fatalf("%s: %s ends and has not begun", sc.name, s.fault.kind)
						case s.ends:
							delete(busy, name)
						case busy[name] != nil, busy[everything] != nil, name == everything && len(busy) > 0:
							t.Fatalf("%s: %s begins on %s while there is %v", sc.name, s.fault.kind, name, busy)
						default:
							busy[name] = s.fault
						}
					}
					seen[s.fault.kind]++
				}
				if len(busy) > 0 {
					t.Fatalf("%s: %v has not ended with the round", sc.name, busy)
				}
			}
		}
		for _, kind := range sc.faults {
			if seen[kind] == 0 {
				t.Errorf("%s: %s never happens", sc.name, kind)
			}
		}
	}
}

// A guard counts deletions of a minute together, and must not mind these.
func TestChangesDeleteLessThanAGuardHolds(t *testing.T) {
	sc, err := choose("links")
	if err != nil {
		t.Fatal(err)
	}
	first, rounds := roundsOf(3, sc[0], 20)
	has := map[int]map[int]bool{}
	for _, c := range first {
		if has[c.source] == nil {
			has[c.source] = map[int]bool{}
		}
		has[c.source][c.key] = true
	}
	most, deletes := map[int]int{}, 0
	for _, steps := range rounds {
		for _, s := range steps {
			if c := s.change; c != nil {
				if c.deletes {
					if !has[c.source][c.key] {
						t.Fatalf("%+v deletes what is not there", c)
					}
					deletes++
					delete(has[c.source], c.key)
				} else {
					has[c.source][c.key] = true
				}
				n := len(has[c.source])
				most[c.source] = max(most[c.source], n)
				if (most[c.source]-n)*100 > 25*most[c.source] {
					t.Fatalf("source %d has %d left of %d", c.source, n, most[c.source])
				}
			}
		}
	}
	if deletes < 100 {
		t.Errorf("%d deletions are too few to learn anything from", deletes)
	}
}

// A guard holds what would leave an upstream without any resource of a kind.
func TestNoChangeDeletesTheLastOfAKind(t *testing.T) {
	sc := scenarioOf(t, "many")
	first, rounds := roundsOf(3, sc, 20)
	left := map[[2]int]map[int]bool{}
	at := func(c change) map[int]bool {
		of := [2]int{c.source, c.key % len(kinds)}
		if left[of] == nil {
			left[of] = map[int]bool{}
		}
		return left[of]
	}
	for _, c := range first {
		at(c)[c.key] = true
	}
	deletes := 0
	for _, s := range slices.Concat(rounds...) {
		switch c := s.change; {
		case c == nil:
		case !c.deletes:
			at(*c)[c.key] = true
		default:
			deletes++
			if delete(at(*c), c.key); len(at(*c)) == 0 {
				t.Fatalf("%+v deletes the last of its kind", *c)
			}
		}
	}
	if deletes < 100 {
		t.Errorf("%d deletions are too few to learn anything from", deletes)
	}
}

func TestEachSteadyRateHasItsPartOfARound(t *testing.T) {
	sc := scenarioOf(t, "rates")
	part := sc.round / time.Duration(len(sc.rates))
	orders := map[string]bool{}
	for seed := range uint64(8) {
		_, rounds := roundsOf(seed, sc, 1)
		parts := make([][]time.Duration, len(sc.rates))
		for _, s := range rounds[0] {
			if s.change != nil {
				n := int(s.at / part)
				parts[n] = append(parts[n], s.at)
			}
		}
		var order, sorted []int
		for _, times := range parts {
			rate := len(times) / int(part/time.Second)
			order = append(order, rate)
			for i := range times[1:] {
				if apart := times[i+1] - times[i]; apart != time.Second/time.Duration(rate) {
					t.Fatalf("seed %d: changes are %v apart at %d a second", seed, apart, rate)
				}
			}
		}
		orders[fmt.Sprint(order)] = true
		if sorted = slices.Sorted(slices.Values(order)); !slices.Equal(sorted, []int{1, 10, 100, 1000}) {
			t.Fatalf("seed %d: the rates are %v", seed, order)
		}
	}
	if len(orders) < 2 {
		t.Errorf("every seed has the order %v", orders)
	}
}

func TestUpToAQuarterOfTheUpstreamsLeaves(t *testing.T) {
	most := 0
	for n := range 50 {
		f := &fault{dice: [4]int{n, 2 * n, 3 * n}}
		leave, left := f.leavers(40)
		if again, _ := f.leavers(40); !slices.Equal(leave, again) {
			t.Fatalf("%v leave, and then %v", leave, again)
		}
		if len(leave) < 1 || len(leave) > 10 || !slices.IsSorted(left) {
			t.Fatalf("%v leave, and %v are left", leave, left)
		}
		if all := slices.Sorted(slices.Values(slices.Concat(leave, left))); len(slices.Compact(all)) != 40 {
			t.Fatalf("%v leave, and %v are left", leave, left)
		}
		most = max(most, len(leave))
	}
	if most < 10 {
		t.Errorf("no more than %d leave", most)
	}
}

func TestPermutationsAreAllOrders(t *testing.T) {
	seen := map[string]bool{}
	for which := range 6 {
		p := permutation(3, which)
		if which == 0 && !slices.Equal(p, []int{0, 1, 2}) {
			t.Errorf("the first is %v", p)
		}
		sorted := slices.Sorted(slices.Values(p))
		if !slices.Equal(sorted, []int{0, 1, 2}) {
			t.Errorf("%v is no order", p)
		}
		seen[fmt.Sprint(p)] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d orders of three things", len(seen))
	}
}

func TestJournalRemembersTheLastEventsOfAKey(t *testing.T) {
	var out strings.Builder
	j := newJournal(&out)
	for n := range ringSize + 5 {
		j.of(3, "event %d.", n)
	}
	j.of(4, "of another key")
	j.fault("cut", "a link is cut")
	if !strings.Contains(out.String(), "a link is cut") {
		t.Error("what happens at large is not printed")
	}
	out.Reset()
	j.replay(&out, 3)
	text := out.String()
	for want, is := range map[string]bool{"event 4.": false, "event 5.": true, fmt.Sprintf("event %d.", ringSize+4): true, "of another key": false, "a link is cut": true} {
		if strings.Contains(text, want) != is {
			t.Errorf("%q: %v, in\n%s", want, !is, text)
		}
	}
	if strings.Index(text, "event 5.") > strings.Index(text, "event 6.") {
		t.Error("the events are not in their order")
	}
	if j.counts["cut"] != 1 {
		t.Errorf("%d cuts were counted", j.counts["cut"])
	}
}

func TestMoreIsFoundOfEachThing(t *testing.T) {
	before := sample{goroutines: 100, fds: 20, heap: 10 << 20}
	for _, tt := range []struct {
		name string
		now  sample
		want string
	}{
		{"as before", before, ""},
		{"a little more of everything", sample{goroutines: 100 + moreGoroutines, fds: 20 + moreFDs, heap: 12 << 20}, ""},
		{"goroutines", sample{goroutines: 101 + moreGoroutines, fds: 20, heap: 10 << 20}, "goroutines"},
		{"file descriptors", sample{goroutines: 100, fds: 21 + moreFDs, heap: 10 << 20}, "file descriptors"},
		{"heap", sample{goroutines: 100, fds: 20, heap: 16<<20 + moreHeap}, "live heap"},
	} {
		if got := more(before, tt.now); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want something about %q", tt.name, got, tt.want)
		}
	}
}
