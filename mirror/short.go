package mirror

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/wire"
)

// The short form of a resource has no provenance annotation. Its version names the relays that the resource
// has passed instead, because an istiod passes metadata.version on unchanged:
//
//	SUM.MARK[MARK…]
//
// SUM is the start of the version of the full form. It is long enough to tell two contents of one name apart.
// A MARK is a hash of the name of a relay.
const (
	sumBytes  = 9
	sumLen    = sumBytes / 3 * 4
	markBytes = 6
	markLen   = markBytes / 3 * 4
	markDot   = '.'
)

var comma = []byte(",")

// AppendShort appends the short form of Frame to b. It appends Frame itself for a resource without provenance,
// which has no short form.
func (r *Resource) AppendShort(b []byte) []byte {
	meta, body := r.split()
	before, after, path := cutProvenance(meta)
	if len(path) == 0 {
		return append(b, r.Frame()...)
	}
	versionLen := sumLen + 1 + markLen*(1+bytes.Count(path, comma))
	metaLen := len(before) + 1 + protowire.SizeBytes(versionLen) + len(after)
	anyLen, resourceLen := anyLens(metaLen, len(body))
	b = appendAnyHead(b, anyLen, resourceLen)
	b = appendLen(b, 1, metaLen)
	b = append(b, before...)
	b = appendLen(b, 3, versionLen)
	b = base64.RawURLEncoding.AppendEncode(b, r.version[:sumBytes])
	b = append(b, markDot)
	for relay := range bytes.SplitSeq(path, comma) {
		b = appendMark(b, xxh3.Hash(relay))
	}
	b = append(b, after...)
	b = appendLen(b, 2, len(body))
	return append(b, body...)
}

// cutProvenance splits metadata that the relay has encoded: before is the part before the version, after the
// part from there to the provenance. path has the relays in the provenance, nil when there is none.
func cutProvenance(meta []byte) (before, after, path []byte) {
	c, at, last := wire.Fields(meta), 0, []byte(nil)
	for c.Next() {
		if c.Bytes(3) {
			before, after = meta[:at], meta[at+len(c.Field()):]
		}
		at += len(c.Field())
		if last = nil; c.Bytes(5) {
			last = c.Field()
		}
	}
	c = wire.Fields(last)
	if !c.Next() || string(wire.Last(c.Value(), 1)) != ProvenanceAnnotation {
		return nil, nil, nil
	}
	_, path = splitVia(wire.Last(c.Value(), 2))
	return before, after[:len(after)-len(last)], path
}

// appendMark appends the mark of a relay. hash is that of its name.
func appendMark(b []byte, hash uint64) []byte {
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], hash)
	return base64.RawURLEncoding.AppendEncode(b, sum[:markBytes])
}

// Way has the relays that a resource has passed, as its metadata names them.
type Way struct {
	// Path has the names in the annotation, the first one first.
	Path  []string
	marks []byte // in the version
}

// wayOf returns the way in metadata. It ignores an annotation that is too long.
func wayOf(md *metadata) (w Way) {
	if len(md.from) <= MaxProvenance {
		w.Path = ParseProvenance(string(md.from)).Path
	}
	if marks := len(md.version) - sumLen - 1; marks > 0 && marks%markLen == 0 && md.version[sumLen] == markDot {
		w.marks = md.version[sumLen+1:]
	}
	return w
}

// Passes reports whether a relay is on the way.
func (w Way) Passes(relay string) bool {
	if slices.Contains(w.Path, relay) {
		return true
	}
	if len(w.marks) == 0 {
		return false
	}
	var own [markLen]byte
	mark := string(appendMark(own[:0], xxh3.HashString(relay)))
	for marks := range slices.Chunk(w.marks, markLen) {
		if string(marks) == mark {
			return true
		}
	}
	return false
}
