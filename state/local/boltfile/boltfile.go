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
	"io"
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

// File is an open file. One goroutine reads it.
type File struct {
	from     io.ReaderAt
	pageSize int
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
	at     int64 // of inline
}

// Visitor is called for each key of a bucket, in order: with a value and its place in the file,
// or with a bucket. The slices are valid during the call. A bucket can be walked once.
type Visitor func(key, value []byte, at int64, sub *Bucket) error

// Open reads what a file tells of itself. size is the length of the file in bytes.
func Open(from io.ReaderAt, size int64) (*File, error) {
	meta, err := newestMeta(from, size)
	if err != nil {
		return nil, err
	}
	f := &File{from: from, pageSize: int(native.Uint32(meta[8:])), root: native.Uint64(meta[16:]), pages: native.Uint64(meta[40:]), Transaction: native.Uint64(meta[48:])}
	if f.pages < 4 || f.pages > uint64(size)/uint64(f.pageSize) {
		return nil, corruptf("it has %d bytes, and %d pages of %d bytes are in use", size, f.pages, f.pageSize)
	}
	return f, nil
}

// newestMeta returns the newest meta that is whole: the other one is that of the transaction
// before, and is used when the last one was not written to the end. It is on the second page.
func newestMeta(from io.ReaderAt, size int64) (best []byte, err error) {
	for at := int64(0); at <= maxPageSize && at+pageHeaderLen+metaLen <= size; at = max(2*at, minPageSize) {
		b := make([]byte, pageHeaderLen+metaLen)
		if _, err := from.ReadAt(b, at); err != nil {
			continue
		}
		m := b[pageHeaderLen:]
		h := fnv.New64a()
		_, _ = h.Write(m[:metaChecked]) // never fails
		pageSize := int64(native.Uint32(m[8:]))
		switch {
		case native.Uint32(m) != magic || native.Uint32(m[4:]) != version || native.Uint64(m[metaChecked:]) != h.Sum64():
		case pageSize < minPageSize || pageSize > maxPageSize || at != 0 && at != pageSize:
		case best == nil || native.Uint64(m[48:]) > native.Uint64(best[48:]):
			best = m
		}
	}
	if best == nil {
		return nil, corruptf("it does not begin as a state file does")
	}
	return best, nil
}

// page reads a page with those that it runs on to. Pages that refer to one another in a circle,
// or again and again to others, are more than there are.
func (f *File) page(id uint64) ([]byte, error) {
	if id < 2 || id >= f.pages {
		return nil, corruptf("page %d is out of range", id)
	}
	b := make([]byte, f.pageSize)
	if _, err := f.from.ReadAt(b, int64(id)*int64(f.pageSize)); err != nil {
		return nil, corruptf("page %d: %v", id, err)
	}
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
	if n == 1 {
		return b, nil
	}
	whole := append(b, make([]byte, (n-1)*uint64(f.pageSize))...)
	if _, err := f.from.ReadAt(whole[f.pageSize:], int64(id+1)*int64(f.pageSize)); err != nil {
		return nil, corruptf("page %d: %v", id, err)
	}
	return whole, nil
}

// Walk visits the top level. It returns the first error, of the file or of v.
func (f *File) Walk(v Visitor) error { return f.WalkBucket(&Bucket{page: f.root}, v) }

// WalkBucket visits a bucket.
func (f *File) WalkBucket(b *Bucket, v Visitor) error {
	if b.page == 0 {
		return f.leaf(b.inline, b.at, v)
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
		return f.leaf(b, int64(id)*int64(f.pageSize), v)
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

// leaf visits the elements of a page that begins at a place in the file.
func (f *File) leaf(b []byte, place int64, v Visitor) error {
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
			sub = &Bucket{native.Uint64(b[value:]), b[value+bucketHeaderLen : end], place + int64(value) + bucketHeaderLen}
		}
		if err := v(b[key:value], b[value:end], place+int64(value), sub); err != nil {
			return err
		}
	}
	return nil
}
