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

	pageHeaderLen   = 16 // id 8, flags 2, count 2, overflow 4
	elementLen      = 16 // of a branch: pos 4, ksize 4, page 8; of a leaf: flags 4, pos 4, ksize 4, vsize 4
	bucketHeaderLen = 16 // root 8, sequence 8
	metaLen         = 64
	metaChecked     = 56 // bytes of a meta that its checksum covers

	pageBranch = 0x01
	pageLeaf   = 0x02

	// maxDepth bounds the pages and buckets on the way to a value.
	maxDepth = 48

	minPageSize, maxPageSize = 1 << 10, 1 << 24
)

var (
	errCircle = errors.New("its pages go in a circle")

	native = binary.NativeEndian
)

// Bucket is what a bucket holds. Its values are parts of the file.
type Bucket struct {
	Values  map[string][]byte
	Buckets map[string]*Bucket
	// Err tells what of the bucket can not be read, its buckets aside.
	Err error
}

// Sub returns a bucket of this one, an empty one if it is not there.
func (b *Bucket) Sub(name string) *Bucket {
	if sub := b.Buckets[name]; sub != nil {
		return sub
	}
	return &Bucket{}
}

// file is a file that is read.
type file struct {
	data     []byte
	pageSize uint64
	pages    uint64 // how many there are
	budget   uint64 // how many bytes may still be visited
}

// Read reads a file. It returns the top bucket and the number of the last transaction.
func Read(data []byte) (root *Bucket, transaction uint64, err error) {
	meta := newestMeta(data)
	if meta == nil {
		return nil, 0, errors.New("it does not begin as a state file does")
	}
	f := &file{data: data, pageSize: uint64(native.Uint32(meta[8:])), pages: native.Uint64(meta[40:])}
	if f.pages < 4 || f.pages > uint64(len(data))/f.pageSize {
		return nil, 0, fmt.Errorf("it has %d bytes, and %d pages of %d bytes are in use", len(data), f.pages, f.pageSize)
	}
	f.budget = 2 * f.pages * f.pageSize // each page once, and each small bucket within a page
	return f.bucket(meta[16:][:bucketHeaderLen], 0), native.Uint64(meta[48:]), nil
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

// bucket reads a bucket, which begins at a page or, a small one, behind its header.
func (f *file) bucket(value []byte, depth int) *Bucket {
	b := &Bucket{Values: map[string][]byte{}, Buckets: map[string]*Bucket{}}
	if root := native.Uint64(value); root != 0 {
		b.Err = f.page(b, root, depth)
	} else {
		b.Err = f.elements(b, value[bucketHeaderLen:], depth)
	}
	return b
}

// page reads a page of a bucket, with those that it runs on to.
func (f *file) page(b *Bucket, id uint64, depth int) error {
	if id < 2 || id >= f.pages {
		return fmt.Errorf("page %d is out of range", id)
	}
	data := f.data[id*f.pageSize:]
	if got := native.Uint64(data); got != id {
		return fmt.Errorf("page %d has the number %d", id, got)
	}
	n := uint64(native.Uint32(data[12:])) + 1
	if n > f.pages-id {
		return fmt.Errorf("page %d is out of range", id+n)
	}
	return f.elements(b, data[:n*f.pageSize], depth)
}

// elements reads what is on a page: what a bucket holds, or the pages that have that.
func (f *file) elements(b *Bucket, page []byte, depth int) error {
	if size := uint64(len(page)); size > f.budget || depth > maxDepth {
		return errCircle
	} else if f.budget -= size; size < pageHeaderLen {
		return errors.New("a bucket is too short")
	}
	kind, n := native.Uint16(page[8:]), int(native.Uint16(page[10:]))
	if kind != pageBranch && kind != pageLeaf || pageHeaderLen+n*elementLen > len(page) {
		return fmt.Errorf("page %d is of no known type, or has not %d elements", native.Uint64(page), n)
	}
	for i := range n {
		var err error
		at := pageHeaderLen + i*elementLen
		if kind == pageBranch {
			err = f.page(b, native.Uint64(page[at+8:]), depth+1)
		} else {
			err = f.leaf(b, page[at:], depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leaf reads an element of a leaf, which is at the begin of b.
func (f *file) leaf(to *Bucket, b []byte, depth int) error {
	flags, key := native.Uint32(b), uint64(native.Uint32(b[4:]))
	value := key + uint64(native.Uint32(b[8:]))
	end := value + uint64(native.Uint32(b[12:]))
	switch {
	case end > uint64(len(b)):
		return errors.New("an element reaches beyond its page")
	case flags == 0:
		to.Values[string(b[key:value])] = b[value:end]
	case flags == 1 && end-value >= bucketHeaderLen:
		to.Buckets[string(b[key:value])] = f.bucket(b[value:end], depth+1)
	default:
		return errors.New("an element is of no known type")
	}
	return nil
}
