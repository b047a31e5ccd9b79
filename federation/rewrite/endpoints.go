package rewrite

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// stampClusterLabel tells istiod which cluster an endpoint belongs to.
const stampClusterLabel = "topology.istio.io/cluster"

// exportToOf returns where a body says to whom it is visible, nil when its kind does not.
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

func hasEndpoints(body proto.Message) bool {
	switch body.(type) {
	case *networking.ServiceEntry, *networking.WorkloadEntry, *networking.WorkloadGroup:
		return true
	}
	return false
}

// apply stamps all endpoints of a body and reports whether it has changed.
func (t Endpoints) apply(body proto.Message) bool {
	switch b := body.(type) {
	case *networking.ServiceEntry:
		changed := false
		for _, e := range b.Endpoints {
			changed = t.stamp(e) || changed
		}
		return changed
	case *networking.WorkloadEntry:
		return t.stamp(b)
	case *networking.WorkloadGroup:
		if b.Template == nil {
			// The entries of the group are made from it.
			b.Template = &networking.WorkloadEntry{}
		}
		return t.stamp(b.Template)
	}
	return false
}

func (t Endpoints) stamp(e *networking.WorkloadEntry) bool {
	changed := false
	if t.Network != "" && e.Network != t.Network {
		e.Network, changed = t.Network, true
	}
	if t.Locality != "" && e.Locality != t.Locality {
		e.Locality, changed = t.Locality, true
	}
	if t.Cluster != "" && e.Labels[stampClusterLabel] != t.Cluster {
		if e.Labels == nil {
			e.Labels = map[string]string{}
		}
		e.Labels[stampClusterLabel], changed = t.Cluster, true
	}
	return changed
}
