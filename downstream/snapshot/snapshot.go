// Package snapshot keeps encoded items as sequences of immutable snapshots.
//
// A Snapshot is a sorted list of pages; a change makes a new one that shares all pages but one
// with the one before, and adds to a bounded log. A derived Collection has the pages of a base
// collection wherever its content is the same. A SotW response is the encoded pages of a
// snapshot, a delta response the encoded items of a Difference; both are lists of shared
// buffers behind a small header.
//
// The package does no I/O. It must not know what an item is made of, nor who reads it.
package snapshot

import (
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

const (
	// logLen is how many changes a collection remembers. For a client further behind it compares
	// revisions.
	logLen = 4096
	// removedLen is how many removed names a collection remembers beyond its log. A client
	// further behind has to reconnect and tell its versions.
	removedLen = 65536
	// derivedLogLen and derivedRemovedLen are for derived collections, which may be many.
	derivedLogLen     = 512
	derivedRemovedLen = 8192
	// deltasKept is how many encoded differences a snapshot keeps for sharing.
	deltasKept = 4
	// initialKept is how many type URLs a snapshot keeps complete responses of.
	initialKept = 4
)

// Digest identifies the content of a set of items, in any order: it is the sum of their 128-bit
// digests.
type Digest struct{ hi, lo uint64 }

// Plus returns the digest of a set with one item more.
func (d Digest) Plus(sum [16]byte) Digest {
	lo, carry := bits.Add64(d.lo, binary.BigEndian.Uint64(sum[8:]), 0)
	hi, _ := bits.Add64(d.hi, binary.BigEndian.Uint64(sum[:8]), carry)
	return Digest{hi, lo}
}

func (d Digest) minus(sum [16]byte) Digest {
	lo, borrow := bits.Sub64(d.lo, binary.BigEndian.Uint64(sum[8:]), 0)
	hi, _ := bits.Sub64(d.hi, binary.BigEndian.Uint64(sum[:8]), borrow)
	return Digest{hi, lo}
}

// String returns the version_info of the set, which is the same in every relay.
func (d Digest) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.hi)
	binary.BigEndian.PutUint64(b[8:], d.lo)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Change is one entry of a log. Was is the digest that the name had before, or zero.
type Change struct {
	Rev  uint64
	Name string
	Was  [16]byte
}

// removal is a name that was removed.
type removal struct {
	rev  uint64
	name string
}

// Snapshot is one state of a collection. It is immutable.
type Snapshot struct {
	// Rev is the revision of the newest change. It is the cursor of clients that have the snapshot.
	Rev     uint64
	Digest  Digest
	Version string // Digest, spelled
	Count   int
	Bytes   int // sum of the frames, in the form Full
	// ChangedAt is when the oldest change that this snapshot brought was noticed.
	ChangedAt time.Time
	Pages     []*Page
	// Log has every change with a rev above LogFrom. removed has of every name that was
	// removed at a rev above removedFrom the newest removal, and may have others. Both are
	// sorted, oldest first.
	Log         []Change
	LogFrom     uint64
	removed     []removal
	removedFrom uint64
	// tidied is how many removals were left when trim last kept the newest of each name.
	tidied int

	// full caches the difference from nothing, deltas those from recent cursors.
	full    atomic.Pointer[Difference] // set once, under mu
	mu      sync.Mutex                 // guards all below
	deltas  []*Difference
	initial []initialResponse
}

// Empty is the snapshot of a collection that never had anything.
var Empty = newSnapshot()

func newSnapshot() *Snapshot { return &Snapshot{Version: Digest{}.String()} }

// Find returns the item of a name and the revision of its last change.
func (s *Snapshot) Find(name string) (item Item, rev uint64, found bool) {
	if len(s.Pages) == 0 {
		return nil, 0, false
	}
	p := s.Pages[pageOf(s.Pages, name)]
	if n, ok := p.find(name); ok {
		return p.Entries[n].Item, p.Entries[n].Rev, true
	}
	return nil, 0, false
}

// Get returns the item of a name, nil when there is none.
func (s *Snapshot) Get(name string) Item {
	item, _, _ := s.Find(name)
	return item
}

// Each calls f with every item, in the order of names.
func (s *Snapshot) Each(f func(Item)) {
	for _, p := range s.Pages {
		for i := range p.Entries {
			f(p.Entries[i].Item)
		}
	}
}

// Frames returns all items as they stand in a DiscoveryResponse, behind a free buffer for the header,
// and their size. It calls encoded with the size of each page that it encodes.
func (s *Snapshot) Frames(form Form, encoded func(bytes int)) (frames mem.BufferSlice, size int) {
	frames = make(mem.BufferSlice, 1, 1+len(s.Pages))
	for _, p := range s.Pages {
		b := p.frames(form, encoded)
		frames, size = append(frames, b), size+b.Len()
	}
	return frames, size
}
