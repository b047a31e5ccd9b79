package mirror

import (
	"bytes"
	"strings"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/wire"
)

// ProvenanceAnnotation is the annotation with the provenance of a resource, through any number of relays. It
// is one short annotation, because every resource has it.
const ProvenanceAnnotation = "meshrelay.io/from"

// MaxProvenance bounds the value of the annotation, in bytes. A relay refuses a resource with a longer one
// from another relay, and ignores a longer one from others.
const MaxProvenance = 1024

// maxSourceVersion bounds the version in the annotation, in bytes. Versions of Kubernetes have at most 20
// digits.
const maxSourceVersion = 128

var (
	provenanceKey = []byte(ProvenanceAnnotation)
	via           = []byte(" via ")
)

// Provenance is the content of the provenance annotation. The Version of a resource does not depend on
// SourceVersion and Path: otherwise everything would be sent again after an upstream restarts with other
// versions, and by a replica with another name.
type Provenance struct {
	// Source is the upstream of the first relay, Cluster the cluster of that upstream, and SourceVersion the
	// version there.
	Source, Cluster, SourceVersion string
	// Path has the relays on the way, the first one first.
	Path []string
}

// ParseProvenance parses the value of the annotation:
//
//	SOURCE[(CLUSTER)][@VERSION] via RELAY[,RELAY…]
//
// Without (CLUSTER), the cluster has the name of the source.
func ParseProvenance(s string) (p Provenance) {
	if i := strings.LastIndex(s, string(via)); i >= 0 {
		p.Path = strings.Split(s[i+len(via):], ",")
		s = s[:i]
	}
	s, p.SourceVersion, _ = strings.Cut(s, "@")
	p.Source, p.Cluster = s, s
	if source, cluster, ok := strings.Cut(strings.TrimSuffix(s, ")"), "("); ok {
		p.Source, p.Cluster = source, cluster
	}
	return p
}

// splitVia splits the annotation's value before and after the last " via ".
func splitVia(value []byte) (before, path []byte) {
	// Names of relays have no spaces: the path begins after the last space.
	if end := bytes.LastIndexByte(value, ' ') + 1; bytes.HasSuffix(value[:end], via) {
		return value[:end-len(via)], value[end:]
	}
	if i := bytes.LastIndex(value, via); i >= 0 {
		return value[:i], value[i+len(via):]
	}
	return value, nil
}

// originOf returns the source and the cluster in the value of the annotation: the part that is content.
func originOf(value []byte) []byte {
	before, _ := splitVia(value)
	origin, _, _ := bytes.Cut(before, []byte("@"))
	return origin
}

// Provenance returns the provenance of r, the zero Provenance when it has none.
func (r *Resource) Provenance() Provenance { return ParseProvenance(string(r.metadata().from)) }

// Hops returns the number of relays in the provenance of the resource. It decodes and allocates nothing.
func (r *Resource) Hops() int {
	value, ok := r.Annotation(ProvenanceAnnotation)
	if _, path := splitVia(value); ok && path != nil {
		return 1 + bytes.Count(path, comma)
	}
	return 0
}

// HasAnnotation reports whether r has an annotation, without decoding anything.
func (r *Resource) HasAnnotation(key string) bool {
	_, ok := r.Annotation(key)
	return ok
}

// Annotation returns the value of an annotation, and whether r has it. It allocates nothing.
func (r *Resource) Annotation(key string) (value []byte, ok bool) { return r.pair(5, key) }

// pair returns the encoded value of a label, whose field is 4, or of an annotation, whose field is 5.
func (r *Resource) pair(field protowire.Number, key string) (value []byte, ok bool) {
	meta, _ := r.split()
	c := wire.Fields(meta)
	for c.Next() {
		if c.Bytes(field) && string(wire.Last(c.Value(), 1)) == key {
			return wire.Last(c.Value(), 2), true
		}
	}
	return nil, false
}

// Stamp is a change of the provenance of the resources of one source.
type Stamp struct {
	// Source and Cluster are for resources without provenance.
	Source, Cluster string
	// Relay is added to the path. When it is empty, a resource only gets its cluster.
	Relay string
	// Believe keeps the provenance that a resource has. It is only for resources from relays: other authors
	// could write any provenance.
	Believe bool
	// Begin removes the path that a resource has: a file may contain a resource that a relay served.
	Begin bool
}

// stamp writes the provenance that s demands into the metadata, and returns the cluster of the resource. It drops a
// provenance that s does not believe.
func (md *metadata) stamp(s *Stamp) (cluster string) {
	cluster = s.Cluster
	if !s.Believe || len(md.from) > MaxProvenance || !isProvenance(md.from) {
		md.from = nil // no relay wrote it, and it could claim any cluster
	}
	if md.from != nil {
		cluster = ParseProvenance(string(originOf(md.from))).Cluster
	}
	if len(s.Relay) == 0 {
		return cluster
	}
	value := make([]byte, 0, len(md.from)+len(s.Source)+len(s.Cluster)+len(md.version)+len(s.Relay)+10)
	if md.from == nil {
		value = append(value, s.Source...)
		if s.Cluster != s.Source {
			value = append(append(append(value, '('), s.Cluster...), ')')
		}
		if len(md.version) > 0 && len(md.version) <= maxSourceVersion {
			value = append(append(value, '@'), md.version...)
		}
		value = append(value, via...)
	} else {
		before, path := splitVia(md.from)
		value = append(append(value, before...), via...)
		if len(path) > 0 && !s.Begin {
			value = append(append(value, path...), ',')
		}
	}
	md.from = append(value, s.Relay...)
	return cluster
}

// isProvenance reports whether a value of ProvenanceAnnotation has the form that relays write.
func isProvenance(value []byte) bool {
	_, path := splitVia(value)
	return len(path) > 0 && len(originOf(value)) > 0
}

// withCluster returns r with another cluster. The two share their bytes.
func (r *Resource) withCluster(cluster string) *Resource {
	o := r.origin.Value()
	if o.cluster == cluster {
		return r
	}
	o.cluster = cluster
	c := *r
	c.origin = unique.Make(o)
	return &c
}

// SinkLabel is the label of an object that a sink has written: its value is the name of the sink. PathAnnotation has
// the relays that the object has passed, the one of the sink last, joined by commas. Unlike ProvenanceAnnotation, both
// stay with the object wherever it is read, and they only leave it out: nothing else is believed of them.
const (
	SinkLabel      = "meshrelay.io/sink"
	PathAnnotation = "meshrelay.io/relays"
)

// Sunk returns the name of the sink that has written r, if r passed a relay on its way there.
func (r *Resource) Sunk(relay string) (sink string, ok bool) {
	path, _ := r.Annotation(PathAnnotation)
	for name := range bytes.SplitSeq(path, comma) {
		if string(name) == relay {
			label, ok := r.pair(4, SinkLabel)
			return string(label), ok
		}
	}
	return "", false
}
