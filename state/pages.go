package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt reads its file through a memory map and trusts what is there: a page that is not
// what it should be ends in a panic, in part on goroutines of its own, where nobody can
// recover, and a file that is too short in a fault. So a file is read here, with checks of
// all that bbolt relies on, before bbolt is let near it. The format has been the same since
// 2014; its fields are in the byte order of the machine.

const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	pageHeaderLen    = 16 // id 8, flags 2, count 2, overflow 4
	branchElementLen = 16 // pos 4, ksize 4, page 8
	leafElementLen   = 16 // flags 4, pos 4, ksize 4, vsize 4
	bucketHeaderLen  = 16 // root 8, sequence 8
	metaLen          = 64
	metaChecked      = 56 // bytes of a meta that its checksum covers

	pageBranch   = 0x01
	pageLeaf     = 0x02
	pageFreelist = 0x10

	noFreelist = ^uint64(0)

	// maxTreeDepth bounds the pages on the way to a leaf, and the buckets within buckets.
	maxTreeDepth = 48

	minPageSize, maxPageSize = 1 << 10, 1 << 24
)

// errCorrupt is in every error that says that a file is not what was written.
var errCorrupt = errors.New("the file is damaged")

func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
}

var native = binary.NativeEndian

// tree is a file as bbolt lays it out. It is read by one goroutine.
type tree struct {
	file     io.ReaderAt
	pageSize int
	// pages is how many there are, of which used are in use by what was read.
	pages uint64
	used  uint64
	seen  []uint64 // a bit for each page
	root  uint64
	spare [][]byte
	// unusable is what is wrong that does not stand in the way of reading, but would in that
	// of writing; nil when nothing is.
	unusable error
}

// bucket is where a bucket begins: at a page or, a small one, within the value.
type bucket struct {
	page   uint64
	inline []byte
}

// visitor is called for each key of a bucket, in order: with a value, or with a bucket. The
// slices are valid during the call. A bucket must be walked in it: what is not walked is not
// checked.
type visitor func(key, value []byte, sub *bucket) error

