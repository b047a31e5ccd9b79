package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// The metadata of an Envoy endpoint that istiods write and read (istio
// pilot/pkg/networking/util/util.go AppendLbEndpointMetadata).
const (
	transportSocketMatch = "envoy.transport_socket_match"
	istioMetadata        = "istio"

	// maxLocality bounds region/zone/subzone, in bytes.
	maxLocality = 253
)

// Endpoint is an address that serves one port of a service.
type Endpoint struct {
	Addr     netip.Addr // not valid if Host is set, or if only the Network is known, whose gateways stand for the endpoint
	Host     string     // a DNS name, which only services have whose names are resolved
	Port     uint32
	Weight   uint32 // 0 means 1
	Locality string // region/zone/subzone, or empty
	Network  string
	Account  string // the service account
	TLS      bool   // it accepts the mTLS of the mesh
	Labels   string // as EncodeLabels returns them
}

// Assignments are the endpoints of a service, by port, in any order.
type Assignments = map[uint32][]Endpoint

// WithEndpoints returns r with the endpoints of its clusters, by port of the service. r must be synthetic, or a
// ServiceEntry that selects workloads; the selector is removed. network is the network of endpoints that have none.
//
// An endpoint of a ServiceEntry serves each port. So there is a ServiceEntry for each set of ports that endpoints of a
// Kubernetes service serve: that with the most endpoints is served, and others, up to maxSets, come as siblings, which have
// the key of r until AsSibling gives them theirs. WithEndpoints skips what a ServiceEntry can not express: endpoints without
// an address and a network, and ports without endpoints while others have some.
//
// The result does not depend on the order of endpoints. Its resolution is STATIC, except for a ServiceEntry that
// resolves the names of workloads. The error is ErrUnreachable as for WithGateways.
func WithEndpoints(r *mirror.Resource, byPort Assignments, network string) (served *mirror.Resource, siblings []*mirror.Resource, err error) {
	se, err := serviceOf(r)
	if err != nil {
		return nil, nil, err
	}
	if se.WorkloadSelector == nil {
		se.Resolution = networking.ServiceEntry_STATIC
	}
	se.WorkloadSelector = nil
	sets := setsOf(gather(se.Ports, byPort, se.Resolution != networking.ServiceEntry_STATIC), len(se.Ports))
	for i := 1; i < len(sets) && IsMade(r); i++ {
		one := proto.CloneOf(se)
		sets[i].fill(one, network)
		other, err := r.WithBody(one)
		if err != nil {
			return nil, nil, err
		}
		siblings = append(siblings, other)
	}
	if len(sets) > 0 {
		sets[0].fill(se, network)
	}
	switch {
	case len(se.Endpoints) == 0:
		se.Resolution = networking.ServiceEntry_STATIC // clients would resolve the host
	case se.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN:
		se.Endpoints = se.Endpoints[:1] // validation accepts no more
	}
	served, err = r.WithBody(se)
	return served, siblings, err
}

// AsSibling returns a sibling of the service that is served under a key, under its own key: that name, and a hash of its ports.
func AsSibling(r *mirror.Resource, service mirror.Key) (*mirror.Resource, error) {
	se, err := entryOf(r)
	if err != nil {
		return nil, err
	}
	ports := ""
	for _, p := range se.Ports {
		ports += fmt.Sprint(p.Number, " ")
	}
	s := r.Spec()
	s.Name = service.Name + federation.Suffix(ports)
	annotate(&s, mirror.SiblingAnnotation, service.Name)
	return mirror.New(s)
}

// spot is an address in a locality. nth numbers the spots of one address: an address may serve a port of the
// service on several ports, for example as the host of several pods on its network. Endpoints without an address are
// told apart by all that they tell, and numbered if they are alike.
type spot struct {
	addr     netip.Addr
	host     string
	locality string
	told     string
	nth      int
}

