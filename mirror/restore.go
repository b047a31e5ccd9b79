package mirror

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/wire"
)

// Restore builds a resource from its stored form: its kind, its Any, and three texts that the Any does not
// hold. The result equals the resource of that Any, and has its Digest. Restore copies data, which the
// caller may reuse, and fails as Decode does.
func Restore(kind Kind, data []byte, source, cluster string, sourceVersion []byte) (*Resource, error) {
	f := from{source, cluster}
	if r := restoreProven(kind, data, f, sourceVersion); r != nil {
		return r, nil
	}
	return restoreDecoded(kind, data, f, sourceVersion)
}

// restoreDecoded is Restore for any Any.
func restoreDecoded(kind Kind, data []byte, f from, sourceVersion []byte) (*Resource, error) {
	md, body, err := parseElement(kind, data)
	if err != nil {
		return nil, err
	}
	md.version = sourceVersion // the version in data is the relay's
	return build(kind, md, body, f)
}

// restoreProven is Restore for an Any that a relay has encoded. The version in the Any is a hash of all that
// build depends on: an equal hash proves that the Any is what build would make. restoreProven returns nil for
// any other Any, and for one with a mistake, which restoreDecoded then names.
func restoreProven(kind Kind, data []byte, f from, sourceVersion []byte) *Resource {
	meta, body := builtParts(data)
	if kind == MeshConfig || body == nil {
		return nil
	}
	parts, ok := builtMetadata(meta)
	if !ok {
		return nil
	}
	full := string(parts.name)
	namespace, _, err := ParseFullName(full)
	if err != nil || len(full) > maxNameLen || checkScope(kind, namespace) != nil {
		return nil
	}
	if typeURL, value, err := splitAny(body); err != nil || checkBody(kind, typeURL, value) != nil {
		return nil
	}
	r := &Resource{
		origin: unique.Make(origin{unique.Make(kind), f.source, f.cluster, string(parts.revision)}),
		name:   full, nsLen: uint16(len(namespace)), sourceVersion: string(sourceVersion),
	}
	b := r.beginEntry(1 + protowire.SizeBytes(len(data)))
	b = append(appendLen(b, 2, len(data)), data...)
	metaAt := len(b) - protowire.SizeBytes(len(body)) - 1 - len(meta)
	version := b[metaAt+parts.versionAt:][:versionLen]
	if n, err := base64.RawURLEncoding.Decode(r.version[:], version); err != nil || n != len(r.version) {
		return nil
	}
	copy(version, blankVersion)
	if contentHash(b[metaAt:metaAt+parts.volatileAt], body, f.source, originOf(parts.from)) != r.version {
		return nil
	}
	r.endEntry(b, metaAt+parts.versionAt)
	return r
}

// builtParts splits an Any in the form of build: it returns the encoded metadata, and the encoded Any of the
// body. It returns nil for an Any in any other form.
func builtParts(data []byte) (meta, body []byte) {
	c := wire.Fields(data)
	if !c.Next() || !c.Bytes(1) || string(c.Value()) != resourceURL || !c.Next() || !c.Bytes(2) {
		return nil, nil
	}
	value := c.Value()
	if c.Next() || c.Err() != nil || len(data) != anyHeadLen+1+protowire.SizeBytes(len(value)) {
		return nil, nil
	}
	c = wire.Fields(value)
	if !c.Next() || !c.Bytes(1) {
		return nil, nil
	}
	if meta = c.Value(); !c.Next() || !c.Bytes(2) {
		return nil, nil
	}
	body = c.Value()
	if c.Next() || c.Err() != nil || len(value) != 1+protowire.SizeBytes(len(meta))+1+protowire.SizeBytes(len(body)) {
		return nil, nil
	}
	return meta, body
}

// metadataParts are parts of encoded metadata in the form of build: name, revision and provenance, and the
// places that metadata.append returns.
type metadataParts struct {
	name, revision, from  []byte
	versionAt, volatileAt int
}

// builtMetadata finds the parts of encoded metadata. It returns false for metadata that is not in the form of
// build.
func builtMetadata(meta []byte) (p metadataParts, ok bool) {
	var room [128]byte
	at, c := 0, wire.Fields(meta)
	for c.Next() {
		end := at + len(c.Field())
		switch {
		case p.from != nil:
			return p, false // build puts it last
		case c.Bytes(1) && p.name == nil:
			p.name = c.Value()
		case c.Bytes(3) && p.versionAt == 0 && len(c.Value()) == versionLen:
			p.versionAt = end - versionLen
		case c.Number == 1 || c.Number == 3:
			return p, false
		case c.Bytes(4) && string(wire.Last(c.Value(), 1)) == revisionLabel:
			p.revision = wire.Last(c.Value(), 2)
		case c.Bytes(5) && string(wire.Last(c.Value(), 1)) == ProvenanceAnnotation:
			p.from, p.volatileAt = wire.Last(c.Value(), 2), at
			// The version does not prove these bytes.
			if !utf8.Valid(p.from) || !bytes.Equal(c.Field(), appendPairs(room[:0], 5, []pair{{provenanceKey, p.from}})) {
				return p, false
			}
		}
		at = end
	}
	if p.from == nil {
		p.volatileAt = len(meta)
	}
	return p, c.Err() == nil && p.name != nil && p.versionAt > 0
}
