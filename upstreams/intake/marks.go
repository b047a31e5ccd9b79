package intake

import (
	"hash/maphash"
	"math/bits"
)

// A source that is asked for whole scopes tells everything again with each change. A record of such
// a scope is then found by its content: one hash and one look-up tell that an element is as it was,
// before anything of it is parsed, whatever the order of the elements.
//
// The mark is a keyed hash of 64 bits, with a key that no peer knows: nobody can write a resource
// that passes for another one, also not who may write into a namespace of the same source. That a
// changed element has the mark of another one by chance has a probability of resources / 2^64. The
// change is missed then, until the next one.

// seed is the key of the marks.
var seed = maphash.MakeSeed()

// markOf returns the mark of an element, zero where none is needed: a scope that was told as a
// whole only once need not keep marks.
func (sc *scope) markOf(u *Update, el Element) uint64 {
	if !sc.repeats || !u.Complete || el.Raw == nil {
		return 0
	}
	return maphash.Bytes(seed, el.Raw)
}

// setMark notes the mark of the content that was accepted of a record, zero for none.
func (sc *scope) setMark(rec *record, mark uint64) {
	if rec.mark == mark {
		return
	}
	if rec.mark != 0 {
		sc.marked.remove(rec)
	}
	if rec.mark = mark; mark != 0 {
		sc.marked.add(rec, len(sc.byName))
	}
}

// unchanged returns the record whose content an element repeats, nil when that takes a closer look.
func (in *Intake) unchanged(sc *scope, el Element, mark uint64) *record {
	rec := sc.marked.find(mark)
	if rec == nil || rec.relayed != in.believe || rec.generation == sc.generation || !in.ample(rec, el.size()) {
		return nil
	}
	return rec
}

// marks is a hash table of records by their mark, with linear probing: a mark is a hash by itself.
// It takes 12 to 24 bytes for each record, and a map takes twice as much.
type marks struct {
	slots []*record // none, or a power of two, a third of them empty
	n     int
}

func (m *marks) find(mark uint64) *record {
	if m.n == 0 {
		return nil
	}
	last := uint64(len(m.slots) - 1)
	for i := mark & last; m.slots[i] != nil; i = (i + 1) & last {
		if m.slots[i].mark == mark {
			return m.slots[i]
		}
	}
	return nil
}

// add adds a record, which has its mark. Where it makes room, that is for most records at least.
func (m *marks) add(rec *record, most int) {
	if (m.n+1)*3 > len(m.slots)*2 {
		before := m.slots
		m.slots = make([]*record, 1<<bits.Len(uint(max(most, m.n+1)*3/2)))
		for _, r := range before {
			if r != nil {
				m.put(r)
			}
		}
	}
	m.put(rec)
	m.n++
}

func (m *marks) put(rec *record) {
	last := uint64(len(m.slots) - 1)
	i := rec.mark & last
	for m.slots[i] != nil {
		i = (i + 1) & last
	}
	m.slots[i] = rec
}

// remove removes a record, which still has its mark, and closes the gap.
func (m *marks) remove(rec *record) {
	last := uint64(len(m.slots) - 1)
	gap := rec.mark & last
	for m.slots[gap] != rec {
		gap = (gap + 1) & last
	}
	for i := (gap + 1) & last; m.slots[i] != nil; i = (i + 1) & last {
		if (i-m.slots[i].mark)&last >= (i-gap)&last { // its own slot is not beyond the gap
			m.slots[gap], gap = m.slots[i], i
		}
	}
	m.slots[gap] = nil
	if m.n--; m.n == 0 {
		m.slots = nil
	}
}
