package adsclient

import (
	"hash/maphash"
	"iter"
	"slices"
	"sync"
)

// A SotW response repeats everything, and nearly all of it is unchanged. Parse reads its bytes once,
// and notes the place of each resource and a mark of its content. A reader that knows the mark
// needs nothing else of the resource.
//
// The mark is a keyed hash of 64 bits. No peer knows the key, so nobody can write a resource with
// the mark of another one. With a chance of 1 / 2^64, a changed resource keeps its mark. The relay
// then misses the change until the next one.

// seed is the key of the marks.
var seed = maphash.MakeSeed()

const (
	// placedBytes is the smallest mean size of resources with noted places, so that places take an
	// eighth of the response at most. No real resource is smaller.
	placedBytes = 128
	// placedSoon is how many resources may be smaller before larger ones come.
	placedSoon = 1 << 10
	// maxMarked bounds a resource with a mark: one that is spread over buffers must be copied for
	// its mark.
	maxMarked = 1 << 20
)

// place is where a resource is in a response.
type place struct {
	mark        uint64
	start, size int32
}

// places are the places of all resources of a response, in order.
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

// note notes the place of the next resource, of n bytes, unless the resources are too small.
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
		r.freePlaces() // do not read the rest in vain
		return
	}
	p := place{start: int32(r.size - c.left), size: int32(n)} // gRPC frames are not larger
	if n <= maxMarked {
		p.mark = maphash.Bytes(seed, c.bytes(n))
	}
	if len(r.all) == cap(r.all) { // room was reserved for the size of the first one
		r.all = slices.Grow(r.all, r.size/placedBytes-r.count)
	}
	r.all = append(r.all, p)
}

// Marks returns the mark and size of each resource, in order. It returns nil on delta streams, and
// for small resources.
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

// placed yields the resources with noted places, except known ones.
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
