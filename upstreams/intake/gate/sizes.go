package gate

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

// sizes are the tallies of a source and of each kind.
type sizes struct {
	all    tally
	byKind map[mirror.Kind]*tally
}

// newSizes returns the sizes of what is known to have been there: nothing of it is new.
func newSizes(counts map[mirror.Kind]int) sizes {
	s := sizes{byKind: map[mirror.Kind]*tally{}}
	for kind, n := range counts {
		s.all.size += n
		s.kind(kind).size = n
	}
	return s
}

func (s *sizes) kind(k mirror.Kind) *tally {
	one := s.byKind[k]
	if one == nil {
		one = &tally{}
		s.byKind[k] = one
	}
	return one
}

func (s *sizes) each(f func(*tally)) {
	f(&s.all)
	for _, one := range s.byKind {
		f(one)
	}
}

// add counts a new resource.
func (s *sizes) add(k mirror.Kind) {
	for _, one := range []*tally{&s.all, s.kind(k)} {
		one.size++
		one.added++
	}
}

func (s *sizes) remove(k mirror.Kind) {
	s.all.size--
	s.kind(k).size--
}

// disown has a resource that was removed count as if it had never been there.
func (s *sizes) disown(k mirror.Kind) {
	for _, one := range []*tally{&s.all, s.kind(k)} {
		for i := range one.bySecond {
			one.bySecond[i].size--
		}
	}
}

// settle counts new resources as old ones.
func (s *sizes) settle() {
	if s.all.added > 0 {
		s.each(func(one *tally) { one.added = 0 })
	}
}

// forget counts new resources as old ones, and forgets earlier sizes.
func (s *sizes) forget() {
	s.each(func(one *tally) { one.added, one.most, one.bySecond = 0, 0, nil })
}

// note remembers the present sizes.
func (s *sizes) note(now time.Time) { s.each(func(one *tally) { one.note(now) }) }
