package services

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// The metadata of an Envoy endpoint that istiods write and read (istio
// pilot/pkg/networking/util/util.go AppendLbEndpointMetadata).
const (
	transportSocketMatch = "envoy.transport_socket_match"
	istioMetadata        = "istio"

	canonicalNameLabel     = "service.istio.io/canonical-name"
	canonicalRevisionLabel = "service.istio.io/canonical-revision"

	// maxLocality bounds region, zone and subzone, together.
	maxLocality = 253
)

// WithEndpoints returns r, which must be synthetic, with the endpoints of its clusters, by port of the service.
// network is the network of the clients: an istiod answers with its gateways instead of endpoints that the
// clients can not reach.
//
// WithEndpoints skips what a ServiceEntry can not express: unhealthy endpoints, endpoints without an IP address,
// ports without endpoints while others have some, and addresses that do not serve all the remaining ports. An
// endpoint of a ServiceEntry serves each port.
//
// The result does not depend on the order of endpoints. Its resolution is always STATIC. The error is
// ErrUnreachable as for WithGateways.
func WithEndpoints(r *mirror.Resource, byPort Assignments, network string) (*mirror.Resource, error) {
	se, err := syntheticService(r)
	if err != nil {
		return nil, err
	}
	se.Resolution = networking.ServiceEntry_STATIC
	ports := se.Ports
	places := gather(ports, byPort)
	if served := choosePorts(places, len(ports)); len(served) > 0 {
		se.Ports = make([]*networking.ServicePort, 0, len(served))
		for _, i := range served {
			se.Ports = append(se.Ports, ports[i])
		}
		se.Endpoints = make([]*networking.WorkloadEntry, 0, len(places))
		for _, p := range places {
			if p.serves(served) {
				se.Endpoints = append(se.Endpoints, p.entry(ports, served, network))
			}
		}
	}
	return r.WithBody(se)
}

// Assignments are the endpoints of a service, by port.
type Assignments = map[uint32]*endpointv3.ClusterLoadAssignment

// endpoint is one endpoint of a cluster.
type endpoint struct {
	addr     netip.Addr
	locality string
	port     uint32
	weight   uint32
	tls      bool
	workload string
}

// spot is an address in a locality. nth numbers the spots of one address: an address may serve a port of the
// service on several ports, for example as the host of several pods on its network.
type spot struct {
	addr     netip.Addr
	locality string
	nth      int
}

// place is a spot that serves ports of a service.
type place struct {
	spot
	ports    []uint32 // by port of the service; 0 for none
	weight   uint32
	tls      bool
	workload string
}

// gather returns the places of all ports, sorted.
func gather(ports []*networking.ServicePort, byPort Assignments) []*place {
	index := map[spot]*place{}
	for i, port := range ports {
		var before spot
		for _, e := range endpointsOf(byPort[port.Number]) {
			at := spot{addr: e.addr, locality: e.locality}
			if before.addr == at.addr && before.locality == at.locality {
				at.nth = before.nth + 1
			}
			before = at
			p := index[at]
			if p == nil {
				p = &place{spot: at, ports: make([]uint32, len(ports)), workload: e.workload}
				index[at] = p
			}
			p.ports[i] = e.port
			// A policy for one port makes the modes differ, and an endpoint of a ServiceEntry has
			// one mode for all ports: mTLS that fails is better than plaintext.
			p.tls = p.tls || e.tls
			p.weight = max(p.weight, e.weight)
		}
	}
	places := slices.AppendSeq(make([]*place, 0, len(index)), maps.Values(index))
	slices.SortFunc(places, func(a, b *place) int {
		return cmp.Or(a.addr.Compare(b.addr), strings.Compare(a.locality, b.locality), cmp.Compare(a.nth, b.nth))
	})
	return places
}

// endpointsOf returns the endpoints of a cluster that a ServiceEntry can express, sorted and each once.
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
	// Only the proxy itself can use a pipe or an internal address.
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

// localityOf returns region/zone/subzone, empty when a locality does not have this form.
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

// choosePorts returns the indexes of the ports, of n, that all endpoints will serve. It begins with all ports
// that have a place. Until one place serves all of them, it removes the port with the fewest places.
func choosePorts(places []*place, n int) []int {
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

func (p *place) serves(ports []int) bool {
	return !slices.ContainsFunc(ports, func(i int) bool { return p.ports[i] == 0 })
}

// entry returns the endpoint for the ports whose indexes are served.
func (p *place) entry(ports []*networking.ServicePort, served []int, network string) *networking.WorkloadEntry {
	e := &networking.WorkloadEntry{
		Address: p.addr.String(), Ports: make(map[string]uint32, len(served)), Network: network, Locality: p.locality,
		Labels: labelsOf(p.workload, p.tls),
	}
	for _, i := range served {
		e.Ports[ports[i].Name] = p.ports[i]
	}
	if p.weight > 1 {
		e.Weight = p.weight // no weight means 1
	}
	return e
}

// workloadLabels are the labels for the workload in an endpoint's metadata,
// "name;namespace;canonical name;canonical revision;cluster".
var workloadLabels = [...]string{"", "", canonicalNameLabel, canonicalRevisionLabel, federation.ClusterLabel}

func labelsOf(workload string, tls bool) map[string]string {
	labels := make(map[string]string, 4)
	if tls {
		labels[tlsModeLabel] = tlsModeIstio
	}
	if strings.Count(workload, ";") != len(workloadLabels)-1 {
		return labels
	}
	for _, name := range workloadLabels {
		var field string
		if field, workload, _ = strings.Cut(workload, ";"); name != "" && isLabelValue(field) {
			labels[name] = field
		}
	}
	return labels
}
