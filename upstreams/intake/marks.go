package intake

import "hash/maphash"

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
		delete(sc.marked, rec.mark)
	}
	if rec.mark = mark; mark == 0 {
		return
	}
	if sc.marked == nil {
		sc.marked = make(map[uint64]*record, len(sc.byName))
	}
	sc.marked[mark] = rec
}

// unchanged returns the record whose content an element repeats, nil when that takes a closer look.
func (in *Intake) unchanged(sc *scope, el Element, mark uint64) *record {
	rec := sc.marked[mark]
	if rec == nil || rec.mark != mark || rec.relayed != in.believe || rec.generation == sc.generation || !in.ample(rec, el.size()) {
		return nil
	}
	return rec
}
