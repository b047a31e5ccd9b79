package upstreams

import (
	"time"

	"meshrelay/mirror"
)

// fewest is how many resources of a kind, or of a source, are enough for the loss of all of
// them to look like an accident whatever the guard's count is.
const fewest = 3

// tally counts what is served of a source, as a whole or of one kind.
type tally struct {
	size  int
	added int // of size: what is new since the guard last judged deletions
	peaks peaks
}

// had returns how many of these resources there were before n deletions: what has come with
// them, or since, does not make the loss smaller.
func (t *tally) had(n int) int { return max(t.size-t.added, n) }

// tallies are the tally of a source and that of each of its kinds.
type tallies struct {
	all    tally
	byKind map[mirror.Kind]*tally
}

func newTallies() tallies { return tallies{byKind: map[mirror.Kind]*tally{}} }

func (t *tallies) kind(k mirror.Kind) *tally {
	one := t.byKind[k]
	if one == nil {
		one = &tally{}
		t.byKind[k] = one
	}
	return one
}

// add counts a resource in. added tells that it is new and was not restored.
func (t *tallies) add(k mirror.Kind, added bool) {
	for _, one := range []*tally{&t.all, t.kind(k)} {
		one.size++
		if added {
			one.added++
		}
	}
}

func (t *tallies) remove(k mirror.Kind) {
	t.all.size--
	t.kind(k).size--
}

// settle makes what is new part of what the source had.
func (t *tallies) settle() {
	if t.all.added == 0 {
		return
	}
	t.all.added = 0
	for _, one := range t.byKind {
		one.added = 0
	}
}

// forget is settle, and forgets how large the source has been.
func (t *tallies) forget() {
	t.settle()
	t.all.peaks = peaks{}
	for _, one := range t.byKind {
		one.peaks = peaks{}
	}
}

// note remembers how large the source is now.
func (t *tallies) note(now time.Time) {
	t.all.peaks.note(now, t.all.size)
	for _, one := range t.byKind {
		one.peaks.note(now, one.size)
	}
}
