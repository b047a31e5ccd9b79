// Package services makes the services of another cluster reachable. A Kubernetes service comes as a ServiceEntry
// without endpoints, and a ServiceEntry may select workloads of that cluster. The package adds the gateways of the
// cluster as endpoints (WithGateways), or endpoints that were discovered (WithEndpoints).
//
// The package is pure. It must not know how endpoints are discovered: Clusters names the clusters of a service,
// and the caller brings their Assignments.
package services

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

const (
	// gatewayPort is the port on which an east-west gateway accepts mTLS for all services, and
	// forwards it by SNI.
	gatewayPort = 15443
	// tlsModeIstio is the value of federation.TLSModeLabel that makes clients use mTLS towards an endpoint.
	tlsModeIstio = "istio"

	maxPort = 1<<16 - 1
)

// ErrUnreachable is the error of a service that other clusters can not reach, whatever its endpoints.
var ErrUnreachable = errors.New("not reachable from other clusters")

// IsSynthetic reports whether r is a ServiceEntry that an istiod made of a Kubernetes service: its name begins
// with synthetic-, and it has no endpoints. Once a relay has added endpoints, it is not synthetic any more.
func IsSynthetic(r *mirror.Resource) bool {
	return IsMade(r) && !federation.HasEndpoints(r.BodyValue())
}

// IsMade reports whether r has the name of a ServiceEntry that an istiod made of a Kubernetes service, with
// endpoints or without.
func IsMade(r *mirror.Resource) bool {
	return r.Kind() == federation.ServiceEntry && strings.HasPrefix(r.Key().Name, federation.SyntheticPrefix)
}

// HasOwnHost reports whether the host of r, which IsMade, begins with the name and the namespace of the Kubernetes service
// that the name of r tells. People may name other ServiceEntries synthetic-, too.
func HasOwnHost(r *mirror.Resource) bool {
	host := string(wire.Last(r.BodyValue(), 1))
	return strings.HasPrefix(host, strings.TrimPrefix(r.Key().Name, federation.SyntheticPrefix)+"."+r.Namespace()+".svc.")
}

// Gateways are the east-west gateways of a cluster.
type Gateways struct {
	// Addresses are IP addresses or DNS names, with a port where that is not 15443.
	Addresses []string
	// Network is the network behind the gateways. An istiod that knows gateways of that network uses those
	// instead.
	Network string
}

// gateway is an address of Gateways.
type gateway struct {
	host string
	port uint32
	dns  bool
}

// Check returns the first mistake in the gateways.
func (g Gateways) Check() error {
	_, err := g.parse()
	return err
}

func (g Gateways) parse() ([]gateway, error) {
	if len(g.Addresses) == 0 {
		return nil, errors.New("there are no gateways")
	}
	var all []gateway
	for _, a := range g.Addresses {
		gw, ok := parseGateway(a)
		if !ok {
			return nil, fmt.Errorf("gateway %q: want an IP address or a DNS name, and a port where that is not %d", text.Abbreviate(a), gatewayPort)
		}
		all = append(all, gw)
	}
	slices.SortFunc(all, func(a, b gateway) int { return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.port, b.port)) })
	return slices.Compact(all), nil
}

func parseGateway(text string) (gateway, bool) {
	gw := gateway{host: text, port: gatewayPort}
	if host, port, err := net.SplitHostPort(text); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return gateway{}, false
		}
		gw.host, gw.port = host, uint32(n)
	} else {
		gw.host = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	}
	if addr, err := netip.ParseAddr(gw.host); err == nil {
		gw.host = addr.String()
		return gw, usableAddr(addr)
	}
	gw.dns = true
	return gw, isFQDN(gw.host)
}

func usableAddr(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() && a.Zone() == "" }

// WithGateways returns r, which must be synthetic, with the gateways as its endpoints. A label makes clients
// use mTLS with the SNI outbound_.80_._.host, by which the gateway finds the service. The error is
// ErrUnreachable for services that no gateway forwards to: UDP, and services outside of the mesh.
func WithGateways(r *mirror.Resource, g Gateways) (*mirror.Resource, error) {
	gateways, err := g.parse()
	if err != nil {
		return nil, err
	}
	se, err := syntheticService(r)
	if err != nil {
		return nil, err
	}
	se.Resolution = networking.ServiceEntry_STATIC
	for _, gw := range gateways {
		if gw.dns {
			se.Resolution = networking.ServiceEntry_DNS
		}
		e := &networking.WorkloadEntry{
			Address: gw.host, Ports: make(map[string]uint32, len(se.Ports)), Network: g.Network,
			Labels: map[string]string{federation.TLSModeLabel: tlsModeIstio},
		}
		for _, p := range se.Ports {
			e.Ports[p.Name] = gw.port
		}
		se.Endpoints = append(se.Endpoints, e)
	}
	if se.Resolution == networking.ServiceEntry_DNS {
		// Validation accepts networks with STATIC and NONE only.
		se.Addresses = slices.DeleteFunc(se.Addresses, func(a string) bool { return strings.Contains(a, "/") })
	}
	return r.WithBody(se)
}

