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
	// logLen is how many of the newest changes of a collection are remembered. A
	// client that is further behind is served by comparing revisions.
	logLen = 4096
	// removedLen is how many removed names are remembered, for clients that the log
	// no longer covers; of a name that was removed often, the newest removal. A client
	// that is further behind still has to say what it holds, by reconnecting.
	removedLen = 65536
	// derivedLogLen and derivedRemovedLen are the same for derived collections. There may
	// be many of those.
	derivedLogLen     = 512
	derivedRemovedLen = 8192
	// deltasKept is how many encoded differences a snapshot keeps for sharing.
	deltasKept = 4
	// initialKept is how many type URLs a snapshot keeps complete responses of: a type has few
	// API versions.
	initialKept = 4
)

// Digest identifies the content of a set of items: the sum of the items'
// 128-bit digests. It does not depend on their order, and changes with one addition
// or subtraction a change.
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

// String returns the version_info of the set: the same in every relay that serves
// the same set.
func (d Digest) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.hi)
	binary.BigEndian.PutUint64(b[8:], d.lo)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Change is one entry of a collection's log. Was is the digest of what the name
// had before; zero when nothing.
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

// Snapshot is one state of a collection. It is immutable; any number of clients
// read it at once, without locks.
type Snapshot struct {
	// Rev is that of the newest change that led here: it grows, with gaps. A client's
	// cursor is the Rev of the snapshot it was last brought to.
	Rev     uint64
	Digest  Digest
	Version string // Digest, spelled
	Count   int
	Bytes   int // sum of the frames
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
	// tidied is how many removals were left when those of names that were removed again
	// were last forgotten.
	tidied int

	// full caches the difference from nothing, deltas those from recent cursors.
	full    atomic.Pointer[Difference]
	mu      sync.Mutex // guards all below
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

// Frames returns all items as they stand in a DiscoveryResponse, behind a buffer that is left
// free for the header. encoded is called with the size of each page that had to be encoded.
func (s *Snapshot) Frames(encoded func(bytes int)) mem.BufferSlice {
	frames := make(mem.BufferSlice, 1, 1+len(s.Pages))
	for _, p := range s.Pages {
		frames = append(frames, mem.SliceBuffer(p.frames(encoded)))
	}
	return frames
}