// told returns what tells an endpoint without an address from others, empty for one with an address.
func (e *Endpoint) told() string {
	if e.Addr.IsValid() || e.Host != "" {
		return ""
	}
	return fmt.Sprintf("%q %q %q %d %t", e.Network, e.Account, e.Labels, e.Weight, e.TLS)
}

// place is a spot that serves ports of a service.
type place struct {
	spot
	ports []uint32 // by port of the service; 0 for none
	of    *Endpoint
	// weight and tls are of all ports.
	weight uint32
	tls    bool
}

// gather returns the places of all ports, sorted. resolves: endpoints may have names.
func gather(ports []*networking.ServicePort, byPort Assignments, resolves bool) []*place {
	index := map[spot]*place{}
	for i, port := range ports {
		all := usableOf(byPort[port.Number], resolves)
		var before spot
		for n := range all {
			e := &all[n]
			at := spot{addr: e.Addr, host: e.Host, locality: e.Locality, told: e.told(), nth: before.nth}
			if at == before {
				at.nth++
			} else {
				at.nth = 0
			}
			before = at
			p := index[at]
			if p == nil {
				p = &place{spot: at, ports: make([]uint32, len(ports)), of: e}
				index[at] = p
			}
			p.ports[i] = e.Port
			// A policy for one port makes the modes differ, and an endpoint of a ServiceEntry has
			// one mode for all ports: mTLS that fails is better than plaintext.
			p.tls = p.tls || e.TLS
			p.weight = max(p.weight, e.Weight)
		}
	}
	places := slices.AppendSeq(make([]*place, 0, len(index)), maps.Values(index))
	slices.SortFunc(places, func(a, b *place) int {
		return cmp.Or(a.addr.Compare(b.addr), strings.Compare(a.host, b.host), strings.Compare(a.locality, b.locality), strings.Compare(a.told, b.told), cmp.Compare(a.nth, b.nth))
	})
	return places
}

