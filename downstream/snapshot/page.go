package snapshot

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

const (
	// pageBytes is the encoded size of a page: large enough that a response has few buffers, and small enough
	// to be encoded again cheaply.
	pageBytes = 32 << 10
)

// Form is the form of items in a DiscoveryResponse. A DeltaDiscoveryResponse has only one form.
type Form uint8

// The forms.
const (
	Full  Form = iota
	Short      // without fields that istiods do not read
	Forms      // the number of forms
)

// Version returns the version_info for content in a form. It differs between forms, so that a client which
// reconnects and now gets another form gets a response.
func (f Form) Version(content string) string {
	if f == Short {
		return content + ".s"
	}
	return content
}

// Item is an encoded, immutable item of a collection.
type Item interface {
	FullName() string
	// Digest identifies the content. Two items of one name with the same digest are equal.
	Digest() [16]byte
	// Version is the digest as a text for clients.
	Version() string
	// Frame is the item as a field of a DiscoveryResponse. DeltaEntry is the item as a field of a
	// DeltaDiscoveryResponse.
	Frame() []byte
	DeltaEntry() []byte
	// AppendShort appends the item as Frame returns it, in the form Short.
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

// Same reports whether two items of a collection are equal. Either may be nil.
func Same(a, b Item) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a == b || a.Digest() == b.Digest() && a.FullName() == b.FullName()
}

// Entry is an item with the revision of its last change.
type Entry struct {
	Item Item
	Rev  uint64
}

// Page is a list of entries, sorted by name. It is immutable, except for its encodings. The first client that
// needs an encoding makes it.
type Page struct {
	Entries []Entry
	MaxRev  uint64
	Bytes   int // sum of the lengths of Frame

	encoding sync.Mutex // held while a client encodes the page for all clients
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

// frames returns the items as fields of a DiscoveryResponse. The first call for a form encodes them, and
// calls encoded with their size.
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

// Encoded reports whether the page keeps an encoding in a form.
func (p *Page) Encoded(form Form) bool { return p.encoded[form].Load() != nil }

// paginate splits sorted entries into pages.
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
