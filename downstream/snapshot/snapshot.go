// Package snapshot keeps encoded items as sequences of immutable snapshots.
//
// A Snapshot is a sorted list of pages. A change of one item makes a new Snapshot, which shares all other
// pages with the one before. It also adds the change to a log of limited length. A derived Collection shares
// each page of its base collection that has the same content. A SotW response has the encoded pages of a
// snapshot. A delta response has the encoded items of a Difference. Both are lists of shared buffers after a
// small header.
//
// The package does no I/O. It must not know of which resources an item is made, or who reads it.
package snapshot

import (
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

const (
	// logLen is how many changes a collection remembers. For an older cursor it compares the revisions of all
	// entries.
	logLen = 4096
	// removedLen is how many removed names a collection remembers, beyond its log. A client with an older
	// cursor must reconnect and send the versions that it has.
	removedLen = 65536
	// derivedLogLen and derivedRemovedLen are the same for derived collections. They are smaller, because
	// there may be many.
	derivedLogLen     = 512
	derivedRemovedLen = 8192
	// deltasKept is how many differences a snapshot keeps for other clients.
	deltasKept = 4
	// initialKept is for how many type URLs a snapshot keeps the first answer.
	initialKept = 4
)

// Digest identifies the content of a set of items. It is the sum of their digests, so their order does not
// matter.
type Digest struct{ hi, lo uint64 }

// Plus returns the digest of the set with one more item.
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

// String returns the version_info of the set. All relays return the same for equal sets.
func (d Digest) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.hi)
	binary.BigEndian.PutUint64(b[8:], d.lo)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Change is one entry of a log. Was is the digest of the item before, zero if there was none.
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
	// Rev is the revision of the newest change. It is the cursor of the clients that have this snapshot.
	Rev     uint64
	Digest  Digest
	Version string // the text of Digest
	Count   int
	Bytes   int // sum of the lengths of Frame
	// ChangedAt is when the relay noticed the oldest change of this snapshot.
	ChangedAt time.Time
	Pages     []*Page
	// Log has all changes with a revision above LogFrom. removed has the newest removal of each name that was
	// removed after removedFrom; it may have older ones, too. Both are sorted by revision.
	Log         []Change
	LogFrom     uint64
	removed     []removal
	removedFrom uint64
	// tidied is the number of removals after trim last removed duplicates.
	tidied int

	// full is the difference for a client without content. deltas are the differences from recent cursors.
	full    atomic.Pointer[Difference] // set once, under mu
	mu      sync.Mutex                 // guards all below
	deltas  []*Difference
	initial []initialResponse
}

// Empty is the snapshot of an empty collection.
var Empty = newSnapshot()

func newSnapshot() *Snapshot { return &Snapshot{Version: Digest{}.String()} }

// Find returns the item with a name, and the revision of its last change.
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

// Removed returns the revision at which the item with a name was removed last, 0 for never. It knows the removals
// that Since knows. Its cost grows with their number.
func (s *Snapshot) Removed(name string) uint64 {
	for _, r := range slices.Backward(s.removed) {
		if r.name == name {
			return r.rev
		}
	}
	return 0
}

// Get returns the item with a name, nil when there is none.
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

// Frames returns all items as fields of a DiscoveryResponse, and their size. The first buffer is free for the
// header. It calls encoded with the size of each page that it encodes.
func (s *Snapshot) Frames(form Form, encoded func(bytes int)) (frames mem.BufferSlice, size int) {
	frames = make(mem.BufferSlice, 1, 1+len(s.Pages))
	for _, p := range s.Pages {
		b := p.frames(form, encoded)
		frames, size = append(frames, b), size+b.Len()
	}
	return frames, size
}
