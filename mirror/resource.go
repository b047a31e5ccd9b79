package mirror

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
	"unique"

	"meshrelay/internal/text"
	"meshrelay/internal/wire"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
)

const (
	// maxNameLen bounds "namespace/name", in bytes. Kubernetes allows 63 + 1 + 253.
	maxNameLen = 512

	// revisionLabel names the control plane revision that a resource is meant for
	// (PROTOCOL C11).
	revisionLabel = "istio.io/rev"

	typePrefix  = "type.googleapis.com/"
	resourceURL = typePrefix + "istio.mcp.v1alpha1.Resource"
)

// versionLen is the length of a version string: 128 bits in unpadded base64.
var versionLen = base64.RawURLEncoding.EncodedLen(16)

// Resource is one configuration object of one source, encoded once in the form
// in which every client receives it.
//
// A Resource is immutable: it may be read from any goroutine, and nothing that
// its methods return may be changed.
type Resource struct {
	origin unique.Handle[origin]
	name   string // full name, as on the wire
	// entry[frameAt:frameTo] is the frame.
	entry         []byte
	frameTo       int32
	frameAt       uint16
	nsLen         uint16 // length of the namespace within name
	version       [16]byte
	sourceVersion string
}

// origin is what a resource has in common with many others.
type origin struct {
	kind     unique.Handle[Kind]
	source   string
	cluster  string
	revision string
}

// Spec is what a Resource is built from.
type Spec struct {
	Key
	Labels, Annotations map[string]string
	// CreateTime may be zero: unknown.
	CreateTime time.Time
	// Source is the name of the upstream that the resource comes from.
	Source string
	// Cluster is the cluster that the resource comes from, empty when unknown.
	Cluster string
	// SourceVersion is the version that the source itself gave the resource. It is
	// informative: it is neither unique nor does it change with the content
	// (PROTOCOL C10).
	SourceVersion string
	// Body is the resource's spec.
	Body *anypb.Any
}

// Metadata is the decoded metadata of a resource.
type Metadata struct {
	Labels, Annotations map[string]string
	// CreateTime is zero when the source did not say.
	CreateTime time.Time
}

// New builds a resource. It fails when the name has not the shape that receivers
// demand or when the body is not one that they can decode.
func New(s Spec) (*Resource, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: encode body: %w", s.Key, err)
	}
	if err := checkBody(s.Kind, []byte(s.Body.GetTypeUrl()), s.Body.GetValue()); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key, err)
	}
	if s.Kind == MeshConfig {
		return newBare(s.Kind, body, from{s.Source, s.Cluster}, s.SourceVersion), nil
	}
	md, err := metadataOf(&mcp.Metadata{Name: s.FullName(), Version: s.SourceVersion, CreateTime: timestampOf(s.CreateTime), Labels: s.Labels, Annotations: s.Annotations})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key, err)
	}
	if !md.validText() {
		return nil, fmt.Errorf("%s: the name, a label or an annotation is not valid UTF-8", s.Key)
	}
	return newWrapped(s.Kind, md, body, from{s.Source, s.Cluster})
}

// timestampOf returns nil when t is unknown.
func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// from is where a resource comes from.
type from struct{ source, cluster string }

// Spec returns what r can be built from: New(r.Spec()) equals r. The maps are the
// caller's to change, the body is not.
func (r *Resource) Spec() Spec {
	s := Spec{Key: r.Key(), Source: r.Source(), Cluster: r.Cluster(), SourceVersion: r.sourceVersion, Body: r.Body()}
	if r.Kind() != MeshConfig {
		md := r.Metadata()
		s.Labels, s.Annotations, s.CreateTime = md.Labels, md.Annotations, md.CreateTime
	}
	return s
}

// Decode builds a resource from one element of an upstream's response: an encoded
// google.protobuf.Any that holds an istio.mcp.v1alpha1.Resource or, for
// MeshConfig, an istio.mesh.v1alpha1.MeshConfig. The body's bytes are taken over
// as they are. It copies data, which the caller may reuse.
//
// A resource that receivers could not decode is an error: sent on, it would
// delete the object there (PROTOCOL S12).
func Decode(kind Kind, data []byte, source string) (*Resource, error) {
	r, _, err := DecodeStamped(kind, data, source, nil)
	return r, err
}

