package mirror

import (
	"bytes"
	"strings"
	"unique"

	"meshrelay/internal/wire"
)

// ProvenanceAnnotation is the annotation by which a resource tells where it comes from. It
// goes with the resource through any number of relays. It is one and short because every
// resource has it.
const ProvenanceAnnotation = "meshrelay.io/from"

// MaxProvenance bounds the annotation's value, in bytes: a relay refuses what has more, and
// what is no relay's is not looked at.
const MaxProvenance = 1024

// maxSourceVersion bounds what the annotation tells of a version. Those of Kubernetes have 20
// digits at most.
const maxSourceVersion = 128

var (
	provenanceKey = []byte(ProvenanceAnnotation)
	via           = []byte(" via ")
)

// Provenance is where a resource comes from, as its annotation tells it. The version and
// the path are no part of the content: a resource that differs in nothing else is the same
// to clients and has the same Version. Otherwise an upstream that is restarted with other
// versions, or a replica of another name, would have everything sent again.
type Provenance struct {
	// Source names the upstream by which the resource came to the first relay, Cluster is
	// that upstream's cluster, and SourceVersion the version that it had there.
	Source, Cluster, SourceVersion string
	// Path lists the relays that it has passed, the first one first.
	Path []string
}

// ParseProvenance parses the value of the annotation:
//
//	SOURCE[(CLUSTER)][@VERSION] via RELAY[,RELAY…]
//
// The cluster is left out when it is called like the source. What is not said is empty.
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

// originOf returns the part of the annotation's value that is content: source and cluster.
func originOf(value []byte) []byte {
	if i := bytes.LastIndex(value, via); i >= 0 {
		value = value[:i]
	}
	origin, _, _ := bytes.Cut(value, []byte("@"))
	return origin
}

// Provenance returns what r's annotation says of its way; nothing when it has none.
func (r *Resource) Provenance() Provenance {
	if r.Kind() == MeshConfig {
		return Provenance{}
	}
	meta, _ := r.split()
	md, err := parseMetadata(meta)
	if err != nil {
		return Provenance{} // our own encoding, which parses
	}
	return ParseProvenance(string(md.from))
}

// HasAnnotation reports whether r has an annotation, without decoding anything.
func (r *Resource) HasAnnotation(key string) bool {
	meta, _ := r.split()
	c := wire.Fields(meta)
	for c.Next() {
		if c.Bytes(annotationsField) && string(wire.Last(c.Value(), 1)) == key {
			return true
		}
	}
	return false
}

// annotationsField is the number of istio.mcp.v1alpha1.Metadata.annotations.
const annotationsField = 5

// Stamp is what a relay adds to the provenance of the resources of one source. It is
// immutable.
type Stamp struct {
	source, cluster, relay []byte
	believe, begin         bool
}

// StampOf says what a Stamp adds.
type StampOf struct {
	// Source and Cluster are for resources that no relay has stamped yet.
	Source, Cluster string
	// Relay is added to the path. When it is empty, nothing is annotated, and a resource
	// only is given its cluster.
	Relay string
	// Believe takes over what the annotation of a resource tells, because a relay wrote it.
	// Otherwise the resource begins its way here: anybody who may annotate it may have.
	Believe bool
	// Begin forgets the path so far: what a relay served may have been written down, and is
	// read from there.
	Begin bool
}

// NewStamp returns a Stamp.
func NewStamp(of StampOf) *Stamp {
	return &Stamp{source: []byte(of.Source), cluster: []byte(of.Cluster), relay: []byte(of.Relay), believe: of.Believe, begin: of.Begin}
}

// Stamped returns r with a stamp on it. A MeshConfig has no annotations, and is only given
// its cluster.
func (r *Resource) Stamped(stamp *Stamp) *Resource {
	if r.Kind() == MeshConfig {
		return r.withCluster(string(stamp.cluster))
	}
	meta, body := r.split()
	md, err := parseMetadata(meta)
	if err != nil {
		return r // our own encoding, which parses
	}
	md.version = []byte(r.sourceVersion)
	had := md.from != nil
	cluster := md.stamp(stamp)
	if len(stamp.relay) == 0 && had == (md.from != nil) {
		return r.withCluster(cluster)
	}
	out, err := newWrapped(r.Kind(), md, body, from{r.Source(), cluster})
	if err != nil {
		return r // the name is the one that r has
	}
	return out
}

// stamp puts a stamp on metadata, and returns the cluster that they are of.
func (md *metadata) stamp(s *Stamp) (cluster string) {
	cluster = string(s.cluster)
	if !s.believe || len(md.from) > MaxProvenance || !isProvenance(md.from) {
		md.from = nil // somebody's own words, which would claim any cluster
	}
	if md.from != nil {
		cluster = ParseProvenance(string(originOf(md.from))).Cluster
	}
	if len(s.relay) == 0 {
		return cluster
	}
	value := make([]byte, 0, len(md.from)+len(s.source)+len(s.cluster)+len(md.version)+len(s.relay)+10)
	if md.from == nil {
		value = append(value, s.source...)
		if !bytes.Equal(s.cluster, s.source) {
			value = append(append(append(value, '('), s.cluster...), ')')
		}
		if len(md.version) > 0 && len(md.version) <= maxSourceVersion {
			value = append(append(value, '@'), md.version...)
		}
		value = append(value, via...)
	} else {
		before, path := md.from, []byte(nil)
		if i := bytes.LastIndex(md.from, via); i >= 0 {
			before, path = md.from[:i], md.from[i+len(via):]
		}
		value = append(append(value, before...), via...)
		if len(path) > 0 && !s.begin {
			value = append(append(value, path...), ',')
		}
	}
	md.from = append(value, s.relay...)
	return cluster
}

// isProvenance reports whether the annotation's value is one that a relay has written.
func isProvenance(value []byte) bool {
	i := bytes.LastIndex(value, via)
	return i > 0 && len(value) > i+len(via) && len(originOf(value)) > 0
}

// withCluster returns r as a resource of a cluster. The bytes are shared.
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
