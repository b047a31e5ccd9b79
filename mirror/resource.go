package mirror

import (
	"encoding/base64"
	"time"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshrelay/internal/wire"
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

// Resource is one object of one source, encoded once in the form that every client receives. It is immutable,
// and so are the results of its methods.
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

// origin holds the fields that many resources share.
type origin struct {
	kind     unique.Handle[Kind]
	source   string
	cluster  string
	revision string
}

// Spec describes a Resource to build.
type Spec struct {
	Key
	Labels, Annotations map[string]string
	// CreateTime is zero when it is unknown.
	CreateTime time.Time
	// Source is the upstream that the resource comes from. Cluster is the cluster, empty when unknown.
	Source, Cluster string
	// SourceVersion is the version that the source gave the resource. It need not be unique, and need not
	// change with the content (PROTOCOL C10).
	SourceVersion string
	Body          *anypb.Any
}

// Metadata is the decoded metadata of a resource.
type Metadata struct {
	Labels, Annotations map[string]string
	// CreateTime is zero when it is unknown.
	CreateTime time.Time
}

// Kind returns the resource's kind.
func (r *Resource) Kind() Kind { return r.kind().Value() }

func (r *Resource) kind() unique.Handle[Kind] { return r.origin.Value().kind }

// ref returns the ref of the resource. It shares the memory of the name.
func (r *Resource) ref() ref { return ref{r.kind(), r.name} }

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

// Version returns the version that clients see. It depends on the content and the source only: every relay
// with the same config gives a resource the same version.
func (r *Resource) Version() string { return base64.RawURLEncoding.EncodeToString(r.version[:]) }

// Digest returns the 128 bits that Version encodes.
func (r *Resource) Digest() [16]byte { return r.version }

// Equal reports whether clients see no difference between r and other. Either may be nil.
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

// withSourceVersion returns r with another source version. Both share their bytes.
func (r *Resource) withSourceVersion(v string) *Resource {
	if r.sourceVersion == v {
		return r
	}
	c := *r
	c.sourceVersion = v
	return &c
}

// Revision returns the value of the label istio.io/rev, the control plane revision that the
// resource is for; empty for all (PROTOCOL C11).
func (r *Resource) Revision() string { return r.origin.Value().revision }

// Frame returns the element of a DiscoveryResponse: the length-delimited field 2 (resources) with
// the google.protobuf.Any. The same bytes are the field Resource.resource in DeltaEntry.
func (r *Resource) Frame() []byte { return r.entry[r.frameAt:r.frameTo:r.frameTo] }

// DeltaEntry returns the element of a DeltaDiscoveryResponse: the length-delimited field 2
// (resources) with an envoy.service.discovery.v3.Resource of version, resource and name.
func (r *Resource) DeltaEntry() []byte { return r.entry }

// Any returns the encoded google.protobuf.Any: Frame without its tag and length.
func (r *Resource) Any() []byte {
	frame := r.Frame()
	_, n := protowire.ConsumeVarint(frame[1:])
	return frame[1+n:]
}

// Spec returns the Spec of r: New(r.Spec()) equals r. The caller may change its maps, but not its body.
func (r *Resource) Spec() Spec {
	md := r.Metadata()
	return Spec{
		Key: r.Key(), Source: r.Source(), Cluster: r.Cluster(), SourceVersion: r.sourceVersion, Body: r.Body(),
		Labels: md.Labels, Annotations: md.Annotations, CreateTime: md.CreateTime,
	}
}

// Body returns the body with its type, still encoded.
func (r *Resource) Body() *anypb.Any {
	_, body := r.split()
	typeURL, value, _ := splitAny(body)
	return &anypb.Any{TypeUrl: string(typeURL), Value: value}
}

// BodyValue returns the encoded body. Nobody may change it.
func (r *Resource) BodyValue() []byte {
	_, body := r.split()
	return wire.Last(body, 2)
}

// split returns the encoded metadata and the encoded Any of the body. It relies on the encoding of build.
func (r *Resource) split() (meta, body []byte) {
	if r.Kind() == MeshConfig {
		return nil, r.Any()
	}
	value, _ := first(r.Any()[anyHeadLen:])
	meta, rest := first(value)
	body, _ = first(rest)
	return meta, body
}

// anyHeadLen is the length of the field of the type URL, the first field of the Any of a resource.
var anyHeadLen = 1 + protowire.SizeBytes(len(resourceURL))

// first returns the content of the first field of a message, and the bytes after the field. The relay has
// encoded the message: the field is length-delimited, and its tag is one byte.
func first(b []byte) (value, rest []byte) {
	length, n := protowire.ConsumeVarint(b[1:])
	end := 1 + n + int(length) // the length of a part of b
	return b[1+n : end : end], b[end:]
}

// metadata parses the metadata of the resource. It can not fail, because the relay encoded it.
func (r *Resource) metadata() metadata {
	meta, _ := r.split()
	md, _ := parseMetadata(meta)
	return md
}

// Metadata decodes the resource's metadata.
func (r *Resource) Metadata() Metadata {
	md := r.metadata()
	out := Metadata{Labels: mapOf(md.labels), Annotations: mapOf(md.annotations, md.provenance())}
	var created timestamppb.Timestamp
	if md.hasCreated && proto.Unmarshal(md.created, &created) == nil {
		out.CreateTime = created.AsTime()
	}
	return out
}