// DecodeStamped is Decode, with a stamp on the resource unless it is nil. It also returns
// the relays that the resource has passed on its way here, as its annotation tells, whether
// the stamp believes that or not.
func DecodeStamped(kind Kind, data []byte, source string, stamp *Stamp) (r *Resource, path []string, err error) {
	typeURL, value, err := splitAny(data)
	if err != nil {
		return nil, nil, err
	}
	if kind == MeshConfig {
		if err := checkBody(kind, typeURL, value); err != nil {
			return nil, nil, err
		}
		f := from{source: source}
		if stamp != nil {
			f.cluster = string(stamp.cluster)
		}
		return newBare(kind, data, f, ""), nil, nil
	}
	if !hasMessageName(typeURL, "istio.mcp.v1alpha1.Resource") {
		return nil, nil, fmt.Errorf("element is a %q, want %q", text.Abbreviate(string(typeURL)), resourceURL)
	}
	meta, body, err := splitResource(value)
	if err != nil {
		return nil, nil, err
	}
	md, err := parseMetadata(meta)
	if err != nil {
		return nil, nil, err
	}
	bodyURL, bodyValue, err := splitAny(body)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: body: %w", text.Abbreviate(string(md.name)), err)
	}
	if err := checkBody(kind, bodyURL, bodyValue); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", text.Abbreviate(string(md.name)), err)
	}
	f := from{source: source}
	if stamp != nil {
		switch {
		case len(md.from) <= MaxProvenance:
			path = ParseProvenance(string(md.from)).Path
		case stamp.believe:
			return nil, nil, fmt.Errorf("%s: its annotation %s has %d bytes, and %d are the most", text.Abbreviate(string(md.name)), ProvenanceAnnotation, len(md.from), MaxProvenance)
		}
		f.cluster = md.stamp(stamp)
	}
	r, err = newWrapped(kind, md, body, f)
	return r, path, err
}

// PeekName returns the full name of an element that Decode would build a resource
// from, without decoding or allocating. The name has not been checked.
func PeekName(kind Kind, data []byte) ([]byte, error) {
	if kind == MeshConfig {
		return meshConfigName, nil
	}
	_, value, err := splitAny(data)
	if err != nil {
		return nil, err
	}
	meta, _, err := splitResource(value)
	if err != nil {
		return nil, err
	}
	c := wire.Fields(meta)
	var name []byte
	for c.Next() {
		if c.Bytes(1) {
			name = c.Value()
		}
	}
	return name, c.Err()
}

var meshConfigName = []byte(MeshConfigName)

func newBare(kind Kind, anyBytes []byte, f from, sourceVersion string) *Resource {
	r := &Resource{origin: unique.Make(origin{kind: unique.Make(kind), source: f.source, cluster: f.cluster}), name: MeshConfigName, sourceVersion: sourceVersion}
	b := r.beginEntry(1 + protowire.SizeBytes(len(anyBytes)))
	b = appendLen(b, 2, len(anyBytes))
	b = append(b, anyBytes...)
	r.version = contentHash(nil, anyBytes, f.source, nil)
	r.endEntry(b)
	return r
}

func newWrapped(kind Kind, md metadata, body []byte, f from) (*Resource, error) {
	full := string(md.name)
	namespace, _, err := ParseFullName(full)
	if err != nil {
		return nil, err
	}
	if len(full) > maxNameLen {
		return nil, fmt.Errorf("resource name %q: longer than %d bytes", text.Abbreviate(full), maxNameLen)
	}
	if err := checkScope(kind, namespace); err != nil {
		return nil, fmt.Errorf("%s %q: %w", kind, text.Abbreviate(full), err)
	}
	metaLen := md.size()
	resourceLen := 1 + protowire.SizeBytes(metaLen) + 1 + protowire.SizeBytes(len(body))
	anyLen := 1 + protowire.SizeBytes(len(resourceURL)) + 1 + protowire.SizeBytes(resourceLen)

	r := &Resource{
		origin: unique.Make(origin{unique.Make(kind), f.source, f.cluster, md.revision()}),
		name:   full, nsLen: uint16(len(namespace)), sourceVersion: string(md.version),
	}
	b := r.beginEntry(1 + protowire.SizeBytes(anyLen))
	b = appendLen(b, 2, anyLen)
	b = appendLen(b, 1, len(resourceURL))
	b = append(b, resourceURL...)
	b = appendLen(b, 2, resourceLen)
	b = appendLen(b, 1, metaLen)
	metaAt := len(b)
	b, versionAt, volatileAt := md.append(b)
	r.version = contentHash(b[metaAt:volatileAt], body, f.source, originOf(md.from))
	b = appendLen(b, 2, len(body))
	r.endEntry(append(b, body...), versionAt)
	return r, nil
}

// checkScope refuses a namespace on a well-known kind that has none, and a missing one on the
// others: rules about namespaces would not see such a resource.
func checkScope(kind Kind, namespace string) error {
	info, known := LookupKind(kind)
	switch {
	case !known || info.ClusterScoped == (namespace == ""):
		return nil
	case info.ClusterScoped:
		return errors.New("resources of this kind have no namespace, and this one has")
	}
	return errors.New("it has no namespace, and resources of this kind have one")
}

