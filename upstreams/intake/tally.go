package intake

import (
	"time"

	"meshrelay/mirror"
)

const (
	// guardWindow is the time over which the guard adds up deletions.
	guardWindow = time.Minute
	// fewest is the number of resources whose complete loss looks like an accident, even if guard.count is
	// higher.
	fewest = 3
)

// tally counts the served resources of a source, or of one of its kinds.
type tally struct {
	size  int
	added int // part of size: new since the guard last judged deletions
	// most is the largest size within guardWindow. bySecond has the later and smaller sizes, oldest first.
	most     int
	bySecond []sizeAt
}

type sizeAt struct {
	at   time.Time
	size int
}

// had returns the size before n deletions, without resources that were added since the guard last judged.
func (t *tally) had(n int) int { return max(t.size-t.added, n) }

// note remembers the present size.
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

// tallies are the tallies of a source and of each kind.
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

// add counts n more resources.
func (t *tallies) add(k mirror.Kind, n int) {
	t.all.size += n
	t.kind(k).size += n
}

func (t *tallies) remove(k mirror.Kind) {
	t.all.size--
	t.kind(k).size--
}

// disown has a resource that was removed count as if it had never been there.
func (t *tallies) disown(k mirror.Kind) {
	for _, one := range []*tally{&t.all, t.kind(k)} {
		for i := range one.bySecond {
			one.bySecond[i].size--
		}
	}
}

// settle counts new resources as old ones.
func (t *tallies) settle() {
	if t.all.added > 0 {
		t.each(func(one *tally) { one.added = 0 })
	}
}

// forget counts new resources as old ones, and forgets earlier sizes.
func (t *tallies) forget() {
	t.each(func(one *tally) { one.added, one.most, one.bySecond = 0, 0, nil })
}

// note remembers the present sizes.
func (t *tallies) note(now time.Time) { t.each(func(one *tally) { one.note(now) }) }
