package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
)

func TestSpansHaveToHaveAMomentInCommon(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lists [][]span
		most  int
		until uint64
	}{
		{"all for ever", [][]span{{{1, forever}}, {{5, forever}}}, 2, forever},
		{"one ends as the next begins", [][]span{{{1, 5}}, {{5, forever}}}, 1, forever},
		{"a gap", [][]span{{{0, 2}, {7, 9}}, {{3, 8}}}, 2, 8},
		{"the later of two moments counts", [][]span{{{0, 2}, {7, 9}}, {{0, forever}}}, 2, 9},
		{"no moment of all", [][]span{{{0, 3}}, {{2, 5}}, {{4, 6}}}, 2, 5},
	} {
		if until, most := together(tt.lists); until != tt.until || most != tt.most {
			t.Errorf("%s: %d up to %d, want %d up to %d", tt.name, most, until, tt.most, tt.until)
		}
	}
}

// killStage is a stage with a world and a ledger, and nothing that runs.
func killStage(t *testing.T) (*stage, *source, *ledger) {
	t.Helper()
	w := newWorld([]string{"east"}, 8, 1, newJournal(t.Output()))
	u := &upstream{source: w.sources[0], acked: newLedger()}
	return &stage{world: w, upstreams: []*upstream{u}}, w.sources[0], u.acked
}

func TestWhatIsServedAfterAKillHasToBeAStateThatWas(t *testing.T) {
	st, s, acked := killStage(t)
	w := st.world
	put := func(key int) {
		t.Helper()
		if err := w.put(0, key); err != nil {
			t.Fatal(err)
		}
	}
	put(0)             // commit 1
	put(4)             // commit 2
	put(0)             // commit 3
	put(4)             // commit 4
	w.remove(0, 4, 0)  // commit 5
	acked.add(0, 5, 5) // it was taken
	killed := time.Now()
	for _, tt := range []struct {
		name  string
		shown map[int]int // by key: which content
		after time.Duration
		want  string
	}{
		{"the newest", map[int]int{0: 2}, 0, ""},
		{"an earlier moment", map[int]int{0: 1, 4: 1}, 0, ""},
		{"between two changes", map[int]int{0: 2, 4: 1}, 0, ""},
		{"contents that never were there together", map[int]int{0: 1, 4: 2}, 0, wrong},
		{"a content that never was", map[int]int{0: 9}, 0, wrong},
		{"nothing, although there was always something since", map[int]int{}, time.Hour, lost},
		{"what was there long before the kill", map[int]int{0: 1, 4: 1}, time.Hour, lost},
	} {
		v := newView("client", w)
		for key, seq := range tt.shown {
			v.shown[key] = content{0, key, seq}
		}
		_, err := st.wasReal(v, killed.Add(tt.after))
		var bad *violation
		if errors.As(err, &bad); invariantOf(bad) != tt.want || tt.want == "" && err != nil {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// A deleted resource may be there until a complete client has taken the deletion.
	if got := s.spans(4, 2, true, newLedger()); !slices.Equal(got, []span{{4, forever}}) {
		t.Errorf("a deletion that nobody has taken: %v", got)
	}
	if got := s.spans(4, 2, true, acked); !slices.Equal(got, []span{{4, 5}}) {
		t.Errorf("a deletion that was taken: %v", got)
	}
}

func TestLedgerForgetsWhatWasTakenLast(t *testing.T) {
	l := newLedger()
	l.add(0, 1, 1)
	between := time.Now()
	await.Until(t, "the clock moves", func() bool { return time.Now().After(between) })
	l.add(0, 5, 6)
	l.add(0, 4, 9) // an earlier commit adds nothing
	if now, ok := l.since(0, 2); now != 6 || !ok {
		t.Errorf("commit 2 was taken at %d, %v", now, ok)
	}
	if got := l.before(0, time.Now()); got != 5 {
		t.Errorf("commit %d was taken by now", got)
	}
	l.forget(between)
	if got := l.before(0, time.Now()); got != 1 {
		t.Errorf("commit %d is left, want 1", got)
	}
	if _, ok := l.since(0, 2); ok {
		t.Error("commit 2 is still taken")
	}
}
