package downstream

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"meshrelay/mirror"
)

const (
	// pageBytes is the encoded size that pages aim at: large enough that a response
	// is few buffers, small enough that re-encoding one for a change is cheap.
	pageBytes = 32 << 10
)

// entry is a resource and the revision of the collection at which it came to be
// what it is.
type entry struct {
	res *mirror.Resource
	rev uint64
}

// page is a run of a collection's entries, sorted by name. It is immutable, but for
// its encoding, which is made when the first client needs it.
type page struct {
	entries []entry
	maxRev  uint64
	bytes   int

	encoding sync.Mutex // held while the page is encoded: by one client, for all
	encoded  atomic.Pointer[[]byte]
}

func newPage(entries []entry) *page {
	p := &page{entries: entries}
	for i := range entries {
		p.maxRev = max(p.maxRev, entries[i].rev)
		p.bytes += len(entries[i].res.Frame())
	}
	return p
}

func (p *page) firstName() string { return p.entries[0].res.FullName() }

func (p *page) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.entries, name, func(e entry, name string) int {
		return cmp.Compare(e.res.FullName(), name)
	})
}

// frames returns the page's resources as they stand in a DiscoveryResponse. Of clients
// that come at once, one encodes it.
func (p *page) frames(m *metrics) []byte {
	if b := p.encoded.Load(); b != nil {
		return *b
	}
	p.encoding.Lock()
	defer p.encoding.Unlock()
	if b := p.encoded.Load(); b != nil {
		return *b
	}
	b := make([]byte, 0, p.bytes)
	for i := range p.entries {
		b = append(b, p.entries[i].res.Frame()...)
	}
	p.encoded.Store(&b)
	m.pageEncoded(len(b))
	return b
}

// paginate cuts sorted entries into pages.
func paginate(entries []entry) []*page {
	var pages []*page
	for len(entries) > 0 {
		n, size := 0, 0
		for n < len(entries) && (n == 0 || size+len(entries[n].res.Frame()) <= pageBytes) {
			size += len(entries[n].res.Frame())
			n++
		}
		pages = append(pages, newPage(slices.Clone(entries[:n])))
		entries = entries[n:]
	}
	return pages
}