// Selects reports whether r is a ServiceEntry whose endpoints are the workloads that it selects in its namespace.
func Selects(r *mirror.Resource) bool {
	if r.Kind() != federation.ServiceEntry || IsMade(r) {
		return false
	}
	const resolution, selector protowire.Number = 5, 9
	resolves, selects := false, false
	f := wire.Fields(r.BodyValue())
	for f.Next() {
		resolves = resolves || f.Number == resolution && !bytes.Equal(f.Value(), []byte{byte(networking.ServiceEntry_NONE)})
		selects = selects || f.Number == selector
	}
	return resolves && selects
}

// Cluster is a set of endpoints that one port of a service has.
type Cluster struct {
	// Port is the service's port.
	Port uint32
	// Name is that of an Envoy cluster, for example "outbound|80||db.shop.svc.cluster.local", or "workloads|",
	// a namespace, labels as in a selector, the name of the port and that of the workloads,
	// for example "workloads|shop|app=db,tier=1|http|8080".
	Name string
}

// SelectedPrefix begins the names of clusters of selected workloads.
const SelectedPrefix = "workloads|"

// Clusters returns the clusters of r, which must be synthetic, or a ServiceEntry that selects workloads: one for each
// port. The error is ErrUnreachable as for WithGateways.
func Clusters(r *mirror.Resource) ([]Cluster, error) {
	se, err := serviceOf(r)
	if err != nil {
		return nil, err
	}
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	all := make([]Cluster, 0, len(se.Ports))
	selected := ""
	if se.WorkloadSelector != nil {
		pairs := strings.TrimSuffix(EncodeLabels(se.WorkloadSelector.Labels), "\n")
		selected = SelectedPrefix + r.Namespace() + "|" + strings.ReplaceAll(pairs, "\n", ",") + "|"
	}
	for _, p := range se.Ports {
		name := "outbound|" + number(p.Number) + "||" + se.Hosts[0]
		if selected != "" {
			name = selected + p.Name + "|" + number(cmp.Or(p.TargetPort, p.Number))
		}
		all = append(all, Cluster{Port: p.Number, Name: name})
	}
	return all, nil
}

// serviceOf returns a synthetic ServiceEntry as syntheticService does, or one that selects workloads.
func serviceOf(r *mirror.Resource) (*networking.ServiceEntry, error) {
	if !Selects(r) {
		return syntheticService(r)
	}
	se, err := entryOf(r)
	if err != nil {
		return nil, err
	}
	labels := se.WorkloadSelector.GetLabels()
	switch {
	case len(se.Hosts) == 0:
		return nil, fmt.Errorf("%s: it has no host", r.Key())
	case strings.Count(EncodeLabels(labels), "\n") != len(labels):
		return nil, fmt.Errorf("%s: workloadSelector.labels has a label that is none", r.Key())
	case slices.ContainsFunc(se.Ports, func(p *networking.ServicePort) bool { return strings.Contains(p.Name, "|") }):
		return nil, fmt.Errorf("%s: the name of a port has a |", r.Key())
	}
	return se, nil
}

// syntheticService returns a synthetic ServiceEntry in a form that can have endpoints, and that passes istiod's
// validation (istio pkg/config/validation/validation.go ValidateServiceEntry). An istiod makes some
// ServiceEntries that do not pass.
func syntheticService(r *mirror.Resource) (*networking.ServiceEntry, error) {
	if !IsSynthetic(r) {
		return nil, fmt.Errorf("%s: not made of a Kubernetes service", r.Key())
	}
	se, err := entryOf(r)
	if err != nil {
		return nil, err
	}
	if err := normalize(se, r.Namespace()); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	return se, nil
}

