package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// Health is the health of an endpoint.
type Health string

// An Unknown endpoint gets no traffic: its status, which has the result of its health checks, does not come over xDS.
const (
	Healthy Health = "healthy"
	Unknown Health = "unknown"
)

// Endpoint is an endpoint of a service.
type Endpoint struct {
	Address string         `json:"address"`
	Ports   []EndpointPort `json:"ports,omitempty"`
	Cluster string         `json:"cluster,omitempty"`
	Network string         `json:"network,omitempty"`
	// Locality is region/zone/subzone.
	Locality string `json:"locality,omitempty"`
	Weight   uint32 `json:"weight"`
	Health   Health `json:"health"`
	// Account is the service account, Identity its SPIFFE ID.
	Account  string `json:"account,omitempty"`
	Identity string `json:"identity,omitempty"`
	// TLSMode is "istio", "disabled", or that of the label.
	TLSMode string            `json:"tlsMode"`
	Labels  map[string]string `json:"labels,omitempty"`
	// From is the resource that has the endpoint, Index its number in a ServiceEntry, Upstream where it comes from.
	From     mirror.Key `json:"from"`
	Index    int        `json:"index,omitempty"`
	Upstream string     `json:"upstream"`
	// Reason is why clients do not get it.
	Reason string `json:"reason,omitempty"`

	ports   map[string]uint32
	created time.Time
}

// EndpointPort is the port of an endpoint that serves a port of the service.
type EndpointPort struct {
	Service uint32 `json:"service"`
	Port    uint32 `json:"port,omitempty"` // 0 for a Unix socket
}

