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
	// ClusterAnnotation is the cluster of that upstream.
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
	if !bytes.Contains(meta, annotationPrefix) {
		return Provenance{} // it comes from no relay
	}
	md, err := parseMetadata(meta)
	if err != nil {
		return Provenance{} // our own encoding, which parses
	}
	p := Provenance{
		Source: string(md.annotation(SourceAnnotation)), Cluster: string(md.annotation(ClusterAnnotation)),
		SourceVersion: string(md.annotation(SourceVersionAnnotation)),
	}
	if path := md.annotation(PathAnnotation); len(path) > 0 {
		p.Path = strings.Split(string(path), ",")
	}
	return p
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

var annotationPrefix = []byte("meshrelay.io/")

// annotationsField is the number of istio.mcp.v1alpha1.Metadata.annotations.
const annotationsField = 5

// WithProvenance returns r with annotations that tell p, and with p's cluster as its own.
// What is empty in p is not annotated. A MeshConfig has no annotations.
func (r *Resource) WithProvenance(p Provenance) *Resource {
	if r.Kind() == MeshConfig {
		return r.WithCluster(p.Cluster)
	}
	meta, body := r.split()
	md, err := parseMetadata(meta)
	if err != nil {
		return r // our own encoding, which parses
	}
	md.version = []byte(r.sourceVersion)
	md.annotations = slices.Grow(md.annotations, 2)
	md.volatile = slices.Grow(md.volatile, 2)
	set := func(key, value string) {
		if value != "" {
			md.annotate(key, value)
		}
	}
	set(SourceAnnotation, p.Source)
	set(ClusterAnnotation, p.Cluster)
	set(SourceVersionAnnotation, p.SourceVersion)
	set(PathAnnotation, strings.Join(p.Path, ","))
	out, err := newWrapped(r.Kind(), md, body, from{r.Source(), p.Cluster})
	if err != nil {
		return r // the name is the one that r has
	}
	return out
}

// WithCluster returns r as a resource of a cluster. The bytes are shared.
func (r *Resource) WithCluster(cluster string) *Resource {
	o := r.origin.Value()
	if o.cluster == cluster {
		return r
	}
	o.cluster = cluster
	c := *r
	c.origin = unique.Make(o)
	return &c
}
