package rewrite

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
)

// exportToOf returns the exportTo of a body, nil when its kind has none.
func exportToOf(body proto.Message) *[]string {
	switch b := body.(type) {
	case *networking.ServiceEntry:
		return &b.ExportTo
	case *networking.VirtualService:
		return &b.ExportTo
	case *networking.DestinationRule:
		return &b.ExportTo
	}
	return nil
}

func replaceExportTo(body proto.Message, to []string) bool {
	field := exportToOf(body)
	if slices.Equal(*field, to) {
		return false
	}
	*field = slices.Clone(to)
	return true
}

// endpointsOf returns the endpoints in a body, false when its kind has none.
func endpointsOf(body proto.Message) ([]*networking.WorkloadEntry, bool) {
	switch b := body.(type) {
	case *networking.ServiceEntry:
		return b.Endpoints, true
	case *networking.WorkloadEntry:
		return []*networking.WorkloadEntry{b}, true
	case *networking.WorkloadGroup: // the entries of the group are made from its template
		if b.Template == nil {
			b.Template = &networking.WorkloadEntry{}
		}
		return []*networking.WorkloadEntry{b.Template}, true
	}
	return nil, false
}

// apply overrides all endpoints of a body, and reports whether it changed.
func (t Endpoints) apply(body proto.Message) bool {
	changed := false
	all, _ := endpointsOf(body)
	for _, e := range all {
		if t.Network != "" && e.Network != t.Network {
			e.Network, changed = t.Network, true
		}
		if t.Locality != "" && e.Locality != t.Locality {
			e.Locality, changed = t.Locality, true
		}
		if t.Cluster != "" && e.Labels[federation.ClusterLabel] != t.Cluster {
			if e.Labels == nil {
				e.Labels = map[string]string{}
			}
			e.Labels[federation.ClusterLabel], changed = t.Cluster, true
		}
	}
	return changed
}
