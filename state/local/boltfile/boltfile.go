// Package boltfile reads a bbolt file, whatever it holds. It is there for relay.db, the state of
// earlier releases, whose values have checksums of their own: the order of keys is not checked.
//
// bbolt itself is not used: it trusts the pages that it maps, so that a damaged file makes it
// panic, also on goroutines of its own, or follow pages in a circle for ever. The package must
// not know what the buckets hold.
package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// The format has been the same since 2014; its fields are in the byte order of the machine.
const (
	magic   = 0xED0CDAED
	version = 2

	pageHeaderLen    = 16 // id 8, flags 2, count 2, overflow 4
	branchElementLen = 16 // pos 4, ksize 4, page 8
	leafElementLen   = 16 // flags 4, pos 4, ksize 4, vsize 4
	bucketHeaderLen  = 16 // root 8, sequence 8
	metaLen          = 64
	metaChecked      = 56 // bytes of a meta that its checksum covers

	pageBranch = 0x01
	pageLeaf   = 0x02

	// maxDepth bounds the pages on the way to a leaf.
	maxDepth = 48

	minPageSize, maxPageSize = 1 << 10, 1 << 24
)

// ErrCorrupt is in every error about a file that is not what was written.
var ErrCorrupt = errors.New("the file is damaged")

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
}

var native = binary.NativeEndian

// File is what a file holds. One goroutine reads it.
type File struct {
	data     []byte
	pageSize uint64
	// pages is how many there are, and read how many were read.
	pages, read uint64
	root        uint64
	// Transaction is the number of the last one.
	Transaction uint64
}

// Bucket is where a bucket begins: at a page or, a small one, within a value.
type Bucket struct {
	page   uint64
	inline []byte
}

// Visitor is called for each key of a bucket, in order: with a value, or with a bucket. The slices
// are parts of the file. A bucket can be walked once.
type Visitor func(key, value []byte, sub *Bucket) error

// Open reads what a file tells of itself.
func Open(data []byte) (*File, error) {
	meta := newestMeta(data)
	if meta == nil {
		return nil, corruptf("it does not begin as a state file does")
	}
	f := &File{data: data, pageSize: uint64(native.Uint32(meta[8:])), root: native.Uint64(meta[16:]), pages: native.Uint64(meta[40:]), Transaction: native.Uint64(meta[48:])}
	if f.pages < 4 || f.pages > uint64(len(data))/f.pageSize {
		return nil, corruptf("it has %d bytes, and %d pages of %d bytes are in use", len(data), f.pages, f.pageSize)
	}
	return f, nil
}

// newestMeta returns the newest meta that is whole: the other one is that of the transaction
// before, and is used when the last one was not written to the end. It is on the second page.
func newestMeta(data []byte) (best []byte) {
	for at := 0; at <= maxPageSize && at+pageHeaderLen+metaLen <= len(data); at = max(2*at, minPageSize) {
		m := data[at+pageHeaderLen:][:metaLen]
		h := fnv.New64a()
		_, _ = h.Write(m[:metaChecked]) // never fails
		pageSize := int(native.Uint32(m[8:]))
		switch {
		case native.Uint32(m) != magic || native.Uint32(m[4:]) != version || native.Uint64(m[metaChecked:]) != h.Sum64():
		case pageSize < minPageSize || pageSize > maxPageSize || at != 0 && at != pageSize:
		case best == nil || native.Uint64(m[48:]) > native.Uint64(best[48:]):
			best = m
		}
	}
	return best
}

// page returns a page with those that it runs on to. Pages that refer to one another in a circle,
// or again and again to others, are more than there are.
func (f *File) page(id uint64) ([]byte, error) {
	if id < 2 || id >= f.pages {
		return nil, corruptf("page %d is out of range", id)
	}
	b := f.data[id*f.pageSize:]
	if got := native.Uint64(b); got != id {
		return nil, corruptf("page %d has the number %d", id, got)
	}
	n := uint64(native.Uint32(b[12:])) + 1
	if n > f.pages-id {
		return nil, corruptf("page %d is out of range", id+n)
	}
	if f.read += n; f.read > f.pages {
		return nil, corruptf("its pages go in a circle")
	}
	return b[:n*f.pageSize], nil
}

// Walk visits the top level. It returns the first error, of the file or of v.
func (f *File) Walk(v Visitor) error { return f.WalkBucket(&Bucket{page: f.root}, v) }

// WalkBucket visits a bucket.
func (f *File) WalkBucket(b *Bucket, v Visitor) error {
	if b.page == 0 {
		return leaf(b.inline, v)
	}
	return f.walk(b.page, maxDepth, v)
}

// walk visits what is below a page.
func (f *File) walk(id uint64, depth int, v Visitor) error {
	b, err := f.page(id)
	if err != nil {
		return err
	}
	switch kind := native.Uint16(b[8:]); {
	case kind == pageLeaf:
		return leaf(b, v)
	case kind != pageBranch:
		return corruptf("page %d is of no known type", id)
	case depth == 0:
		return corruptf("pages are nested deeper than %d", maxDepth)
	}
	n := int(native.Uint16(b[10:]))
	if pageHeaderLen+n*branchElementLen > len(b) {
		return corruptf("page %d has %d branches", id, n)
	}
	for i := range n {
		if err := f.walk(native.Uint64(b[pageHeaderLen+i*branchElementLen+8:]), depth-1, v); err != nil {
			return err
		}
	}
	return nil
}

// leaf visits the elements of a page.
func leaf(b []byte, v Visitor) error {
	if len(b) < pageHeaderLen || native.Uint16(b[8:]) != pageLeaf {
		return corruptf("a bucket is of no known type")
	}
	n := int(native.Uint16(b[10:]))
	if pageHeaderLen+n*leafElementLen > len(b) {
		return corruptf("page %d has %d elements", native.Uint64(b), n)
	}
	for i := range n {
		at := pageHeaderLen + i*leafElementLen
		flags, key := native.Uint32(b[at:]), uint64(at)+uint64(native.Uint32(b[at+4:]))
		value := key + uint64(native.Uint32(b[at+8:]))
		end := value + uint64(native.Uint32(b[at+12:]))
		if end > uint64(len(b)) {
			return corruptf("an element reaches beyond page %d", native.Uint64(b))
		}
		var sub *Bucket
		switch {
		case flags == 0:
		case flags != 1 || end-value < bucketHeaderLen:
			return corruptf("an element of page %d is of no known type", native.Uint64(b))
		default:
			sub = &Bucket{native.Uint64(b[value:]), b[value+bucketHeaderLen : end]}
		}
		if err := v(b[key:value], b[value:end], sub); err != nil {
			return err
		}
	}
	return nil
}
