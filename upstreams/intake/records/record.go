package records

import (
	"cmp"
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/state"
)

// record is one name in one scope.
type record struct {
	hash     xxh3.Uint128     // of the newest element; zero if that was not accepted
	resource *mirror.Resource // last good content, as imported; nil if there is none or it is left out
	// original is the content as received, and stamped, if the import changed it.
	original   *mirror.Resource
	siblings   map[mirror.Key]*mirror.Resource // what else is served of a service (siblings.go); nil for nearly all
	version    string                          // given by the source
	mark       uint64                          // of the newest element, zero for none
	leftOut    leftOut
	kept       time.Duration // since when the source does not have it any more, in time of contact; zero while it has it
	at         uint32        // when the content came, in seconds since the epoch, up to the year 2106
	generation uint32        // of the last update with this name
	relayed    bool          // hash came from a relay, so the provenance path is trusted
	lacks      bool          // fields of the element are left out
	child      bool          // a route whose parents decide whether it is left out
}

// accepted reports whether the newest element was accepted.
func (r *record) accepted() bool { return r.hash != xxh3.Uint128{} }

// seconds returns a time for record.at, zero for unknown.
func seconds(t time.Time) uint32 { return uint32(min(max(t.Unix(), 0), math.MaxUint32)) }

// since returns when the content came, the zero time if unknown.
func (r *record) since() time.Time {
	if r.at == 0 {
		return time.Time{}
	}
	return time.Unix(int64(r.at), 0)
}

// name returns the name of a record with content, as the source has it.
func (r *record) name() string { return cmp.Or(r.original, r.resource).FullName() }

// size returns how many bytes a record holds.
func (r *record) size() (n int) {
	if r.resource != nil {
		n = len(r.resource.DeltaEntry())
	}
	if r.original != nil {
		n += len(r.original.DeltaEntry())
	}
	for _, p := range r.siblings {
		if p != nil {
			n += len(p.DeltaEntry())
		}
	}
	return n
}

// saved returns a record with content for the disk or for the next source. Without a hash, the
// content is decoded when it comes again.
func (im *Rules) saved(sc *scope, r *record) state.Record {
	out := state.Record{Resource: r.resource, Original: r.original, Version: r.version, Hash: r.hash.Bytes(), At: r.since()}
	if r.lacks {
		out.Hash = [16]byte{}
	}
	if im.relayed || sc.Name == DerivedScope(sc.Kind).Name {
		out.TypeURL = sc.Name
	}
	return out
}

// setVersion sets the version of the content; a SotW stream gives none. The version of earlier
// content would be a false claim when a stream resumes.
func (r *record) setVersion(version []byte) {
	if string(version) != r.version {
		r.version = string(version)
	}
}

// load is what a record takes.
type load struct {
	bytes   int
	content bool
}

// recordBytes is about what a record takes in addition to its texts and its content, in bytes.
const recordBytes = 160

// load returns what a record takes. nameLen is the length of its name.
func (r *record) load(nameLen int) load {
	size := r.size()
	n := recordBytes + nameLen + len(r.version) + size
	if r.leftOut != imported {
		n += len(r.leftOut.Value().detail)
	}
	return load{n, size > 0}
}

// account counts that a record takes after in place of before.
func (rs *Records) account(before, after load) {
	rs.bytes += after.bytes - before.bytes
	switch {
	case !before.content && after.content:
		rs.resources++
	case before.content && !after.content:
		rs.resources--
	}
}
