// Package boltfile reads a bbolt file, and checks all of it that a reader relies on. It is there
// for relay.db, the state of earlier releases.
//
// bbolt itself is not used: it trusts the pages that it maps, so that a damaged file makes it
// panic, also on goroutines of its own, or follow pages in a circle for ever. The package must
// not know what the buckets hold.
package boltfile

import (
	"bytes"
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
	// pages is how many there are, and seen has a bit for each that was read.
	pages uint64
	seen  []uint64
	root  uint64
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
	f.seen = make([]uint64, f.pages/64+1)
	return f, nil
}

// newestMeta returns the newest meta that is whole: the other one is that of the transaction
// before, and is used when the last one was not written to the end.
func newestMeta(from io.ReaderAt, size int64) ([]byte, error) {
	read := func(at int64) []byte {
		b := make([]byte, pageHeaderLen+metaLen)
		if at+int64(len(b)) > size {
			return nil
		}
		if _, err := from.ReadAt(b, at); err != nil {
			return nil
		}
		m := b[pageHeaderLen:]
		h := fnv.New64a()
		_, _ = h.Write(m[:metaChecked]) // never fails
		pageSize := native.Uint32(m[8:])
		if native.Uint32(m) != magic || native.Uint32(m[4:]) != version || native.Uint64(m[metaChecked:]) != h.Sum64() ||
			pageSize < minPageSize || pageSize > maxPageSize || pageSize&(pageSize-1) != 0 {
			return nil
		}
		return m
	}
	best := read(0)
	for at := int64(minPageSize); at <= maxPageSize; at *= 2 {
		m := read(at)
		if m == nil || int64(native.Uint32(m[8:])) != at || best != nil && native.Uint32(best[8:]) != native.Uint32(m[8:]) {
			continue
		}
		if best == nil || native.Uint64(m[48:]) > native.Uint64(best[48:]) {
			best = m
		}
	}
	if best == nil {
		return nil, corruptf("it does not begin as a state file does")
	}
	return best, nil
}

// page reads a page with those that it runs on to. Each is read once: pages that refer to one
// another in a circle, or twice to a third, are damage.
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
	for i := id; i < id+n; i++ {
		if f.seen[i/64]&(1<<(i%64)) != 0 {
			return nil, corruptf("page %d is referred to twice", i)
		}
		f.seen[i/64] |= 1 << (i % 64)
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
		_, err := f.leaf(b.inline, b.at, nil, nil, v, true)
		return err
	}
	_, err := f.walk(b.page, nil, nil, maxDepth, v)
	return err
}

// walk visits what is below a page, whose keys are at least low and less than high, if those
// are not nil. It returns the last key.
func (f *File) walk(id uint64, low, high []byte, depth int, v Visitor) (last []byte, err error) {
	if depth == 0 {
		return nil, corruptf("pages are nested deeper than %d", maxDepth)
	}
	b, err := f.page(id)
	if err != nil {
		return nil, err
	}
	switch native.Uint16(b[8:]) {
	case pageLeaf:
		return f.leaf(b, int64(id)*int64(f.pageSize), low, high, v, false)
	case pageBranch:
		return f.branch(b, low, high, depth, v)
	}
	return nil, corruptf("page %d is of no known type", id)
}

func (f *File) branch(b, low, high []byte, depth int, v Visitor) (last []byte, err error) {
	n := int(native.Uint16(b[10:]))
	if n == 0 || pageHeaderLen+n*branchElementLen > len(b) {
		return nil, corruptf("page %d has %d branches", native.Uint64(b), n)
	}
	keys := make([][]byte, n, n+1)
	for i := range n {
		at := pageHeaderLen + i*branchElementLen
		if keys[i], err = part(b, at, native.Uint32(b[at:]), native.Uint32(b[at+4:])); err != nil {
			return nil, err
		}
	}
	keys = append(keys, high)
	for i := range n {
		if err := inOrder(keys[i], low, high, i == 0); err != nil {
			return nil, err
		}
		id := native.Uint64(b[pageHeaderLen+i*branchElementLen+8:])
		if low, err = f.walk(id, keys[i], keys[i+1], depth-1, v); err != nil {
			return nil, err
		}
	}
	return low, nil
}

func (f *File) leaf(b []byte, base int64, low, high []byte, v Visitor, inline bool) (last []byte, err error) {
	if len(b) < pageHeaderLen || native.Uint16(b[8:]) != pageLeaf {
		return nil, corruptf("a bucket is of no known type")
	}
	n := int(native.Uint16(b[10:]))
	if pageHeaderLen+n*leafElementLen > len(b) {
		return nil, corruptf("page %d has %d elements", native.Uint64(b), n)
	}
	for i := range n {
		at := pageHeaderLen + i*leafElementLen
		flags, pos, ksize, vsize := native.Uint32(b[at:]), native.Uint32(b[at+4:]), native.Uint32(b[at+8:]), native.Uint32(b[at+12:])
		key, err := part(b, at, pos, ksize)
		if err != nil {
			return nil, err
		}
		if err := inOrder(key, low, high, i == 0); err != nil {
			return nil, err
		}
		low = key
		from := uint64(at) + uint64(pos) + uint64(ksize)
		if from+uint64(vsize) > uint64(len(b)) {
			return nil, corruptf("a value reaches beyond page %d", native.Uint64(b))
		}
		value, place := b[from:from+uint64(vsize):from+uint64(vsize)], base+int64(from)
		var sub *Bucket
		switch {
		case flags == 0:
		case flags != 1 || inline || len(value) < bucketHeaderLen:
			return nil, corruptf("an element of page %d is of no known type", native.Uint64(b))
		default:
			sub = &Bucket{page: native.Uint64(value), inline: value[bucketHeaderLen:], at: place + bucketHeaderLen}
			value = nil
		}
		if err := v(key, value, place, sub); err != nil {
			return nil, err
		}
	}
	return low, nil
}

// part returns what an element that stands at a place of a page points to.
func part(b []byte, at int, pos, size uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	if from+uint64(size) > uint64(len(b)) {
		return nil, corruptf("a key reaches beyond page %d", native.Uint64(b))
	}
	if size == 0 {
		return nil, corruptf("a key of page %d is empty", native.Uint64(b))
	}
	return b[from : from+uint64(size) : from+uint64(size)], nil
}

// inOrder checks that a key comes after low, or is low if it is the first, and before high.
func inOrder(key, low, high []byte, first bool) error {
	if c := bytes.Compare(key, low); low != nil && (c < 0 || c == 0 && !first) {
		return corruptf("its keys are out of order")
	}
	if high != nil && bytes.Compare(key, high) >= 0 {
		return corruptf("its keys are out of order")
	}
	return nil
}
