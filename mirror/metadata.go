package mirror

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"

	"meshrelay/internal/wire"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
)

// metadata is an istio.mcp.v1alpha1.Metadata. Equal metadata has equal encodings. Its slices are parts of the
// encoding that it was parsed from.
type metadata struct {
	name, version       []byte
	created             []byte // encoded google.protobuf.Timestamp
	hasCreated          bool
	labels, annotations []pair // sorted by key, each key once
	// from is the value of ProvenanceAnnotation, nil when there is none. Only its origin counts as
	// content.
	from    []byte
	unknown []byte
}

type pair struct{ key, value []byte }

// parseMetadata parses an encoded Metadata: parse its usual encoding, the library any other.
func parseMetadata(b []byte) (md metadata, err error) {
	if md.parse(b) {
		return md, nil
	}
	m := &mcp.Metadata{}
	if err := proto.Unmarshal(b, m); err != nil {
		return metadata{}, fmt.Errorf("metadata does not decode: %w", err)
	}
	return metadataOf(m)
}

// metadataOf returns the metadata of a message. It fails when a text is not UTF-8.
func metadataOf(m *mcp.Metadata) (md metadata, err error) {
	b, err := proto.Marshal(&mcp.Metadata{Name: m.GetName(), Version: m.GetVersion(), Labels: m.GetLabels(), Annotations: m.GetAnnotations()})
	if err != nil {
		return md, fmt.Errorf("the name, a label or an annotation does not encode: %w", err)
	}
	md.parse(b) // it succeeds: the library writes the usual encoding
	md.unknown = m.ProtoReflect().GetUnknown()
	if md.hasCreated = m.GetCreateTime() != nil; md.hasCreated {
		if md.created, err = (proto.MarshalOptions{Deterministic: true}).Marshal(m.GetCreateTime()); err != nil {
			return metadata{}, fmt.Errorf("create time: %w", err)
		}
	}
	return md, nil
}

// extractProvenance moves the provenance from the annotations to md.from.
func (md *metadata) extractProvenance() {
	for i := range md.annotations {
		if bytes.Equal(md.annotations[i].key, provenanceKey) {
			md.from = md.annotations[i].value
			md.annotations = slices.Delete(md.annotations, i, i+1)
			return
		}
	}
}

// mapOf returns all pairs as one map, nil when there are none.
func mapOf(all ...[]pair) map[string]string {
	n := 0
	for _, pairs := range all {
		n += len(pairs)
	}
	if n == 0 {
		return nil
	}
	m := make(map[string]string, n)
	for _, pairs := range all {
		for _, p := range pairs {
			m[string(p.key)] = string(p.value)
		}
	}
	return m
}

// parse parses metadata in the usual encoding. It returns false for any other encoding.
func (md *metadata) parse(b []byte) bool {
	c, seen := wire.Fields(b), 0
	for c.Next() {
		v, ok := c.Value(), c.Type == protowire.BytesType
		switch c.Number {
		case 1:
			md.name, ok = v, ok && utf8.Valid(v) && seen&1 == 0
			seen |= 1
		case 2:
			md.created, ok = v, ok && ordinaryTimestamp(v) && !md.hasCreated
			md.hasCreated = true
		case 3:
			md.version, ok = v, ok && utf8.Valid(v) && seen&2 == 0
			seen |= 2
		case 4:
			ok = ok && appendPair(&md.labels, v)
		case 5:
			ok = ok && appendPair(&md.annotations, v)
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	if c.Err() != nil {
		return false
	}
	if !sortPairs(md.labels) || !sortPairs(md.annotations) {
		return false
	}
	md.extractProvenance()
	return true
}

// ordinaryTimestamp reports whether b is the usual encoding of a google.protobuf.Timestamp.
func ordinaryTimestamp(b []byte) bool {
	c, last := wire.Fields(b), protowire.Number(0)
	for c.Next() {
		v := c.Uint()
		if c.Type != protowire.VarintType || c.Number <= last || c.Number > 2 || len(c.Field()) != 1+protowire.SizeVarint(v) || v == 0 || c.Number == 2 && v > 999_999_999 {
			return false
		}
		last = c.Number
	}
	return c.Err() == nil
}

// appendPair parses an entry of a map, and appends it to pairs. It returns false for an unusual encoding.
func appendPair(pairs *[]pair, b []byte) bool {
	var p pair
	c, last := wire.Fields(b), protowire.Number(0)
	for c.Next() {
		if c.Type != protowire.BytesType || c.Number <= last || c.Number > 2 || !utf8.Valid(c.Value()) {
			return false
		}
		if last = c.Number; last == 1 {
			p.key = c.Value()
		} else {
			p.value = c.Value()
		}
	}
	*pairs = append(*pairs, p)
	return c.Err() == nil
}

// sortPairs sorts by key, and reports whether the keys are distinct.
func sortPairs(pairs []pair) bool {
	compare := func(a, b pair) int { return bytes.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(pairs, compare) {
		slices.SortFunc(pairs, compare)
	}
	for i := 1; i < len(pairs); i++ {
		if bytes.Equal(pairs[i-1].key, pairs[i].key) {
			return false
		}
	}
	return true
}

// revision returns the value of the label istio.io/rev.
func (md *metadata) revision() string {
	for _, p := range md.labels {
		if string(p.key) == revisionLabel {
			return string(p.value)
		}
	}
	return ""
}

// size returns the length of the encoding, with the relay's version.
func (md *metadata) size() int {
	n := 1 + protowire.SizeBytes(len(md.name)) + 1 + protowire.SizeBytes(versionLen) + len(md.unknown)
	if md.hasCreated {
		n += 1 + protowire.SizeBytes(len(md.created))
	}
	return n + pairsSize(md.labels) + pairsSize(md.annotations) + pairsSize(md.provenance())
}

// append appends the encoded metadata, with a blank version, to b. It returns where the version is, and where
// the provenance begins, which is no content.
func (md *metadata) append(b []byte) (out []byte, versionAt, volatileAt int) {
	b = appendLen(b, 1, len(md.name))
	b = append(b, md.name...)
	if md.hasCreated {
		b = appendLen(b, 2, len(md.created))
		b = append(b, md.created...)
	}
	b = appendLen(b, 3, versionLen)
	versionAt = len(b)
	b = append(b, blankVersion...)
	b = appendPairs(b, 4, md.labels)
	b = appendPairs(b, 5, md.annotations)
	b = append(b, md.unknown...)
	volatileAt = len(b)
	return appendPairs(b, 5, md.provenance()), versionAt, volatileAt
}

// provenance returns the provenance annotation, nil when there is none.
func (md *metadata) provenance() []pair {
	if md.from == nil {
		return nil
	}
	return []pair{{provenanceKey, md.from}}
}

func (p pair) size() int {
	return 1 + protowire.SizeBytes(len(p.key)) + 1 + protowire.SizeBytes(len(p.value))
}

func pairsSize(pairs []pair) (n int) {
	for _, p := range pairs {
		n += 1 + protowire.SizeBytes(p.size())
	}
	return n
}

func appendPairs(b []byte, num protowire.Number, pairs []pair) []byte {
	for _, p := range pairs {
		b = appendLen(b, num, p.size())
		b = appendLen(b, 1, len(p.key))
		b = append(b, p.key...)
		b = appendLen(b, 2, len(p.value))
		b = append(b, p.value...)
	}
	return b
}
