package records

import (
	"iter"
	"math/bits"
)

// A source that answers whole scopes repeats everything with each change, in any order. Marks
// (Element.Mark) tell what is unchanged: the records of a scope, and the elements of an answer, are
// grouped by their marks. Two groups with the same number and the same sum of marks are equal, but
// for a chance of groups / 2^64. Elements of equal groups are neither parsed nor looked up, and
// their records are not touched.

// perGroup bounds the mean number of records in a group. A change of one record costs a look at all records
// of its group.
const perGroup = 8

// group is the sum and the number of some marks.
type group struct {
	sum uint64
	n   int
}

// groups are groups by the low bits of a mark. Their number is zero or a power of two.
type groups []group

// newGroups returns groups for this many marks.
func newGroups(marks int) groups { return make(groups, 1<<bits.Len(uint(marks/perGroup))) }

// count adds n records with a mark.
func (g groups) count(mark uint64, n int) {
	of := &g[mark&uint64(len(g)-1)]
	of.sum += mark * uint64(n)
	of.n += n
}

// mark returns the mark of an element of this size, zero for none. The same bytes have another mark
// if a relay sent them. An element that is too large has none.
func (rs *Records) mark(mark uint64, size int) uint64 {
	switch {
	case mark == 0 || rs.tooLarge(size):
		return 0
	case rs.believe:
		return ^mark
	default:
		return mark
	}
}

// setMark sets the mark of a record's accepted content, zero for none.
func (sc *scope) setMark(rec *record, mark uint64) {
	if rec.mark == mark {
		return
	}
	if rec.mark != 0 {
		sc.groups.count(rec.mark, -1)
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
				sc.groups.count(other.mark, 1)
			}
		}
	}
	rec.mark = mark
	sc.groups.count(mark, 1)
}

// same has the elements of an answer that are unchanged.
type same struct {
	groups []bool // which groups are unchanged
	n      int    // number of elements in them
	all    bool   // there are no other elements
}

// has reports whether the element or record with a mark is unchanged. It returns false if same is nil or the
// mark is zero.
func (s *same) has(mark uint64) bool {
	return s != nil && mark != 0 && s.groups[mark&uint64(len(s.groups)-1)]
}

// repeated compares the marks of a complete update with those of the scope. It returns nil when
// each element must be looked at.
func (rs *Records) repeated(sc *scope, u *Update) *same {
	if !u.Complete || u.Part || sc.parts != nil || u.Marks == nil || sc.marked == 0 {
		return nil
	}
	sums, n := make(groups, len(sc.groups)), 0
	for mark, size := range u.Marks {
		if mark = rs.mark(mark, size); mark != 0 {
			sums.count(mark, 1)
		}
		n++
	}
	s := &same{groups: make([]bool, len(sums))}
	for i, g := range sums {
		if g.n > 0 && g == sc.groups[i] {
			s.groups[i] = true
			s.n += g.n
		}
	}
	if s.all = s.n == n; s.n == 0 || !s.all && rs.repeatsName(sc, u, s) {
		return nil
	}
	return s
}

// repeatsName reports whether an update has a changed element with the name of an unchanged one:
// their order decides which counts.
func (rs *Records) repeatsName(sc *scope, u *Update, s *same) bool {
	for el := range rs.elements(u, s) {
		name, err := peekName(sc.Kind, &el)
		if rec := sc.byName[string(name)]; err == nil && rec != nil && s.has(rec.mark) {
			return true
		}
	}
	return false
}

// elements returns the elements of an update that may have changed.
func (rs *Records) elements(u *Update, s *same) iter.Seq[Element] {
	var known Known
	if s != nil {
		known = func(mark uint64, size int) bool { return s.has(rs.mark(mark, size)) }
	}
	return u.Elements(rs.limits.MaxResourceBytes, known)
}