// openTree reads what a file says of itself. size is the length of the file in bytes.
func openTree(file io.ReaderAt, size int64) (*tree, error) {
	meta, err := newestMeta(file, size)
	if err != nil {
		return nil, err
	}
	t := &tree{file: file, pageSize: int(native.Uint32(meta[8:])), root: native.Uint64(meta[16:]), pages: native.Uint64(meta[40:])}
	if t.pages < 4 || t.pages > uint64(size)/uint64(t.pageSize) {
		return nil, corruptf("it has %d bytes, and %d pages of %d bytes are in use", size, t.pages, t.pageSize)
	}
	t.seen = make([]uint64, t.pages/64+1)
	t.used = 2
	t.seen[0] = 3 // the metas
	if freelist := native.Uint64(meta[32:]); freelist != noFreelist {
		if err := t.checkFreelist(freelist); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// newestMeta returns the newest meta that is whole: the other one is that of the transaction
// before, and is used when the last one was not written to the end.
func newestMeta(file io.ReaderAt, size int64) ([]byte, error) {
	read := func(at int64) []byte {
		b := make([]byte, pageHeaderLen+metaLen)
		if at+int64(len(b)) > size {
			return nil
		}
		if _, err := file.ReadAt(b, at); err != nil {
			return nil
		}
		m := b[pageHeaderLen:]
		h := fnv.New64a()
		_, _ = h.Write(m[:metaChecked]) // never fails
		pageSize := native.Uint32(m[8:])
		if native.Uint32(m) != boltMagic || native.Uint32(m[4:]) != boltVersion || native.Uint64(m[metaChecked:]) != h.Sum64() ||
			pageSize < minPageSize || pageSize > maxPageSize || pageSize&(pageSize-1) != 0 {
			return nil
		}
		return m
	}
	first := read(0)
	var second []byte
	if first != nil {
		second = read(int64(native.Uint32(first[8:])))
	} else {
		for at := int64(minPageSize); at <= maxPageSize && second == nil; at *= 2 {
			if second = read(at); second != nil && int64(native.Uint32(second[8:])) != at {
				second = nil
			}
		}
	}
	switch {
	case first == nil && second == nil:
		return nil, corruptf("it does not begin as a state file does")
	case first == nil:
		return second, nil
	case second == nil || native.Uint64(second[48:]) <= native.Uint64(first[48:]) || native.Uint32(second[8:]) != native.Uint32(first[8:]):
		return first, nil
	}
	return second, nil
}

// claim notes that pages are in use, each once.
func (t *tree) claim(id, n uint64) error {
	if id < 2 || n > t.pages || id > t.pages-n {
		return corruptf("page %d is out of range", id)
	}
	for i := id; i < id+n; i++ {
		if t.seen[i/64]&(1<<(i%64)) != 0 {
			return corruptf("page %d is referred to twice", i)
		}
		t.seen[i/64] |= 1 << (i % 64)
	}
	t.used += n
	return nil
}

// page reads a page with those that it runs on to. It is given back with give.
func (t *tree) page(id uint64) ([]byte, error) {
	if id < 2 || id >= t.pages {
		return nil, corruptf("page %d is out of range", id)
	}
	b := t.take(t.pageSize)
	if err := t.read(b, id); err != nil {
		return nil, err
	}
	if got := native.Uint64(b); got != id {
		return nil, corruptf("page %d says that it is page %d", id, got)
	}
	n := uint64(native.Uint32(b[12:])) + 1
	if err := t.claim(id, n); err != nil {
		return nil, err
	}
	if n == 1 {
		return b, nil
	}
	whole := t.take(int(n) * t.pageSize)
	copy(whole, b)
	t.give(b)
	if err := t.read(whole[t.pageSize:], id+1); err != nil {
		return nil, err
	}
	return whole, nil
}

func (t *tree) read(b []byte, id uint64) error {
	if _, err := t.file.ReadAt(b, int64(id)*int64(t.pageSize)); err != nil {
		return corruptf("page %d: %v", id, err)
	}
	return nil
}

// take returns a buffer of n bytes, one that was given back if there is one.
func (t *tree) take(n int) []byte {
	if last := len(t.spare) - 1; n == t.pageSize && last >= 0 {
		b := t.spare[last]
		t.spare = t.spare[:last]
		return b
	}
	return make([]byte, n)
}

func (t *tree) give(b []byte) {
	if len(b) == t.pageSize {
		t.spare = append(t.spare, b)
	}
}

// checkFreelist checks the list of free pages: one of them that is in use would be
// overwritten.
func (t *tree) checkFreelist(id uint64) error {
	b, err := t.page(id)
	if err != nil {
		return err
	}
	defer t.give(b)
	if native.Uint16(b[8:]) != pageFreelist {
		return corruptf("page %d is not the list of free pages", id)
	}
	n, at := uint64(native.Uint16(b[10:])), pageHeaderLen
	if n == 0xFFFF {
		n, at = native.Uint64(b[at:]), at+8
	}
	if n > uint64(len(b)-at)/8 {
		return corruptf("the list of free pages is longer than its page")
	}
	for i := range n {
		if err := t.claim(native.Uint64(b[at+int(i)*8:]), 1); err != nil {
			return err
		}
	}
	t.used -= n
	return nil
}

// walk visits the top level.
func (t *tree) walk(v visitor) error { return t.walkBucket(&bucket{page: t.root}, v) }

// walkBucket visits a bucket. It returns the first error, be it of the file or of v.
func (t *tree) walkBucket(b *bucket, v visitor) error {
	if b.page == 0 {
		_, err := t.leaf(b.inline, nil, nil, v, true)
		return err
	}
	_, err := t.walkPage(b.page, nil, nil, maxTreeDepth, v)
	return err
}

// skipBucket checks a bucket, and those in it, of which nothing is wanted.
func (t *tree) skipBucket(b *bucket, depth int) error {
	if depth == 0 {
		return corruptf("buckets are nested deeper than %d", maxTreeDepth)
	}
	return t.walkBucket(b, func(_, _ []byte, sub *bucket) error {
		if sub == nil {
			return nil
		}
		return t.skipBucket(sub, depth-1)
	})
}

// walkPage visits what is below a page, whose keys are at least low and less than high, if
// those are not nil. It returns the last key.
func (t *tree) walkPage(id uint64, low, high []byte, depth int, v visitor) (last []byte, err error) {
	if depth == 0 {
		return nil, corruptf("pages are nested deeper than %d", maxTreeDepth)
	}
	b, err := t.page(id)
	if err != nil {
		return nil, err
	}
	defer t.give(b)
	switch native.Uint16(b[8:]) {
	case pageLeaf:
		return t.leaf(b, low, high, v, false)
	case pageBranch:
		return t.branch(b, low, high, depth, v)
	}
	return nil, corruptf("page %d is of no known type", id)
}

func (t *tree) branch(b, low, high []byte, depth int, v visitor) (last []byte, err error) {
	n := int(native.Uint16(b[10:]))
	if n == 0 || pageHeaderLen+n*branchElementLen > len(b) {
		return nil, corruptf("page %d has %d branches", native.Uint64(b), n)
	}
	key := func(i int) ([]byte, error) {
		at := pageHeaderLen + i*branchElementLen
		return part(b, at, native.Uint32(b[at:]), native.Uint32(b[at+4:]))
	}
	next, err := key(0)
	if err != nil {
		return nil, err
	}
	for i := range n {
		k := next
		if err := t.inOrder(k, low, high, i == 0); err != nil {
			return nil, err
		}
		below := high
		if i+1 < n {
			if next, err = key(i + 1); err != nil {
				return nil, err
			}
			below = next
		}
		if last, err = t.walkPage(native.Uint64(b[pageHeaderLen+i*branchElementLen+8:]), k, below, depth-1, v); err != nil {
			return nil, err
		}
		low = last
	}
	return last, nil
}

func (t *tree) leaf(b, low, high []byte, v visitor, inline bool) (last []byte, err error) {
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
		if err := t.inOrder(key, low, high, i == 0); err != nil {
			return nil, err
		}
		low = key
		value := b[at+int(pos)+int(ksize):]
		if uint64(vsize) > uint64(len(value)) {
			return nil, corruptf("a value reaches beyond page %d", native.Uint64(b))
		}
		value = value[:vsize:vsize]
		var sub *bucket
		switch {
		case flags == 0:
		case flags != 1 || inline || len(value) < bucketHeaderLen:
			return nil, corruptf("an element of page %d is of no known type", native.Uint64(b))
		default:
			sub = &bucket{page: native.Uint64(value)}
			if sub.page == 0 {
				sub.inline = value[bucketHeaderLen:]
			}
			value = nil
		}
		if err := v(key, value, sub); err != nil {
			return nil, err
		}
	}
	// The page is given back before the key is compared with those of the next.
	return bytes.Clone(low), nil
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
func (t *tree) inOrder(key, low, high []byte, first bool) error {
	if low != nil {
		c := bytes.Compare(key, low)
		if c < 0 || c == 0 && !first {
			return corruptf("its keys are out of order")
		}
		if c > 0 && first && t.unusable == nil {
			// bbolt finds a page among its siblings by its first key.
			t.unusable = corruptf("the first key of a page is not the one by which it is found")
		}
	}
	if high != nil && bytes.Compare(key, high) >= 0 {
		return corruptf("its keys are out of order")
	}
	return nil
}
