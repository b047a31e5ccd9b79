package intake

import (
	"time"

	"meshrelay/mirror"
)

const (
	// guardWindow is how far back the guard looks for what a source has lost bit by bit.
	guardWindow = time.Minute
	// fewest resources make the loss of all of them look like an accident, whatever guard.count is.
	fewest = 3
)

// tally counts what is served of a source, as a whole or of one kind.
type tally struct {
	size  int
	added int // of size: what is new since the guard last judged deletions
	// most is the largest size within guardWindow, and bySecond the sizes that it is made of:
	// the oldest first, falling, because a size that is followed by a larger one does not matter.
	most     int
	bySecond []sizeAt
}

type sizeAt struct {
	at   time.Time
	size int
}

// had returns how many there were before n deletions, without those that came with or after them.
func (t *tally) had(n int) int { return max(t.size-t.added, n) }

// note remembers how large the source is now.
func (t *tally) note(now time.Time) {
	for len(t.bySecond) > 0 && now.Sub(t.bySecond[0].at) > guardWindow {
		t.bySecond = t.bySecond[1:]
	}
	for len(t.bySecond) > 0 && t.bySecond[len(t.bySecond)-1].size <= t.size {
		t.bySecond = t.bySecond[:len(t.bySecond)-1]
	}
	if n := len(t.bySecond); n == 0 || now.Sub(t.bySecond[n-1].at) >= time.Second {
		t.bySecond = append(t.bySecond, sizeAt{now, t.size})
	}
	t.most = max(t.bySecond[0].size, t.size)
}

// tallies are the tally of a source and that of each of its kinds.
type tallies struct {
	all    tally
	byKind map[mirror.Kind]*tally
}

func (t *tallies) kind(k mirror.Kind) *tally {
	one := t.byKind[k]
	if one == nil {
		one = &tally{}
		t.byKind[k] = one
	}
	return one
}

func (t *tallies) each(f func(*tally)) {
	f(&t.all)
	for _, one := range t.byKind {
		f(one)
	}
}

// add counts resources in.
func (t *tallies) add(k mirror.Kind, n int) {
	t.all.size += n
	t.kind(k).size += n
}

// addNew counts a resource in that is new, and was not restored.
func (t *tallies) addNew(k mirror.Kind) {
	t.add(k, 1)
	t.all.added++
	t.kind(k).added++
}

func (t *tallies) remove(k mirror.Kind) {
	t.all.size--
	t.kind(k).size--
}

// settle makes what is new part of what the source had.
func (t *tallies) settle() {
	if t.all.added > 0 {
		t.each(func(one *tally) { one.added = 0 })
	}
}

// forget is settle, and forgets how large the source has been.
func (t *tallies) forget() {
	t.each(func(one *tally) { one.added, one.most, one.bySecond = 0, 0, nil })
}

// note remembers how large the source is now.
func (t *tallies) note(now time.Time) { t.each(func(one *tally) { one.note(now) }) }
