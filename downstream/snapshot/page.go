package snapshot

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

const (
	// pageBytes is the encoded size of pages: few buffers in a response, cheap to encode again.
	pageBytes = 32 << 10
)

// Form is how items stand in a DiscoveryResponse. A DeltaDiscoveryResponse has one form only.
type Form uint8

// The forms.
const (
	Full  Form = iota
	Short      // without what its clients do not read
	Forms      // their number
)

// Version returns the version_info of content in a form: a client that comes back and is to have another
// form now does not have that.
func (f Form) Version(content string) string {
	if f == Short {
		return content + ".s"
	}
	return content
}

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
	// AppendShort appends the item as Frame has it, but in the form Short.
	AppendShort(b []byte) []byte
}

// appendItem appends an item as a field of a DiscoveryResponse.
func (f Form) appendItem(b []byte, item Item) []byte {
	if f == Short {
		return item.AppendShort(b)
	}
	return append(b, item.Frame()...)
}

// Frame returns an item as a field of a DiscoveryResponse.
func (f Form) Frame(item Item) []byte {
	if f == Short {
		return item.AppendShort(nil)
	}
	return item.Frame()
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

// Page is a run of entries, sorted by name. It is immutable, but for its encodings, which the first
// client makes that needs one.
type Page struct {
	Entries []Entry
	MaxRev  uint64
	Bytes   int // sum of the frames, in the form Full

	encoding sync.Mutex // held while the page is encoded: by one client, for all
	encoded  [Forms]atomic.Pointer[mem.Buffer]
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

// frames returns the items as they stand in a DiscoveryResponse. One client encodes them for all of its
// form, and calls encoded with their size.
func (p *Page) frames(form Form, encoded func(bytes int)) mem.Buffer {
	kept := &p.encoded[form]
	if b := kept.Load(); b != nil {
		return *b
	}
	p.encoding.Lock()
	defer p.encoding.Unlock()
	if b := kept.Load(); b != nil {
		return *b
	}
	b := make([]byte, 0, p.Bytes)
	for i := range p.Entries {
		b = form.appendItem(b, p.Entries[i].Item)
	}
	buffer := mem.Buffer(mem.SliceBuffer(b))
	kept.Store(&buffer)
	encoded(len(b))
	return buffer
}

// Encoded reports whether the page is kept encoded in a form.
func (p *Page) Encoded(form Form) bool { return p.encoded[form].Load() != nil }

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