var blankVersion = make([]byte, versionLen)

// entryVersionAt is where an entry's version is: behind its tag, its length
// (which is what beginEntry cannot know in advance) and the version's own.
func entryVersionAt(frameAt uint16) int { return int(frameAt) - versionLen }

// beginEntry starts the encoding of the resource with all that comes before the
// frame, which is frameLen bytes long.
func (r *Resource) beginEntry(frameLen int) []byte {
	entryLen := 1 + protowire.SizeBytes(versionLen) + frameLen + 1 + protowire.SizeBytes(len(r.name))
	b := make([]byte, 0, 1+protowire.SizeBytes(entryLen))
	b = appendLen(b, 2, entryLen)
	b = appendLen(b, 1, versionLen)
	b = append(b, blankVersion...)
	r.frameAt = uint16(len(b))
	return b
}

// endEntry completes the encoding after the frame, and fills in the version.
func (r *Resource) endEntry(b []byte, versionAt ...int) {
	r.frameTo = int32(len(b))
	b = appendLen(b, 3, len(r.name))
	b = append(b, r.name...)
	for _, at := range append(versionAt, entryVersionAt(r.frameAt)) {
		base64.RawURLEncoding.Encode(b[at:at+versionLen], r.version[:])
	}
	r.entry = b
}

// contentHash covers the metadata, in which the place of the version is still blank, the
// body, the source, and the origin beyond that: a resource that comes from another source is
// a change even when its bytes are the same (PROTOCOL C10, S10). 128 bits, because an
// accident would be served as "unchanged".
func contentHash(meta, body []byte, source string, origin []byte) (sum [16]byte) {
	var parts [32]byte
	m, b := xxh3.Hash128(meta), xxh3.Hash128(body)
	binary.BigEndian.PutUint64(parts[:8], m.Hi)
	binary.BigEndian.PutUint64(parts[8:16], m.Lo)
	binary.BigEndian.PutUint64(parts[16:24], b.Hi)
	binary.BigEndian.PutUint64(parts[24:], b.Lo)
	h := xxh3.Hash128Seed(parts[:], xxh3.HashSeed(origin, xxh3.HashString(source)))
	binary.BigEndian.PutUint64(sum[:8], h.Hi)
	binary.BigEndian.PutUint64(sum[8:], h.Lo)
	return sum
}

// checkBody refuses a body that receivers could not decode.
func checkBody(kind Kind, typeURL, value []byte) error {
	if len(typeURL) == 0 {
		return errors.New("body is missing or has no type URL")
	}
	info, ok := LookupKind(kind)
	if !ok {
		c := wire.Fields(value)
		for c.Next() {
		}
		if err := c.Err(); err != nil {
			return fmt.Errorf("body (%s) is not protobuf: %w", text.Abbreviate(string(typeURL)), err)
		}
		return nil
	}
	want := info.message.ProtoReflect().Descriptor().FullName()
	if !hasMessageName(typeURL, string(want)) {
		return fmt.Errorf("body is a %q, want %q", text.Abbreviate(string(typeURL)), typePrefix+string(want))
	}
	if info.shape().check(value, maxDepth) == nil {
		return nil
	}
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, info.NewBody()); err != nil {
		return fmt.Errorf("body does not decode as %s: %w", want, err)
	}
	return nil
}

func hasMessageName(typeURL []byte, name string) bool {
	i := bytes.LastIndexByte(typeURL, '/')
	return i >= 0 && string(typeURL[i+1:]) == name
}

// splitAny returns the two fields of an encoded google.protobuf.Any.
func splitAny(data []byte) (typeURL, value []byte, err error) {
	c, text := wire.Fields(data), true
	for c.Next() {
		switch {
		case c.Bytes(1):
			typeURL, text = c.Value(), text && utf8.Valid(c.Value())
		case c.Bytes(2):
			value = c.Value()
		}
	}
	if err = c.Err(); err == nil && !text {
		err = errors.New("its type URL is not valid UTF-8")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("element is not a google.protobuf.Any: %w", err)
	}
	return typeURL, value, nil
}

// splitResource returns the two fields of an encoded istio.mcp.v1alpha1.Resource.
// A field that comes twice is merged, as protobuf demands: concatenated encodings
// are the encoding of the merged message.
func splitResource(data []byte) (meta, body []byte, err error) {
	c := wire.Fields(data)
	for c.Next() {
		switch {
		case c.Bytes(1):
			meta = merge(meta, c.Value())
		case c.Bytes(2):
			body = merge(body, c.Value())
		}
	}
	if err := c.Err(); err != nil {
		return nil, nil, fmt.Errorf("element does not decode as istio.mcp.v1alpha1.Resource: %w", err)
	}
	return meta, body, nil
}

