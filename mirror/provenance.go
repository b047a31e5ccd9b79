package mirror

import (
	"bytes"
	"slices"
	"strings"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
)

// The annotations by which a resource tells where it comes from. They go with it through
// any number of relays.
const (
	// SourceAnnotation names the upstream by which it came to the first relay.
	SourceAnnotation = "meshrelay.io/source"
	// ClusterAnnotation is the cluster of that upstream; it is left out when that is called
	// like the upstream.
	ClusterAnnotation = "meshrelay.io/cluster"
	// SourceVersionAnnotation is the version that the upstream gave it.
	SourceVersionAnnotation = "meshrelay.io/source-version"
	// PathAnnotation lists the relays that it has passed, the first one first, separated by
	// commas.
	PathAnnotation = "meshrelay.io/path"
)

// Provenance is where a resource comes from, as its annotations tell it. The version and
// the path are no part of the content: a resource that differs in nothing else is the same
// to clients and has the same Version. Otherwise an upstream that is restarted with other
// versions, or a replica of another name, would have everything sent again.
type Provenance struct {
	Source, Cluster, SourceVersion string
	Path                           []string
}

// IsProvenance reports whether an annotation is one of those by which a resource tells
// where it comes from.
func IsProvenance(annotation string) bool {
	switch annotation {
	case SourceAnnotation, ClusterAnnotation, SourceVersionAnnotation, PathAnnotation:
		return true
	}
	return false
}

func isVolatile(annotation []byte) bool {
	return string(annotation) == SourceVersionAnnotation || string(annotation) == PathAnnotation
}

// Provenance returns what r's annotations say of its way. What they do not say is empty.
func (r *Resource) Provenance() Provenance {
	if r.Kind() == MeshConfig {
		return Provenance{}
	}
	meta, _ := r.split()
	md, err := parseMetadata(meta)
	if err != nil {
		return Provenance{} // our own encoding, which parses
	}
	return md.provenance()
}

// HasAnnotation reports whether r has an annotation, without decoding anything.
func (r *Resource) HasAnnotation(key string) bool {
	meta, _ := r.split()
	found := false
	// Our own encoding parses.
	_ = eachField(meta, func(num protowire.Number, v []byte) {
		if num != annotationsField || found {
			return
		}
		_ = eachField(v, func(num protowire.Number, k []byte) { found = found || num == 1 && string(k) == key })
	})
	return found
}

// annotationsField is the number of istio.mcp.v1alpha1.Metadata.annotations.
const annotationsField = 5

// The keys as they are encoded.
var (
	sourceKey        = []byte(SourceAnnotation)
	clusterKey       = []byte(ClusterAnnotation)
	sourceVersionKey = []byte(SourceVersionAnnotation)
	pathKey          = []byte(PathAnnotation)
)

// Stamp is what a relay adds to the provenance of the resources of one source. It is
// immutable.
type Stamp struct {
	source, cluster, relay []byte
	begin                  bool
}

// StampOf says what a Stamp adds.
type StampOf struct {
	// Source and Cluster are for resources that no relay has stamped yet.
	Source, Cluster string
	// Relay is added to the path. When it is empty, nothing is annotated, and a resource
	// only is given its cluster.
	Relay string
	// Begin forgets the path so far: what a relay served may have been written down, and is
	// read from there.
	Begin bool
}

// NewStamp returns a Stamp.
func NewStamp(of StampOf) *Stamp {
	return &Stamp{source: []byte(of.Source), cluster: []byte(of.Cluster), relay: []byte(of.Relay), begin: of.Begin}
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
	cluster := md.stamp(stamp)
	if len(stamp.relay) == 0 {
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
	came := md.annotation(SourceAnnotation)
	if c := md.annotation(ClusterAnnotation); c != nil {
		cluster = string(c)
	} else if came != nil {
		cluster = string(came)
	}
	if len(s.relay) == 0 {
		return cluster
	}
	path := s.relay
	if before := md.annotation(PathAnnotation); len(before) > 0 && !s.begin {
		path = slices.Concat(before, []byte(","), s.relay)
	}
	if came == nil {
		md.annotations = slices.Grow(md.annotations, 2)
		md.volatile = slices.Grow(md.volatile, 2)
		put(&md.annotations, sourceKey, s.source)
		// It is that of the source's name unless it says otherwise.
		if !bytes.Equal(s.cluster, s.source) {
			put(&md.annotations, clusterKey, s.cluster)
		}
		if len(md.version) > 0 {
			put(&md.volatile, sourceVersionKey, md.version)
		}
	}
	put(&md.volatile, pathKey, path)
	return cluster
}

// put sets the value of a key of sorted pairs.
func put(pairs *[]pair, key, value []byte) {
	i, found := slices.BinarySearchFunc(*pairs, key, func(p pair, key []byte) int { return bytes.Compare(p.key, key) })
	if found {
		(*pairs)[i].value = value
		return
	}
	*pairs = slices.Insert(*pairs, i, pair{key, value})
}

// provenance returns what the annotations say of a resource's way.
func (md *metadata) provenance() Provenance {
	p := Provenance{
		Source: string(md.annotation(SourceAnnotation)), Cluster: string(md.annotation(ClusterAnnotation)),
		SourceVersion: string(md.annotation(SourceVersionAnnotation)),
	}
	if p.Cluster == "" {
		p.Cluster = p.Source
	}
	if path := md.annotation(PathAnnotation); len(path) > 0 {
		p.Path = strings.Split(string(path), ",")
	}
	return p
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
