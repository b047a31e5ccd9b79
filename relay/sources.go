package relay

import (
	"context"

	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/file"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/xds"
)

// Kinds returns the kinds of sources that an upstream can have.
func Kinds() []upstreams.Kind { return []upstreams.Kind{xds.Kind(), file.Kind(), kubernetes.Kind()} }

// Sources returns the config sections of those kinds, for package config.
func Sources() (sections []config.Source) {
	for _, kind := range Kinds() {
		sections = append(sections, kind.Config)
	}
	return sections
}

// Read returns the resources of an upstream and the mistakes in them, as far as they are known without a
// connection.
func Read(ctx context.Context, u config.Upstream) upstreams.Content {
	kind, err := upstreams.KindOf(Kinds(), u)
	if err != nil || kind.Read == nil {
		return upstreams.Content{}
	}
	return kind.Read(ctx, u)
}

// clusterUID returns the UID of the cluster of an upstream that is an API server, empty if it is not known.
func clusterUID(u upstreams.Status) string {
	if d, is := u.Detail.(*kubernetes.Detail); is && d != nil {
		return d.Cluster
	}
	return ""
}

// tellsConditions reports whether conditions of the objects of an upstream are written.
func tellsConditions(u config.Upstream) bool {
	k, is := u.Source.(*kubernetes.Config)
	return is && k.Status != ""
}