func merge(have, next []byte) []byte {
	if have == nil {
		return next
	}
	return slices.Concat(have, next)
}

func appendLen(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

// Kind returns the resource's kind.
func (r *Resource) Kind() Kind { return r.kind().Value() }

func (r *Resource) kind() unique.Handle[Kind] { return r.origin.Value().kind }

// FullName returns the resource's name on the wire; see Key.FullName.
func (r *Resource) FullName() string { return r.name }

// Key returns the resource's identity.
func (r *Resource) Key() Key {
	kind := r.Kind()
	if kind == MeshConfig {
		return Key{Kind: kind, Name: r.name}
	}
	return Key{Kind: kind, Namespace: r.name[:r.nsLen], Name: r.name[r.nsLen+1:]}
}

// Namespace returns the resource's namespace, empty when it is cluster-scoped.
func (r *Resource) Namespace() string { return r.name[:r.nsLen] }

// Version returns the resource's version as clients see it: derived from all
// that they can see of it and from its source, and from nothing else, so that
// every relay with the same configuration gives it the same version.
func (r *Resource) Version() string { return base64.RawURLEncoding.EncodeToString(r.version[:]) }

// Digest returns the 128 bits that Version spells.
func (r *Resource) Digest() [16]byte { return r.version }

// Equal reports whether r and other are the same to every client. Either may be
// nil.
func (r *Resource) Equal(other *Resource) bool {
	if r == nil || other == nil {
		return r == other
	}
	return r.version == other.version && r.name == other.name && r.kind() == other.kind()
}

// Source returns the name of the upstream that the resource comes from.
func (r *Resource) Source() string { return r.origin.Value().source }

// Cluster returns the cluster that the resource comes from, empty when unknown.
func (r *Resource) Cluster() string { return r.origin.Value().cluster }

// SourceVersion returns the version that the source gave the resource.
func (r *Resource) SourceVersion() string { return r.sourceVersion }

// withSourceVersion returns the resource with another version of the source's. The
// bytes are shared.
func (r *Resource) withSourceVersion(v string) *Resource {
	if r.sourceVersion == v {
		return r
	}
	c := *r
	c.sourceVersion = v
	return &c
}

// Revision returns the value of the label istio.io/rev: the control plane
// revision that the resource is meant for; empty means all (PROTOCOL C11).
func (r *Resource) Revision() string { return r.origin.Value().revision }

// Frame returns the encoded resource as it stands in a DiscoveryResponse: a
// length-delimited field number 2 (resources) that holds the google.protobuf.Any.
// It is part of DeltaEntry, where the same bytes are the field Resource.resource.
func (r *Resource) Frame() []byte { return r.entry[r.frameAt:r.frameTo:r.frameTo] }

// DeltaEntry returns the encoded resource as it stands in a
// DeltaDiscoveryResponse: a length-delimited field number 2 (resources) that
// holds an envoy.service.discovery.v3.Resource with version, resource and name.
func (r *Resource) DeltaEntry() []byte { return r.entry }

// Any returns the encoded google.protobuf.Any: Frame without its tag and length.
func (r *Resource) Any() []byte {
	frame := r.Frame()
	_, n := protowire.ConsumeVarint(frame[1:])
	return frame[1+n:]
}

// Body decodes the envelope of the resource's body. The body's own message is not
// decoded.
func (r *Resource) Body() *anypb.Any {
	_, body := r.split()
	typeURL, value, _ := splitAny(body)
	return &anypb.Any{TypeUrl: string(typeURL), Value: value}
}

// BodyValue returns the encoded message of the resource's body, without its type. It is
// shared, and must not be changed.
func (r *Resource) BodyValue() []byte {
	_, body := r.split()
	_, value, _ := splitAny(body)
	return value
}

// split returns the encoded metadata and the encoded Any of the body. They are parts of
// our own encoding, which parses.
func (r *Resource) split() (meta, body []byte) {
	if r.Kind() == MeshConfig {
		return nil, r.Any()
	}
	_, value, _ := splitAny(r.Any())
	meta, body, _ = splitResource(value)
	return meta, body
}

// Metadata decodes the resource's metadata.
func (r *Resource) Metadata() Metadata {
	meta, _ := r.split()
	md, err := parseMetadata(meta)
	var created timestamppb.Timestamp
	if err == nil && md.hasCreated {
		err = proto.Unmarshal(md.created, &created)
	}
	if err != nil {
		// The entry is our own encoding of a message that did decode.
		panic(fmt.Sprintf("mirror: metadata of %s does not decode: %v", r.Key(), err))
	}
	out := Metadata{Labels: mapOf(md.labels), Annotations: mapOf(md.annotations, md.provenance())}
	if md.hasCreated {
		out.CreateTime = created.AsTime()
	}
	return out
}