// usableOf returns the endpoints that a ServiceEntry can express, sorted and each once.
func usableOf(some []Endpoint, resolves bool) []Endpoint {
	all := make([]Endpoint, 0, len(some))
	for _, e := range some {
		named := e.Host != "" && resolves && !e.Addr.IsValid() && isFQDN(e.Host)
		behind := e.Host == "" && !resolves && !e.Addr.IsValid() && e.Network != "" // validation wants a name where names are resolved
		if (named || behind || e.Host == "" && usableAddr(e.Addr)) && e.Port > 0 && e.Port <= maxPort {
			e.Weight = max(e.Weight, 1)
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b Endpoint) int {
		return cmp.Or(a.Addr.Compare(b.Addr), strings.Compare(a.Host, b.Host), strings.Compare(a.Locality, b.Locality), strings.Compare(a.told(), b.told()), cmp.Compare(a.Port, b.Port),
			cmp.Compare(b.Weight, a.Weight), cmp.Compare(flag(b.TLS), flag(a.TLS)), strings.Compare(a.Labels, b.Labels), strings.Compare(a.Account, b.Account),
			strings.Compare(a.Network, b.Network))
	})
	return slices.CompactFunc(all, func(a, b Endpoint) bool {
		return a.Addr == b.Addr && a.Host == b.Host && a.Locality == b.Locality && a.Port == b.Port && a.told() == ""
	})
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FromAssignment returns the endpoints of an Envoy cluster. It leaves out unhealthy ones, and those without an IP
// address.
func FromAssignment(cla *endpointv3.ClusterLoadAssignment) []Endpoint {
	n := 0
	for _, l := range cla.GetEndpoints() {
		n += len(l.GetLbEndpoints())
	}
	all := make([]Endpoint, 0, n)
	for _, l := range cla.GetEndpoints() {
		locality := Locality(l.GetLocality().GetRegion(), l.GetLocality().GetZone(), l.GetLocality().GetSubZone())
		for _, lb := range l.GetLbEndpoints() {
			if e, ok := endpointOf(lb); ok {
				e.Locality = locality
				all = append(all, e)
			}
		}
	}
	return all
}

func endpointOf(lb *endpointv3.LbEndpoint) (Endpoint, bool) {
	switch lb.GetHealthStatus() {
	case corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DEGRADED:
	default:
		return Endpoint{}, false
	}
	// Only the proxy itself can use a pipe or an internal address.
	socket := lb.GetEndpoint().GetAddress().GetSocketAddress()
	addr, err := netip.ParseAddr(socket.GetAddress())
	if err != nil || socket.GetProtocol() != corev3.SocketAddress_TCP {
		return Endpoint{}, false
	}
	md := lb.GetMetadata().GetFilterMetadata()
	return Endpoint{
		Addr: addr, Port: socket.GetPortValue(), Weight: lb.GetLoadBalancingWeight().GetValue(),
		TLS:    md[transportSocketMatch].GetFields()["tlsMode"].GetStringValue() == tlsModeIstio,
		Labels: labelsOf(md[istioMetadata].GetFields()["workload"].GetStringValue()),
	}, true
}

// Locality returns region/zone/subzone without empty parts at the end, and nothing if a locality does not have this form.
func Locality(parts ...string) string {
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	text := strings.Join(parts, "/")
	if len(parts) > 3 || len(text) > maxLocality || slices.Contains(parts, "") || strings.Count(text, "/") != len(parts)-1 {
		return ""
	}
	return text
}

// set is some of the ports of a service, by index, and the places that serve exactly these.
type set struct {
	ports  []int
	places []*place
}

// maxSets bounds the ServiceEntries of a service: others write the ports of its endpoints.
const maxSets = 32

// setsOf returns the sets of ports that places serve, of n ports: those with more places first, then those with more ports.
func setsOf(places []*place, n int) []set {
	index, all, key := map[string]int{}, []set(nil), make([]byte, n)
	for _, p := range places {
		for i, port := range p.ports {
			key[i] = byte(min(port, 1))
		}
		at, known := index[string(key)]
		if !known {
			at, all = len(all), append(all, set{})
			index[string(key)] = at
			for i := range key {
				if key[i] == 1 {
					all[at].ports = append(all[at].ports, i)
				}
			}
		}
		all[at].places = append(all[at].places, p)
	}
	slices.SortFunc(all, func(a, b set) int {
		return cmp.Or(len(b.places)-len(a.places), len(b.ports)-len(a.ports), slices.Compare(a.ports, b.ports))
	})
	return all[:min(len(all), maxSets)]
}

// fill gives a ServiceEntry with all ports the ports and the endpoints of the set.
func (s set) fill(se *networking.ServiceEntry, network string) {
	ports := se.Ports
	se.Ports, se.Endpoints = make([]*networking.ServicePort, 0, len(s.ports)), make([]*networking.WorkloadEntry, 0, len(s.places))
	for _, i := range s.ports {
		se.Ports = append(se.Ports, ports[i])
	}
	for _, p := range s.places {
		se.Endpoints = append(se.Endpoints, p.entry(ports, s.ports, network))
	}
}

// entry returns the endpoint for the ports whose indexes are served.
func (p *place) entry(ports []*networking.ServicePort, served []int, network string) *networking.WorkloadEntry {
	e := &networking.WorkloadEntry{
		Address: p.host, Ports: make(map[string]uint32, len(served)), Network: cmp.Or(p.of.Network, network), Locality: p.locality,
		ServiceAccount: p.of.Account, Labels: decodeLabels(p.of.Labels),
	}
	if p.addr.IsValid() {
		e.Address = p.addr.String()
	}
	if p.tls {
		e.Labels[federation.TLSModeLabel] = tlsModeIstio
	}
	for _, i := range served {
		e.Ports[ports[i].Name] = p.ports[i]
	}
	if p.weight > 1 {
		e.Weight = p.weight // no weight means 1
	}
	return e
}