func normalize(se *networking.ServiceEntry, namespace string) error {
	switch {
	case len(se.Hosts) != 1:
		return fmt.Errorf("it has %d hosts, and a Kubernetes service has one", len(se.Hosts))
	case !isFQDN(se.Hosts[0]):
		return fmt.Errorf("host %q is not a domain name", text.Abbreviate(se.Hosts[0]))
	case se.Location == networking.ServiceEntry_MESH_EXTERNAL:
		// It is an alias of another name. Gateways have no clusters for such services (istio
		// pilot/pkg/networking/core/cluster.go buildOutboundSniDnatClusters), and istiods no
		// endpoints.
		return fmt.Errorf("%w: it is of type ExternalName", ErrUnreachable)
	}
	se.Location = networking.ServiceEntry_MESH_INTERNAL
	// Endpoints and a selector exclude each other, and a selector would select workloads of the
	// clients' cluster.
	se.WorkloadSelector = nil
	if err := normalizePorts(se); err != nil {
		return err
	}
	// A headless service has the address 0.0.0.0, which stands for none. Newer clients give a
	// service without an address one of their own.
	se.Addresses = slices.DeleteFunc(se.Addresses, func(text string) bool {
		if strings.Contains(text, "/") {
			_, err := netip.ParsePrefix(text)
			return err != nil
		}
		addr, err := netip.ParseAddr(text)
		return err != nil || addr.IsUnspecified()
	})
	return normalizeExportTo(se, namespace)
}

// normalizePorts removes ports that Envoy does not proxy, and names ports without a name: the only port of a
// Kubernetes service needs none.
func normalizePorts(se *networking.ServiceEntry) error {
	names, numbers := map[string]bool{}, map[uint32]bool{}
	ports := se.Ports[:0]
	for _, p := range se.Ports {
		// istiods make no clusters for UDP (cluster.go buildOutboundClusters), and validation
		// refuses a number of both a TCP port and a UDP port.
		if strings.EqualFold(p.Protocol, "UDP") || numbers[p.Number] {
			continue
		}
		if p.Number == 0 || p.Number > maxPort {
			return fmt.Errorf("port %d is out of range", p.Number)
		}
		if !isDNSLabel(p.Name) || names[p.Name] {
			if p.Name = "port-" + strconv.FormatUint(uint64(p.Number), 10); names[p.Name] {
				return fmt.Errorf("two ports are named %s", p.Name)
			}
		}
		if !protocols[strings.ToLower(p.Protocol)] {
			p.Protocol = "" // the proxy detects it; an istiod writes "UnsupportedProtocol"
		}
		p.TargetPort = 0 // the endpoints have the ports
		names[p.Name], numbers[p.Number] = true, true
		ports = append(ports, p)
	}
	if se.Ports = ports; len(ports) == 0 {
		return fmt.Errorf("%w: it has no port that is proxied", ErrUnreachable)
	}
	return nil
}

// protocols are the protocols that validation knows (istio pkg/config/protocol/instance.go Parse).
var protocols = map[string]bool{
	"tcp": true, "udp": true, "grpc": true, "grpc-web": true, "http": true, "http_proxy": true,
	"http2": true, "https": true, "tls": true, "mongo": true, "redis": true, "mysql": true,
}

// normalizeExportTo sorts exportTo, which an istiod writes in random order, and removes redundant elements. An
// element that is no namespace is an error: without it, more namespaces could see the service.
func normalizeExportTo(se *networking.ServiceEntry, namespace string) error {
	if len(se.ExportTo) == 0 {
		return nil
	}
	for i, to := range se.ExportTo {
		// istiod splits the annotation at commas only (istio pilot/pkg/serviceregistry/kube
		// ConvertService).
		if to = strings.TrimSpace(to); to == namespace {
			to = "."
		}
		if to != "." && to != "*" && to != "~" && !isDNSLabel(to) {
			return fmt.Errorf("exportTo %q is not a namespace", text.Abbreviate(to))
		}
		se.ExportTo[i] = to
	}
	slices.Sort(se.ExportTo)
	se.ExportTo = slices.Compact(se.ExportTo)
	switch {
	case slices.Contains(se.ExportTo, "*"):
		se.ExportTo = []string{"*"}
	case len(se.ExportTo) > 1:
		se.ExportTo = slices.DeleteFunc(se.ExportTo, func(to string) bool { return to == "~" })
	}
	return nil
}

// isDNSLabel reports whether istiod's validation accepts a DNS label. It allows capitals (istio
// pkg/config/labels/instance.go).
func isDNSLabel(s string) bool {
	return len(s) <= 63 && isQualified(s, "-")
}

// isLabelValue reports whether s is a valid value of a Kubernetes label, and not empty.
func isLabelValue(s string) bool {
	return len(s) <= 63 && isQualified(s, "-_.")
}

// isQualified reports whether s consists of letters, digits and, except at its ends, inner.
func isQualified(s, inner string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && i < len(s)-1 && strings.IndexByte(inner, c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}

// isFQDN reports whether istiod's validation accepts a domain name (istio pkg/config/validation/agent
// ValidateFQDN).
func isFQDN(s string) bool {
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	_, err := strconv.Atoi(labels[len(labels)-1])
	return len(s) <= 255 && err != nil && !slices.ContainsFunc(labels, func(l string) bool { return !isDNSLabel(l) })
}
