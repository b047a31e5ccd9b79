package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// The metadata of an Envoy endpoint that istiods write and read (istio
// pilot/pkg/networking/util/util.go AppendLbEndpointMetadata).
const (
	transportSocketMatch = "envoy.transport_socket_match"
	istioMetadata        = "istio"

	canonicalNameLabel     = "service.istio.io/canonical-name"
	canonicalRevisionLabel = "service.istio.io/canonical-revision"
	clusterLabel           = "topology.istio.io/cluster"

	// maxLocality bounds region, zone and subzone, together.
	maxLocality = 253
)

// WithEndpoints returns r, which IsSynthetic, with the endpoints that its clusters have, by
// port of the service. network is the network from which they are reachable: that of those
// who will use them, for an istiod that was asked on their behalf answers with its gateways
// where they could not go themselves.
//
// What a ServiceEntry can not say is left out. Endpoints that are not healthy, and those
// without an IP address. Ports that nobody serves, while others are served; and addresses
// that do not serve all the others: an endpoint of a ServiceEntry serves each port, at the
// service's own number when it says nothing else.
//
// The result depends on what the clusters say, not on its order. Its resolution is STATIC,
// with no endpoints too. The error is ErrUnreachable as for Gateways.Reach.
func WithEndpoints(r *mirror.Resource, byPort Assignments, network string) (*mirror.Resource, error) {
	se, err := syntheticService(r)
	if err != nil {
		return nil, err
	}
	se.Resolution = networking.ServiceEntry_STATIC
	places := gather(se.Ports, byPort)
	served := settlePorts(places, len(se.Ports))
	if len(served) > 0 {
		se.Ports = pick(se.Ports, served)
		se.Endpoints = make([]*networking.WorkloadEntry, 0, len(places))
		for _, p := range places {
			if p.serves(served) {
				se.Endpoints = append(se.Endpoints, p.entry(se.Ports, served, network))
			}
		}
	}
	return withService(r, se)
}

// Assignments are the endpoints of a service, by port.
type Assignments = map[uint32]*endpointv3.ClusterLoadAssignment

// endpoint is one of a cluster.
type endpoint struct {
	addr     netip.Addr
	locality string
	port     uint32
	weight   uint32
	tls      bool
	workload string
}

// place is where the ports of a service are served: an address in a locality. nth tells
// those apart that have several ports for one of the service's, as pods on the network of
// one host may.
type place struct {
	addr     netip.Addr
	locality string
	nth      int
	ports    []uint32 // by port of the service; 0 when it is not served
	weight   uint32
	tls      bool
	workload string
}

// gather returns the places of all ports, sorted.
func gather(ports []*networking.ServicePort, byPort Assignments) []*place {
	type key struct {
		addr     netip.Addr
		locality string
		nth      int
	}
	index := map[key]*place{}
	var places []*place
	for i, port := range ports {
		var before key
		for _, e := range endpointsOf(byPort[port.Number]) {
			k := key{addr: e.addr, locality: e.locality}
			if before.addr == e.addr && before.locality == e.locality {
				k.nth = before.nth + 1
			}
			before = k
			p := index[k]
			if p == nil {
				p = &place{addr: k.addr, locality: k.locality, nth: k.nth, ports: make([]uint32, len(ports)), workload: e.workload}
				index[k] = p
				places = append(places, p)
			}
			p.ports[i] = e.port
			// They differ between ports when a policy is about one of them, and an endpoint of
			// a ServiceEntry has one for all: rather mTLS in vain than plaintext in its stead.
			p.tls = p.tls || e.tls
			p.weight = max(p.weight, e.weight)
		}
	}
	slices.SortFunc(places, func(a, b *place) int {
		return cmp.Or(a.addr.Compare(b.addr), strings.Compare(a.locality, b.locality), cmp.Compare(a.nth, b.nth))
	})
	return places
}