func (w *world) newEndpoint(we *networking.WorkloadEntry, r *mirror.Resource, index int) Endpoint {
	labels := maps.Clone(we.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	e := Endpoint{
		Address: we.GetAddress(), Cluster: cmp.Or(labels[federation.ClusterLabel], r.Cluster()), Network: we.GetNetwork(), Weight: max(we.GetWeight(), 1),
		Health: Healthy, Account: we.GetServiceAccount(), From: r.Key(), Index: index, Upstream: r.Source(), Labels: labels, ports: we.GetPorts(),
	}
	if e.Locality = cmp.Or(we.GetLocality(), labels[federation.LocalityLabel]); !strings.Contains(e.Locality, "/") && we.GetLocality() == "" {
		e.Locality = strings.ReplaceAll(e.Locality, ".", "/")
	}
	mode := "disabled"
	if e.Account != "" {
		e.Identity = "spiffe://" + cmp.Or(w.mesh.GetTrustDomain(), federation.DefaultDomain) + "/ns/" + r.Namespace() + "/sa/" + e.Account
		mode = "istio"
	}
	e.TLSMode = cmp.Or(labels[federation.TLSModeLabel], mode)
	at := strings.SplitN(e.Locality+"//", "/", 4)
	for key, value := range map[string]string{
		federation.RegionLabel: at[0], federation.ZoneLabel: at[1], federation.SubzoneLabel: at[2],
		federation.ClusterLabel: e.Cluster, federation.NetworkLabel: e.Network,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	return e
}

// unix reports whether the address is that of a Unix socket.
func (e *Endpoint) unix() bool { return strings.HasPrefix(e.Address, "unix://") }

// label is a label of workloads.
type label struct{ key, value string }

// workloadsOf returns the WorkloadEntries of a namespace by label, and all of them with the zero label; each by age.
func (w *world) workloadsOf(namespace string) map[label][]*Endpoint {
	index := w.workloads[namespace]
	if index != nil {
		return index
	}
	var all []*Endpoint
	for _, r := range slices.SortedFunc(slices.Values(w.resources[namespace]), compareResources) {
		we, md, decode := &networking.WorkloadEntry{Labels: map[string]string{}}, r.Metadata(), proto.UnmarshalOptions{Merge: true}
		if decode.Unmarshal(r.BodyValue(), we) != nil {
			continue // never: a mirror.Resource decodes
		}
		maps.Copy(we.Labels, md.Labels)
		e := w.newEndpoint(we, r, 0)
		e.created = md.CreateTime
		if checked, err := strconv.ParseBool(md.Annotations[federation.HealthChecksAnnotation]); err == nil && checked {
			e.Health = Unknown
		}
		all = append(all, &e)
	}
	slices.SortStableFunc(all, func(a, b *Endpoint) int { return a.created.Compare(b.created) })
	index = map[label][]*Endpoint{{}: all}
	for _, e := range all {
		for k, v := range e.Labels {
			index[label{k, v}] = append(index[label{k, v}], e)
		}
	}
	w.workloads[namespace] = index
	return index
}

// selected returns the workloads that an entry selects in its namespace, by age. It looks only at those that have the
// rarest label. A Kubernetes service without a selector selects nothing.
func (w *world) selected(e *entry) (out []*Endpoint) {
	want := e.body().GetWorkloadSelector().GetLabels()
	if e.body().GetWorkloadSelector() == nil || passes(e.body()) || e.made && len(want) == 0 {
		return nil
	}
	index := w.workloadsOf(e.Namespace())
	some := index[label{}]
	for k, v := range want {
		if with := index[label{k, v}]; len(with) <= len(some) {
			some = with
		}
	}
	if !w.charge(len(some)) {
		return nil
	}
	for _, one := range some {
		if contains(one.Labels, want) {
			out = append(out, one)
		}
	}
	return out
}

// contains reports whether labels have all of want.
func contains(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// addEndpoints adds the endpoints of an entry to a service: the workloads that it selects, else those that it lists, else
// the host itself, if that is resolved. links are the ports that they serve. seen are the workloads that the service has.
func (w *world) addEndpoints(s *Service, e *entry, links []link, seen map[mirror.Key]bool) {
	se, unused := e.body(), ""
	switch {
	case passes(se):
		unused = "the resolution is " + se.GetResolution().String() + ": traffic goes where the client sent it"
	case se.GetWorkloadSelector() != nil:
		unused = "the workloadSelector comes before endpoints"
	}
	for i, we := range se.GetEndpoints() {
		if !w.charge(1 + len(links)) {
			return
		}
		one := w.newEndpoint(we, cmp.Or(w.origins(e)[fmt.Sprint(we.GetAddress(), " ", we.GetNetwork(), we.GetLabels())], e.Resource), i)
		one.From = e.Key()
		s.add(one, se, links, unused)
	}
	for _, one := range w.selected(e) {
		if !seen[one.From] && w.charge(1+len(links)) {
			seen[one.From] = true
			s.add(*one, se, links, "")
		}
	}
	if resolves(se) && len(se.GetEndpoints()) == 0 && se.GetWorkloadSelector() == nil && !strings.HasPrefix(s.Host, federation.AnyHost) {
		s.add(w.newEndpoint(&networking.WorkloadEntry{Address: s.Host}, e.Resource, 0), se, links, "")
	}
}

// origins returns the copy that has an endpoint, by its address, network and labels, of an entry that is a union of copies.
func (w *world) origins(e *entry) map[string]*mirror.Resource {
	if e.from != nil {
		return e.from
	}
	e.from = map[string]*mirror.Resource{}
	for _, own := range []bool{true, false} {
		for _, c := range w.copies[e.Key()] {
			for _, we := range c.body().GetEndpoints() {
				if at := fmt.Sprint(we.GetAddress(), " ", we.GetNetwork(), we.GetLabels()); c.united && (c.Source() == e.Source()) == own && e.from[at] == nil {
					e.from[at] = c.Resource
				}
			}
		}
	}
	return e.from
}

// add adds an endpoint with its ports (by name, else the targetPort of the entry, else its number), or notes why clients
// do not get it.
func (s *Service) add(e Endpoint, se *networking.ServiceEntry, links []link, unused string) {
	_, err := netip.ParseAddr(e.Address)
	switch {
	case unused != "":
		e.Reason = unused
	case e.Address == "" && e.Network == "":
		e.Reason = "it has neither an address nor a network"
	case e.Address != "" && err != nil && !e.unix() && !resolves(se):
		e.Reason = "its address is a name, which the resolution STATIC does not resolve"
	case len(links) == 0:
		e.Reason = "the service has none of the ports of its entry"
	case s.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN.String() && len(s.Endpoints) > 0:
		e.Reason = "the resolution DNS_ROUND_ROBIN uses one endpoint"
	}
	if e.Reason != "" {
		s.LeftOut = append(s.LeftOut, e)
		return
	}
	e.Ports = make([]EndpointPort, len(links))
	for i, l := range links {
		if e.Ports[i].Service = l.number; !e.unix() {
			e.Ports[i].Port = cmp.Or(e.ports[l.own.GetName()], l.own.GetTargetPort(), l.own.GetNumber())
		}
	}
	s.Endpoints = append(s.Endpoints, e)
}
