package adsclient

import (
	"hash/maphash"
	"iter"
	"slices"
	"sync"
)

// A SotW response has everything again, and nearly all of it is as it was. Parse reads its bytes
// once: it notes where each resource is, and a mark of its content. Whoever knows the mark needs
// nothing else of the resource.
//
// The mark is a keyed hash of 64 bits, with a key that no peer knows: nobody can write a resource
// that passes for another one, also not who may write into a namespace of the same server. A changed
// resource has the mark that it had by a chance of 1 / 2^64. The change is missed then, until the next one.

// seed is the key of the marks.
var seed = maphash.MakeSeed()

const (
	// placedBytes is the least mean size of resources whose places are noted: the places take an
	// eighth of the response at most. No real resource has less.
	placedBytes = 128
	// placedSoon is how many resources may be smaller before the others make up for them.
	placedSoon = 1 << 10
	// maxMarked bounds the resources that have a mark: a resource that is spread over buffers is
	// copied for that.
	maxMarked = 1 << 20
)

// place is where a resource is in a response.
type place struct {
	mark        uint64
	start, size int32
}

// places are the places of all resources of a response, in their order.
type places struct{ all []place }

// freed has places for other responses.
var freed = sync.Pool{New: func() any { return &places{} }}

func (r *Response) freePlaces() {
	if r.places != nil {
		r.all = r.all[:0]
		freed.Put(r.places)
		r.places = nil
	}
}

// note notes the place of the resource of n bytes that comes next, while there is room for places.
func (r *Response) note(c *cursor, n int) {
	switch {
	case r.count == 0:
		r.places = freed.Get().(*places)
		if room := r.size/max(n, placedBytes) + 1; cap(r.all) < room {
			r.all = make([]place, 0, room)
		}
	case r.places == nil || len(r.all) != r.count:
		return
	}
	if read := r.size - c.left; (r.count-placedSoon)*placedBytes > read || r.count >= r.size/placedBytes {
		r.freePlaces() // the rest is not read for it in vain
		return
	}
	p := place{start: int32(r.size - c.left), size: int32(n)} //nolint:gosec // gRPC frames no more
	if n <= maxMarked {
		p.mark = maphash.Bytes(seed, c.bytes(n))
	}
	if len(r.all) == cap(r.all) { // the first one was larger than most
		r.all = slices.Grow(r.all, r.size/placedBytes-r.count)
	}
	r.all = append(r.all, p)
}

// Marks returns the mark and the size of each resource, in their order, nil where there are none: on
// delta streams, and of small resources.
func (r *Response) Marks() iter.Seq2[uint64, int] {
	if r.places == nil {
		return nil
	}
	return func(yield func(uint64, int) bool) {
		for _, p := range r.all {
			if !yield(p.mark, int(p.size)) {
				return
			}
		}
	}
}

// placed yields the resources whose places are noted, without those that are known.
func (r *Response) placed(limit int, known func(uint64, int) bool, yield func(RawResource) bool) {
	c := newCursor(r.buffers)
	for _, p := range r.all {
		if known != nil && p.mark != 0 && known(p.mark, int(p.size)) {
			continue
		}
		c.skip(c.left - (r.size - int(p.start)))
		raw, err := c.element(int(p.size), false, limit)
		if raw.Mark = p.mark; err != nil || !yield(raw) {
			return
		}
	}
}
