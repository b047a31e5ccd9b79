package records

import (
	"cmp"
	"encoding/binary"
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
	siblings   map[mirror.Key]*mirror.Resource // what else is served of a service (discovery.go); nil for nearly all
	version    string                          // given by the source
	mark       uint64                          // of the newest element, zero for none
	leftOut    leftOut
	kept       time.Duration // since when the source does not have it, in time of contact, plus 1; zero while it has it
	at         uint32        // when the content came, in seconds since the epoch, up to the year 2106
	counted    uint32        // bytes of it in Records.bytes
	generation uint32        // of the last update with this name
	content    bool          // it is one of Records.resources
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

// recordBytes is about what a record takes in addition to its texts and its content, in bytes.
const recordBytes = 160

// count counts what a record takes now, in place of what was counted of it. nameLen is the length of its name.
func (rs *Records) count(rec *record, nameLen int) {
	size := rec.size()
	n := recordBytes + nameLen + len(rec.version) + size
	if rec.leftOut != imported {
		n += len(rec.leftOut.Value().detail)
	}
	rs.setCount(rec, n, size > 0)
}

func (rs *Records) setCount(rec *record, bytes int, content bool) {
	rs.bytes += bytes - int(rec.counted)
	switch {
	case content && !rec.content:
		rs.resources++
	case rec.content && !content:
		rs.resources--
	}
	rec.counted, rec.content = uint32(bytes), content
}

func keyOf(kind mirror.Kind, name string) (mirror.Key, bool) {
	if kind == mirror.MeshConfig {
		return mirror.Key{Kind: kind, Name: mirror.MeshConfigName}, true
	}
	namespace, name, err := mirror.ParseFullName(name)
	return mirror.Key{Kind: kind, Namespace: namespace, Name: name}, err == nil
}

func hashOf(b [16]byte) xxh3.Uint128 {
	return xxh3.Uint128{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
}
