package downstream

import (
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"meshrelay/mirror"
)

const (
	// logLen is how many of the newest changes of a collection are remembered. A
	// client that is further behind is served by comparing revisions.
	logLen = 4096
	// removedLen is how many removed names are remembered, for clients that the log
	// no longer covers; of a name that was removed often, the newest removal. A client
	// that is further behind still has to say what it holds, by reconnecting.
	removedLen = 65536
	// derivedLogLen and derivedRemovedLen are the same for derived collections, of which
	// there may be many.
	derivedLogLen     = 512
	derivedRemovedLen = 8192
	// deltasKept is how many encoded differences a snapshot keeps for sharing.
	deltasKept = 4
	// openingsKept is how many type URLs a snapshot keeps complete responses of: a kind
	// has few API versions.
	openingsKept = 4
)

// digest identifies the content of a set of resources: the sum of the resources'
// 128-bit digests. It does not depend on their order, and changes with one addition
// or subtraction a change.
type digest struct{ hi, lo uint64 }

func (d digest) plus(sum [16]byte) digest {
	lo, carry := bits.Add64(d.lo, binary.BigEndian.Uint64(sum[8:]), 0)
	hi, _ := bits.Add64(d.hi, binary.BigEndian.Uint64(sum[:8]), carry)
	return digest{hi, lo}
}

func (d digest) minus(sum [16]byte) digest {
	lo, borrow := bits.Sub64(d.lo, binary.BigEndian.Uint64(sum[8:]), 0)
	hi, _ := bits.Sub64(d.hi, binary.BigEndian.Uint64(sum[:8]), borrow)
	return digest{hi, lo}
}

// String returns the version_info of the set: the same in every relay that serves
// the same set.
func (d digest) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.hi)
	binary.BigEndian.PutUint64(b[8:], d.lo)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// change is one entry of a collection's log. was is the digest of what the name
// had before; zero when nothing.
type change struct {
	rev  uint64
	name string
	was  [16]byte
}

// removal is a name that was removed.
type removal struct {
	rev  uint64
	name string
}

// snapshot is one state of a collection. It is immutable; any number of clients
// read it at once, without locks.
type snapshot struct {
	// rev is that of the newest change that led here: it grows, with gaps. A client's
	// cursor is the rev of the snapshot it was last brought to.
	rev     uint64
	digest  digest
	version string // digest, spelled
	count   int
	bytes   int // sum of the frames
	pages   []*page
	// log has every change with a rev above logFrom. removed has of every name that was
	// removed at a rev above removedFrom the newest removal, and may have others. Both are
	// sorted, oldest first.
	log         []change
	logFrom     uint64
	removed     []removal
	removedFrom uint64
	// tidied is how many removals were left when those of names that were removed again
	// were last forgotten.
	tidied int
	// changedAt is when the oldest change that this snapshot brought was noticed.
	changedAt time.Time

	// full caches the difference from nothing, deltas those from recent cursors.
	full     atomic.Pointer[difference]
	mu       sync.Mutex // guards all below
	deltas   []*difference
	openings []opening
}

func newSnapshot() *snapshot { return &snapshot{version: digest{}.String()} }

// find returns the entry of a name.
func (s *snapshot) find(name string) (entry, bool) {
	if len(s.pages) == 0 {
		return entry{}, false
	}
	i := pageOf(s.pages, name)
	if n, ok := s.pages[i].find(name); ok {
		return s.pages[i].entries[n], true
	}
	return entry{}, false
}

// get returns the resource of a name, nil when there is none.
func (s *snapshot) get(name string) *mirror.Resource {
	e, _ := s.find(name)
	return e.res
}

// each calls f with every resource, in the order of names.
func (s *snapshot) each(f func(*mirror.Resource)) {
	for _, p := range s.pages {
		for i := range p.entries {
			f(p.entries[i].res)
		}
	}
}
