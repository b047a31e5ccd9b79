package intake

import (
	"iter"
	"math/bits"
)

// A source that is asked for whole scopes tells everything again with each change, in whatever
// order. What is as it was is found by its marks (Element.Mark), in groups: the records of a scope
// and the elements of an answer are put into groups by their marks, and where both groups have as
// many with the same sum of marks, they have the same, but by a chance of groups / 2^64. Nothing else is
// done about these: they are neither parsed nor looked up, and their records are not touched.

// perGroup is how many records a group has on average, at most: so many are looked at for each one
// that changes.
const perGroup = 8

// group is the sum of some marks, and their number.
type group struct {
	sum uint64
	n   int
}

// groups are the groups of marks, by the low bits of a mark: none, or a power of two.
type groups []group

// newGroups returns groups for so many marks.
func newGroups(marks int) groups { return make(groups, 1<<bits.Len(uint(marks/perGroup))) }

func (g groups) of(mark uint64) *group { return &g[mark&uint64(len(g)-1)] }

func (g groups) add(mark uint64) {
	of := g.of(mark)
	of.sum += mark
	of.n++
}

func (g groups) remove(mark uint64) {
	of := g.of(mark)
	of.sum -= mark
	of.n--
}

// mark returns the mark of an element of so many bytes, zero for none. What a relay tells is not the
// same as what another server does, and what is too large is not what was held.
func (in *Intake) mark(mark uint64, size int) uint64 {
	switch {
	case mark == 0 || in.tooLarge(size):
		return 0
	case in.believe:
		return ^mark
	default:
		return mark
	}
}

// setMark notes the mark of the content that was accepted of a record, zero for none.
func (sc *scope) setMark(rec *record, mark uint64) {
	if rec.mark == mark {
		return
	}
	if rec.mark != 0 {
		sc.groups.remove(rec.mark)
		sc.marked--
		rec.mark = 0
	}
	if mark == 0 {
		return
	}
	if sc.marked++; sc.marked > perGroup*len(sc.groups) {
		sc.groups = newGroups(2 * sc.marked)
		for _, other := range sc.byName {
			if other.mark != 0 {
				sc.groups.add(other.mark)
			}
		}
	}
	rec.mark = mark
	sc.groups.add(mark)
}

// same tells of an answer which elements are as they were.
type same struct {
	groups []bool // that are the same
	n      int    // elements in them
	all    bool   // there are no others
}

// has reports whether the element with a mark, or the record, is as it was. Without a same, or a mark,
// that takes a closer look.
func (s *same) has(mark uint64) bool {
	return s != nil && mark != 0 && s.groups[mark&uint64(len(s.groups)-1)]
}

// repeated compares the marks of a complete update with those of the scope. It returns nil where each
// element takes a closer look.
func (in *Intake) repeated(sc *scope, u *Update) *same {
	if !u.Complete || u.Part || sc.parts != nil || u.Marks == nil || sc.marked == 0 {
		return nil
	}
	told, n := make(groups, len(sc.groups)), 0
	for mark, size := range u.Marks {
		if mark = in.mark(mark, size); mark != 0 {
			told.add(mark)
		}
		n++
	}
	s := &same{groups: make([]bool, len(told))}
	for i, g := range told {
		if g.n > 0 && g == sc.groups[i] {
			s.groups[i] = true
			s.n += g.n
		}
	}
	if s.all = s.n == n; s.n == 0 || !s.all && in.repeatsName(sc, u, s) {
		return nil
	}
	return s
}

// repeatsName reports whether an update has, beside what is as it was, something else of the same
// name: which of the two counts depends on their order.
func (in *Intake) repeatsName(sc *scope, u *Update, s *same) bool {
	for el := range in.elements(u, s) {
		name, err := in.peekName(sc.Kind, el)
		if rec := sc.byName[string(name)]; err == nil && rec != nil && s.has(rec.mark) {
			return true
		}
	}
	return false
}

// elements returns the elements of an update, without those that are as they were.
func (in *Intake) elements(u *Update, s *same) iter.Seq[Element] {
	var known Known
	if s != nil {
		known = func(mark uint64, size int) bool { return s.has(in.mark(mark, size)) }
	}
	return u.Elements(in.limits.MaxResourceBytes, known)
}
