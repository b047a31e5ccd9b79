package snapshot

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// pageBytes is the encoded size of pages: few buffers in a response, cheap to encode again.
	pageBytes = 32 << 10
)

// Item is what a collection holds: immutable, encoded, and named.
type Item interface {
	FullName() string
	// Digest identifies the content. Items of one name with equal digests are the same.
	Digest() [16]byte
	// Version is the digest as clients see it.
	Version() string
	// Frame is the item as a field of a DiscoveryResponse, DeltaEntry as one of a
	// DeltaDiscoveryResponse.
	Frame() []byte
	DeltaEntry() []byte
}

// Same reports whether two items of a collection, which may be nil, are the same.
func Same(a, b Item) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a == b || a.Digest() == b.Digest() && a.FullName() == b.FullName()
}

// Entry is an item and the revision of the collection at which it came to be what it is.
type Entry struct {
	Item Item
	Rev  uint64
}

// Page is a run of entries, sorted by name. It is immutable, but for its encoding, which the first
// client makes that needs it.
type Page struct {
	Entries []Entry
	MaxRev  uint64
	Bytes   int

	encoding sync.Mutex // held while the page is encoded: by one client, for all
	encoded  atomic.Pointer[[]byte]
}

func newPage(entries []Entry) *Page {
	p := &Page{Entries: entries}
	for i := range entries {
		p.MaxRev = max(p.MaxRev, entries[i].Rev)
		p.Bytes += len(entries[i].Item.Frame())
	}
	return p
}

func (p *Page) firstName() string { return p.Entries[0].Item.FullName() }

func (p *Page) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.Entries, name, func(e Entry, name string) int {
		return cmp.Compare(e.Item.FullName(), name)
	})
}

// frames returns the items as they stand in a DiscoveryResponse. One client encodes them for all, and
// calls encoded with their size.
func (p *Page) frames(encoded func(bytes int)) []byte {
	if b := p.encoded.Load(); b != nil {
		return *b
	}
	p.encoding.Lock()
	defer p.encoding.Unlock()
	if b := p.encoded.Load(); b != nil {
		return *b
	}
	b := make([]byte, 0, p.Bytes)
	for i := range p.Entries {
		b = append(b, p.Entries[i].Item.Frame()...)
	}
	p.encoded.Store(&b)
	encoded(len(b))
	return b
}

// Encoded reports whether the page is kept encoded.
func (p *Page) Encoded() bool { return p.encoded.Load() != nil }

// paginate cuts sorted entries into pages.
func paginate(entries []Entry) []*Page {
	var pages []*Page
	for len(entries) > 0 {
		n, size := 0, 0
		for n < len(entries) && (n == 0 || size+len(entries[n].Item.Frame()) <= pageBytes) {
			size += len(entries[n].Item.Frame())
			n++
		}
		pages = append(pages, newPage(slices.Clone(entries[:n])))
		entries = entries[n:]
	}
	return pages
}