// endpointsOf returns the endpoints of a cluster that a ServiceEntry can have, sorted, each
// once.
func endpointsOf(cla *endpointv3.ClusterLoadAssignment) []endpoint {
	n := 0
	for _, l := range cla.GetEndpoints() {
		n += len(l.GetLbEndpoints())
	}
	all := make([]endpoint, 0, n)
	for _, l := range cla.GetEndpoints() {
		locality := localityOf(l.GetLocality())
		for _, lb := range l.GetLbEndpoints() {
			if e, ok := endpointOf(lb); ok {
				e.locality = locality
				all = append(all, e)
			}
		}
	}
	slices.SortFunc(all, func(a, b endpoint) int {
		return cmp.Or(a.addr.Compare(b.addr), strings.Compare(a.locality, b.locality), cmp.Compare(a.port, b.port),
			cmp.Compare(b.weight, a.weight), cmp.Compare(flag(b.tls), flag(a.tls)), strings.Compare(a.workload, b.workload))
	})
	return slices.CompactFunc(all, func(a, b endpoint) bool {
		return a.addr == b.addr && a.locality == b.locality && a.port == b.port
	})
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func endpointOf(lb *endpointv3.LbEndpoint) (endpoint, bool) {
	switch lb.GetHealthStatus() {
	case corev3.HealthStatus_UNKNOWN, corev3.HealthStatus_HEALTHY, corev3.HealthStatus_DEGRADED:
	default:
		return endpoint{}, false
	}
	// A pipe or an internal address is of use to the proxy alone that is told of it.
	socket := lb.GetEndpoint().GetAddress().GetSocketAddress()
	port := socket.GetPortValue()
	addr, err := netip.ParseAddr(socket.GetAddress())
	if err != nil || !usableAddr(addr) || socket.GetProtocol() != corev3.SocketAddress_TCP || port == 0 || port > maxPort {
		return endpoint{}, false
	}
	md := lb.GetMetadata().GetFilterMetadata()
	return endpoint{
		addr: addr, port: port,
		weight:   max(lb.GetLoadBalancingWeight().GetValue(), 1),
		tls:      md[transportSocketMatch].GetFields()["tlsMode"].GetStringValue() == tlsModeIstio,
		workload: md[istioMetadata].GetFields()["workload"].GetStringValue(),
	}, true
}

// localityOf returns region/zone/subzone as istiods spell it; empty when it can not be
// spelled so.
func localityOf(l *corev3.Locality) string {
	parts := []string{l.GetRegion(), l.GetZone(), l.GetSubZone()}
	for len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	if !soundLocality(parts) {
		return ""
	}
	return strings.Join(parts, "/")
}

func soundLocality(parts []string) bool {
	size := 0
	for _, p := range parts {
		size += len(p) + 1
		if p == "" || strings.Contains(p, "/") {
			return false
		}
	}
	return len(parts) > 0 && len(parts) <= 3 && size <= maxLocality+1
}

// settlePorts returns the indexes of n ports that the endpoints of the service shall serve:
// those that anybody serves, if there is a place that serves all of these. If there is
// none, the ports that the fewest places serve are given up, one by one.
func settlePorts(places []*place, n int) []int {
	count := make([]int, n)
	for _, p := range places {
		for i, port := range p.ports {
			if port != 0 {
				count[i]++
			}
		}
	}
	var served []int
	for i, c := range count {
		if c > 0 {
			served = append(served, i)
		}
	}
	for len(served) > 1 && !slices.ContainsFunc(places, func(p *place) bool { return p.serves(served) }) {
		fewest := 0
		for i, port := range served {
			if count[port] <= count[served[fewest]] {
				fewest = i
			}
		}
		served = slices.Delete(served, fewest, fewest+1)
	}
	return served
}

func pick(ports []*networking.ServicePort, indexes []int) []*networking.ServicePort {
	out := make([]*networking.ServicePort, 0, len(indexes))
	for _, i := range indexes {
		out = append(out, ports[i])
	}
	return out
}

func (p *place) serves(ports []int) bool {
	return !slices.ContainsFunc(ports, func(i int) bool { return p.ports[i] == 0 })
}

// entry returns the endpoint of a ServiceEntry with these ports, which have these indexes.
func (p *place) entry(ports []*networking.ServicePort, served []int, network string) *networking.WorkloadEntry {
	e := &networking.WorkloadEntry{
		Address: p.addr.String(), Ports: make(map[string]uint32, len(ports)), Network: network, Locality: p.locality,
		Labels: labelsOf(p.workload, p.tls),
	}
	for i, port := range ports {
		e.Ports[port.Name] = p.ports[served[i]]
	}
	if p.weight > 1 {
		e.Weight = p.weight // none means 1
	}
	return e
}

// labelsOf returns what an endpoint's metadata says of the workload:
// "name;namespace;canonical name;canonical revision;cluster".
func labelsOf(workload string, tls bool) map[string]string {
	labels := make(map[string]string, 4)
	if tls {
		labels[tlsModeLabel] = tlsModeIstio
	}
	n := 0
	for field := range strings.SplitSeq(workload, ";") {
		name := ""
		switch n {
		case 2:
			name = canonicalNameLabel
		case 3:
			name = canonicalRevisionLabel
		case 4:
			name = clusterLabel
		}
		if name != "" && isLabelValue(field) {
			labels[name] = field
		}
		n++
	}
	if n != 5 {
		delete(labels, canonicalNameLabel)
		delete(labels, canonicalRevisionLabel)
		delete(labels, clusterLabel)
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}
