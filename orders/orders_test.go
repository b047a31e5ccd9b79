package orders

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Equal reports whether two states are the same.
func (s State) Equal(other State) bool {
	s.Version = other.Version
	return textOf(s) == textOf(other)
}

// states draws a State as replicas make them: with few upstreams and counters, so that they meet.
func states(t *rapid.T, label string) State {
	var s State
	for i := range rapid.IntRange(0, 6).Draw(t, label) {
		at := fmt.Sprint(label, i)
		name := rapid.SampledFrom([]string{"east", "west"}).Draw(t, at+" name")
		when := start.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, at+" when")) * time.Second)
		counter := rapid.Uint64Range(1, 4).Draw(t, at+" counter")
		one := State{Version, counter, map[string]Entry{}}
		switch rapid.IntRange(0, 2).Draw(t, at+" kind") {
		case 0:
			one.Upstreams[name] = Entry{Counter: counter}
		case 1:
			one.Upstreams[name] = Entry{Counter: counter, Frozen: &Frozen{
				Since: when, Reason: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, at+" reason"), Content: rapid.SampledFrom([]string{"", "1-x"}).Draw(t, at+" content"),
			}}
		default:
			one.Upstreams[name] = Entry{Released: []Release{{Counter: counter, Hold: rapid.SampledFrom([]string{"h", "i"}).Draw(t, at+" hold"), Time: when}}}
		}
		s = s.Join(one)
	}
	return s
}

func TestJoinIsCommutativeAssociativeAndIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := states(t, "a"), states(t, "b"), states(t, "c")
		for what, pair := range map[string][2]State{
			"commutative": {a.Join(b), b.Join(a)}, "associative": {a.Join(b).Join(c), a.Join(b.Join(c))},
			"idempotent": {a.Join(a), a}, "absorbs": {a.Join(b).Join(a), a.Join(b)},
			"aged alike": {a.Join(b).Aged(start.Add(releaseAge + time.Second)), a.Aged(start.Add(releaseAge + time.Second)).Join(b).Aged(start.Add(releaseAge + time.Second))},
		} {
			if !pair[0].Equal(pair[1]) {
				t.Errorf("not %s: %+v, %+v", what, pair[0], pair[1])
			}
		}
	})
}

// TestAnOrderIsInForceUntilALaterOneEndsIt: whatever replicas know, lose and exchange, the last order about an upstream that
// one of them has is in force once they have met.
func TestAnOrderIsInForceUntilALaterOneEndsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const replicas = 3
		var known [replicas]State
		var store State
		last := map[string]Entry{}
		for i := range rapid.IntRange(1, 20).Draw(t, "steps") {
			at := fmt.Sprint("step ", i)
			r := rapid.IntRange(0, replicas-1).Draw(t, at+" replica")
			name := rapid.SampledFrom([]string{"east", "west"}).Draw(t, at+" name")
			switch rapid.IntRange(0, 4).Draw(t, at) {
			case 0, 1: // an order, which reads first
				joined := known[r].Join(store)
				next := joined.Freeze(name, &Frozen{Since: start.Add(time.Duration(i) * time.Second)})
				if rapid.Bool().Draw(t, at+" ends") {
					next = joined.Freeze(name, nil)
				}
				if e := next.Upstreams[name]; e.Counter <= joined.Counter {
					t.Fatalf("counter %d after %d", e.Counter, joined.Counter)
				}
				known[r], store, last[name] = next, next, next.Upstreams[name]
			case 2: // it reads, and writes what is lacking
				known[r] = known[r].Join(store)
				store = known[r]
			case 3: // the object is lost, once all have read it: one replica writes it again
				for j := range known {
					known[j] = known[j].Join(store)
				}
				store = known[r]
			case 4: // a disk is lost
				known[r] = State{}
			}
		}
		for name, want := range last {
			if got := store.Upstreams[name]; got.Counter != want.Counter || got.ID() != want.ID() {
				t.Errorf("%s is %+v, want %+v", name, got, want)
			}
		}
	})
}

func TestOfEqualCountersTheOneThatFreezesCounts(t *testing.T) {
	frozen, ended := State{}.Freeze("east", &Frozen{Since: start}), State{}.Freeze("east", nil)
	if got := ended.Join(frozen); !got.Equal(frozen) {
		t.Errorf("%+v", got)
	}
}

func TestReleasesGoByAgeAndEntriesStay(t *testing.T) {
	s := State{}.Freeze("gone", &Frozen{Since: start}).Release("east", []string{"h"}, Release{Time: start})
	if got := s.Aged(start.Add(releaseAge)); len(got.Upstreams["east"].Released) != 1 {
		t.Errorf("before its age: %+v", got)
	}
	got := s.Aged(start.Add(releaseAge + time.Second))
	if _, has := got.Upstreams["east"]; has || got.Upstreams["gone"].Frozen == nil {
		t.Errorf("after: %+v", got)
	}
	if got.Counter != 2 || got.Freeze("east", nil).Counter != 3 {
		t.Errorf("a counter comes again after a release that has gone: %d", got.Counter)
	}
	var holds []string
	for i := range 2 * maxReleases {
		holds = append(holds, fmt.Sprint(i))
	}
	if n := len(s.Release("east", holds, Release{Time: start}).Upstreams["east"].Released); n != maxReleases {
		t.Errorf("%d releases", n)
	}
}

func TestOrdersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := states(t, "s")
		text, err := s.Encode()
		got, bad := Decode(text)
		if err != nil || bad != nil || !got.Equal(s) {
			t.Errorf("%v, %v, %+v, want %+v", err, bad, got, s)
		}
	})
}

func TestAnUnreadableOrNewerTextIsAnError(t *testing.T) {
	for text, newer := range map[string]bool{
		"{": false, `{"version":0}`: false, `{"version":2}`: true, `{"version":2,"upstreams":[]}`: true,
		`{"upstreams":{"a":{"frozen":{"since":7}}},"version":2}`: true, `{"version":1,"counter":9007199254740992}`: false, fmt.Sprintf(`{"version":1,"upstreams":{"a":{"counter":%d}}}`, uint64(math.MaxUint64)): false,
	} {
		if _, err := Decode(text); err == nil || errors.Is(err, ErrNewer) != newer {
			t.Errorf("%s: %v", text, err)
		}
	}
	if s, err := Decode(""); err != nil || s.Counter != 0 {
		t.Errorf("an empty one: %v", err)
	}
	if s, err := Decode(`{"version":1,"upstreams":{"a":{"counter":7}}}`); err != nil || s.Counter != 7 {
		t.Errorf("an edited one: %+v, %v", s, err)
	}
	if text, err := (State{Counter: maxCounter - 1}).Freeze("east", nil).Encode(); err != nil {
		t.Error(err)
	} else if s, err := Decode(text); err != nil {
		t.Errorf("what is written is not read: %v", err)
	} else if _, err := s.Freeze("east", nil).Encode(); err == nil || !strings.Contains(err.Error(), "edited") {
		t.Errorf("what nobody reads is written: %v", err)
	}
	large := State{Upstreams: map[string]Entry{}}
	for i := range 40_000 {
		large.Upstreams[fmt.Sprint(strings.Repeat("x", 20), i)] = Entry{Counter: 1}
	}
	if _, err := large.Encode(); err == nil || !strings.Contains(err.Error(), "remove entries") {
		t.Errorf("too large: %v", err)
	}
}
