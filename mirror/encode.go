package mirror

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"unique"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"

	"meshrelay/internal/text"
)

// New builds a resource. It fails when receivers would refuse the name, or could not decode the body.
func New(s Spec) (*Resource, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: encode body: %w", s.Key, err)
	}
	if err := checkBody(s.Kind, []byte(s.Body.GetTypeUrl()), s.Body.GetValue()); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key, err)
	}
	m := &mcp.Metadata{Name: s.FullName(), Version: s.SourceVersion, Labels: s.Labels, Annotations: s.Annotations}
	if !s.CreateTime.IsZero() {
		m.CreateTime = timestamppb.New(s.CreateTime)
	}
	md, err := metadataOf(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key, err)
	}
	return build(s.Kind, md, body, from{s.Source, s.Cluster})
}

// WithBody returns r with another body, of the same type.
func (r *Resource) WithBody(m proto.Message) (*Resource, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%s: encode body: %w", r.Key(), err)
	}
	s := r.Spec()
	s.Body = &anypb.Any{TypeUrl: s.Body.GetTypeUrl(), Value: value}
	return New(s)
}

// Stamped returns r with a stamp. A MeshConfig has no annotations, and only gets the cluster.
func (r *Resource) Stamped(stamp *Stamp) *Resource {
	if r.Kind() == MeshConfig {
		return r.withCluster(stamp.Cluster)
	}
	_, body := r.split()
	md := r.metadata()
	md.version = []byte(r.sourceVersion)
	had := md.from != nil
	cluster := md.stamp(stamp)
	if len(stamp.Relay) == 0 && had == (md.from != nil) {
		return r.withCluster(cluster)
	}
	out, err := build(r.Kind(), md, body, from{r.Source(), cluster})
	if err != nil {
		return r // build fails for a wrong name only, and r has this one already
	}
	return out
}

// from is the source and the cluster of a resource.
type from struct{ source, cluster string }

// build encodes a resource. body is an encoded Any.
func build(kind Kind, md metadata, body []byte, f from) (*Resource, error) {
	if kind == MeshConfig {
		return buildMeshConfig(string(md.version), body, f), nil
	}
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
	anyLen, resourceLen := anyLens(metaLen, len(body))
	r := &Resource{
		origin: unique.Make(origin{unique.Make(kind), f.source, f.cluster, md.revision()}),
		name:   full, nsLen: uint16(len(namespace)), sourceVersion: string(md.version),
	}
	b := r.beginEntry(1 + protowire.SizeBytes(anyLen))
	b = appendAnyHead(b, anyLen, resourceLen)
	b = appendLen(b, 1, metaLen)
	metaAt := len(b)
	b, versionAt, volatileAt := md.append(b)
	r.version = contentHash(b[metaAt:volatileAt], body, f.source, originOf(md.from))
	b = appendLen(b, 2, len(body))
	r.endEntry(append(b, body...), versionAt)
	return r, nil
}

// anyLens returns the lengths of the Any of a resource and of the istio.mcp.v1alpha1.Resource in it.
func anyLens(metaLen, bodyLen int) (anyLen, resourceLen int) {
	resourceLen = 1 + protowire.SizeBytes(metaLen) + 1 + protowire.SizeBytes(bodyLen)
	return anyHeadLen + 1 + protowire.SizeBytes(resourceLen), resourceLen
}

// appendAnyHead appends the start of a frame, up to the fields of the istio.mcp.v1alpha1.Resource.
func appendAnyHead(b []byte, anyLen, resourceLen int) []byte {
	b = appendLen(b, 2, anyLen)
	b = appendLen(b, 1, len(resourceURL))
	b = append(b, resourceURL...)
	return appendLen(b, 2, resourceLen)
}

// buildMeshConfig is build for a MeshConfig.
func buildMeshConfig(sourceVersion string, body []byte, f from) *Resource {
	r := &Resource{origin: unique.Make(origin{kind: unique.Make(MeshConfig), source: f.source, cluster: f.cluster}), name: MeshConfigName, sourceVersion: sourceVersion}
	b := r.beginEntry(1 + protowire.SizeBytes(len(body)))
	b = append(appendLen(b, 2, len(body)), body...)
	r.version = contentHash(nil, body, f.source, nil)
	r.endEntry(b)
	return r
}

// checkScope returns an error for a namespace on a cluster-scoped kind, and for a missing one on another
// well-known kind. Rules on namespaces would not see such a resource.
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

// beginEntry encodes the part of the entry before the frame, which has frameLen bytes.
func (r *Resource) beginEntry(frameLen int) []byte {
	entryLen := 1 + protowire.SizeBytes(versionLen) + frameLen + 1 + protowire.SizeBytes(len(r.name))
	b := make([]byte, 0, 1+protowire.SizeBytes(entryLen))
	b = appendLen(b, 2, entryLen)
	b = appendLen(b, 1, versionLen)
	b = append(b, blankVersion...)
	r.frameAt = uint16(len(b))
	return b
}

// endEntry encodes the part of the entry after the frame. It writes the version before the frame, and at the
// places of versionAt.
func (r *Resource) endEntry(b []byte, versionAt ...int) {
	r.frameTo = int32(len(b))
	b = appendLen(b, 3, len(r.name))
	b = append(b, r.name...)
	for _, at := range append(versionAt, int(r.frameAt)-versionLen) {
		base64.RawURLEncoding.Encode(b[at:at+versionLen], r.version[:])
	}
	r.entry = b
}

// contentHash hashes the metadata with a blank version, the body, the source and the origin. So a resource of
// another source is a change even with equal bytes (PROTOCOL C10, S10). It has 128 bits, because clients would
// never receive a change whose hash is equal.
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

func appendLen(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}
