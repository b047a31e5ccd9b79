package services

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// Endpoint is an endpoint of a service.
type Endpoint struct {
	Address string         `json:"address"`
	Ports   []EndpointPort `json:"ports,omitempty"`
	Cluster string         `json:"cluster,omitempty"`
	Network string         `json:"network,omitempty"`
	// Locality is region/zone/subzone.
	Locality string            `json:"locality,omitempty"`
	Weight   uint32            `json:"weight"`
	Account  string            `json:"account,omitempty"` // the service account
	Labels   map[string]string `json:"labels,omitempty"`
	// From is the resource that has the endpoint, Upstream where it comes from.
	From     mirror.Key `json:"from"`
	Upstream string     `json:"upstream"`
	// ContactLost is since when that source is out of contact, zero in contact.
	ContactLost time.Time `json:"contactLost,omitzero"`
}

// EndpointPort is the port of an endpoint that serves a port of the service.
type EndpointPort struct {
	Service uint32 `json:"service"`
	Port    uint32 `json:"port,omitempty"` // 0 for a Unix socket
}

// newEndpoint returns an endpoint of a ServiceEntry with its ports: by name, else the targetPort, else the number.
func (w *world) newEndpoint(we *networking.WorkloadEntry, from mirror.Key, r *mirror.Resource, ports []*networking.ServicePort) Endpoint {
	e := Endpoint{
		Address: we.GetAddress(), Cluster: cmp.Or(we.GetLabels()[federation.ClusterLabel], r.Cluster()), Network: cmp.Or(we.GetNetwork(), we.GetLabels()[federation.NetworkLabel]),
		Locality: cmp.Or(we.GetLocality(), we.GetLabels()[federation.LocalityLabel]), Weight: max(we.GetWeight(), 1), Account: we.GetServiceAccount(),
		Labels: we.GetLabels(), From: from, Upstream: r.Source(), ContactLost: w.contactLost(r), Ports: make([]EndpointPort, len(ports)),
	}
	for i, p := range ports {
		if e.Ports[i].Service = p.GetNumber(); !strings.HasPrefix(e.Address, "unix://") {
			e.Ports[i].Port = cmp.Or(we.GetPorts()[p.GetName()], p.GetTargetPort(), p.GetNumber())
		}
	}
	return e
}

// label is a label of workloads.
type label struct{ key, value string }

// workload is a WorkloadEntry with all its labels.
type workload struct {
	*networking.WorkloadEntry
	resource *mirror.Resource
}

// workloadsOf returns the WorkloadEntries of a namespace by label, and all of them with the zero label.
func (w *world) workloadsOf(namespace string) map[label][]*workload {
	index := w.workloads[namespace]
	if index != nil {
		return index
	}
	index = map[label][]*workload{}
	for _, r := range w.resources[namespace] {
		one := &workload{&networking.WorkloadEntry{}, r}
		if proto.Unmarshal(r.BodyValue(), one.WorkloadEntry) != nil {
			continue // never: a mirror.Resource decodes
		}
		if one.Labels == nil {
			one.Labels = map[string]string{}
		}
		maps.Copy(one.Labels, r.Metadata().Labels)
		index[label{}] = append(index[label{}], one)
		for k, v := range one.Labels {
			index[label{k, v}] = append(index[label{k, v}], one)
		}
	}
	w.workloads[namespace] = index
	return index
}

// selected returns the workloads that an entry selects in its namespace. It looks only at those that have the rarest
// label. A Kubernetes service without a selector selects nothing.
func (w *world) selected(r *mirror.Resource, se *networking.ServiceEntry) (out []*workload) {
	want := se.GetWorkloadSelector().GetLabels()
	if se.GetWorkloadSelector() == nil || services.IsMade(r) && len(want) == 0 {
		return nil
	}
	index := w.workloadsOf(r.Namespace())
	some := index[label{}]
	for k, v := range want {
		if with := index[label{k, v}]; len(with) <= len(some) {
			some = with
		}
	}
	if !w.charge(len(some)) {
		return nil
	}
	selector := labels.SelectorFromValidatedSet(want)
	for _, one := range some {
		if selector.Matches(labels.Set(one.Labels)) {
			out = append(out, one)
		}
	}
	return out
}

// endpointsOf returns the endpoints of an entry: those that it lists, and the workloads that it selects.
func (w *world) endpointsOf(r *mirror.Resource, se *networking.ServiceEntry) (all []Endpoint) {
	origins := w.origins(r)
	for _, we := range se.GetEndpoints() {
		if !w.charge(1 + len(se.GetPorts())) {
			return all
		}
		all = append(all, w.newEndpoint(we, r.Key(), cmp.Or(origins[placeOf(we)], r), se.GetPorts()))
	}
	for _, one := range w.selected(r, se) {
		if !w.charge(1 + len(se.GetPorts())) {
			return all
		}
		all = append(all, w.newEndpoint(one.WorkloadEntry, one.resource.Key(), one.resource, se.GetPorts()))
	}
	return all
}

// placeOf returns what tells an endpoint from others of its service.
func placeOf(we *networking.WorkloadEntry) string {
	return fmt.Sprint(we.GetAddress(), " ", we.GetNetwork(), we.GetLabels())
}

// origins returns the copy that has an endpoint, by its place, of an entry that is a union of copies. Its own come first.
func (w *world) origins(r *mirror.Resource) map[string]*mirror.Resource {
	from := map[string]*mirror.Resource{}
	for _, own := range []bool{true, false} {
		for _, c := range w.copies[r.Key()] {
			if (c.Source() == r.Source()) != own || w.partial {
				continue
			}
			se := decode(c)
			w.charge(len(se.GetHosts()) + len(se.GetEndpoints()))
			for _, we := range se.GetEndpoints() {
				if at := placeOf(we); from[at] == nil {
					from[at] = c
				}
			}
		}
	}
	return from
}
