package services

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"istio.io/api/label"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// EndpointsAnnotation is the annotation, with the value "none", of a ServiceEntry that a relay serves without endpoints because the
// service has none now. The next relay takes it as it is. Relays believe it from relays only.
const EndpointsAnnotation = "meshrelay.io/endpoints"

const noEndpoints = "none"

// Told reports whether a relay serves r without endpoints because the service has none.
func Told(r *mirror.Resource) bool {
	return r.Kind() == federation.ServiceEntry && r.HasAnnotation(EndpointsAnnotation) && !federation.HasEndpoints(r.BodyValue())
}

// Untold returns r without EndpointsAnnotation and mirror.SiblingAnnotation: r itself if it has none.
func Untold(r *mirror.Resource) (*mirror.Resource, error) {
	if !r.HasAnnotation(EndpointsAnnotation) && !r.HasAnnotation(mirror.SiblingAnnotation) {
		return r, nil
	}
	s := r.Spec()
	delete(s.Annotations, EndpointsAnnotation)
	delete(s.Annotations, mirror.SiblingAnnotation)
	return mirror.New(s)
}

// Believed returns r as it is believed of a source that is no relay: Untold, and with no mirror.AllocatedAnnotation that names
// other addresses than its own.
func Believed(r *mirror.Resource) (*mirror.Resource, error) {
	r, err := Untold(r)
	if err != nil || !r.HasAnnotation(mirror.AllocatedAnnotation) {
		return r, err
	}
	own := slices.Sorted(slices.Values(wire.Texts(r.BodyValue(), 2)))
	if !slices.ContainsFunc(r.Allocated(), func(a string) bool { _, is := slices.BinarySearch(own, a); return !is }) {
		return r, nil
	}
	s := r.Spec()
	delete(s.Annotations, mirror.AllocatedAnnotation)
	return mirror.New(s)
}

// Without returns a ServiceEntry without endpoints, and with EndpointsAnnotation. A name that was resolved for the
// endpoints is not resolved any more: without endpoints, clients would resolve the host. r itself is returned if it
// has no endpoints that it could lose: the annotation, a workloadSelector, or another resolution than STATIC.
func Without(r *mirror.Resource) (*mirror.Resource, error) { return WithoutFrom(r, nil) }

// WithoutFrom does that with the ports of an earlier content, unless that is nil, if a port of r has the number 0: a
// registry without a healthy instance does not know the ports.
func WithoutFrom(r, earlier *mirror.Resource) (*mirror.Resource, error) {
	if Told(r) {
		return r, nil
	}
	se, err := entryOf(r)
	if err != nil {
		return nil, err
	}
	if len(se.Endpoints) == 0 && (se.WorkloadSelector != nil || se.Resolution != networking.ServiceEntry_STATIC) {
		return r, nil
	}
	if earlier != nil && slices.ContainsFunc(se.Ports, func(p *networking.ServicePort) bool { return p.Number == 0 }) {
		before, err := entryOf(earlier)
		if err != nil {
			return nil, err
		}
		if se.Ports = before.Ports; Told(earlier) {
			settle(se.Ports)
		}
	}
	se.Endpoints, se.Resolution = nil, networking.ServiceEntry_STATIC
	unsettle(se.Ports)
	return withEntry(r, se, false)
}

// unsettle gives the first port another targetPort, which means nothing without endpoints. An istiod does nothing on an
// update in which a service only loses its last endpoint, unless a targetPort changes (known of 1.23; istio
// pilot/pkg/serviceregistry/serviceentry/controller.go serviceEntryHandler).
func unsettle(ports []*networking.ServicePort) {
	if len(ports) > 0 && ports[0].TargetPort == 0 {
		ports[0].TargetPort = ports[0].Number
	} else if len(ports) > 0 {
		ports[0].TargetPort = 0
	}
}

// settle takes back what unsettle has done to a port without a targetPort, as nearly all are.
func settle(ports []*networking.ServicePort) {
	if len(ports) > 0 && ports[0].TargetPort == ports[0].Number {
		ports[0].TargetPort = 0
	}
}

// Follow returns a ServiceEntry with the endpoints of newer, which is another content of it. Without all ports of r, newer
// has no endpoints for r. The resolution goes with the endpoints. made: the endpoints decide which ports of a Kubernetes
// service are served, so that the ports are those of newer, and r only decides about their names and protocols.
func Follow(r, newer *mirror.Resource, made bool) (*mirror.Resource, error) {
	se, err := entryOf(r)
	if err != nil || se.WorkloadSelector != nil {
		return r, err
	}
	now, err := entryOf(newer)
	if err != nil {
		return nil, err
	}
	if Told(r) {
		settle(se.Ports)
	}
	present := make(map[uint32]*networking.ServicePort, len(now.Ports))
	for _, p := range now.Ports {
		present[p.Number] = p
	}
	if ports := portsOf(se.Ports, now.Ports); made && len(now.Endpoints) > 0 && len(ports) > 0 {
		se.Ports = ports
	}
	se.Endpoints = nil
	for _, e := range now.Endpoints {
		if serves(e, se.Ports, present) {
			se.Endpoints = append(se.Endpoints, e)
		}
	}
	if len(se.Endpoints) == 0 {
		return Without(r)
	}
	se.Resolution = now.Resolution
	return withEntry(r, se, true)
}

// portsOf returns the ports of newer, as own has them. It leaves out those whose name another port of own has.
func portsOf(own, newer []*networking.ServicePort) (out []*networking.ServicePort) {
	for _, p := range newer {
		i := slices.IndexFunc(own, func(o *networking.ServicePort) bool { return o.Number == p.Number })
		switch {
		case i >= 0:
			out = append(out, own[i])
		case !slices.ContainsFunc(own, func(o *networking.ServicePort) bool { return o.Name == p.Name }):
			out = append(out, p)
		}
	}
	return out
}

// serves reports whether an endpoint serves all of some ports, and has it name them as they are named. present has the
// ports that it has served so far, by number: on those that it names, on the targetPort of the others, or on their number.
func serves(e *networking.WorkloadEntry, ports []*networking.ServicePort, present map[uint32]*networking.ServicePort) bool {
	named, differ := make(map[string]uint32, len(ports)), false
	for _, p := range ports {
		q := present[p.Number]
		if q == nil {
			return false
		}
		number, has := e.Ports[q.Name]
		named[p.Name] = cmp.Or(number, q.TargetPort, q.Number)
		differ = differ || has || cmp.Or(p.TargetPort, p.Number) != named[p.Name]
	}
	if differ {
		e.Ports = named
	} else {
		e.Ports = nil
	}
	return true
}

// SameConfig reports whether two contents of a ServiceEntry differ in their endpoints only. With endpoints, the resolution
// goes with them.
func SameConfig(a, b *mirror.Resource) bool {
	has := federation.HasEndpoints(a.BodyValue()) && federation.HasEndpoints(b.BodyValue())
	if !bytes.Equal(configOf(a.BodyValue(), has), configOf(b.BodyValue(), has)) {
		return false
	}
	x, y := a.Metadata(), b.Metadata()
	for _, all := range []map[string]string{x.Annotations, y.Annotations} {
		delete(all, mirror.ProvenanceAnnotation)
		delete(all, EndpointsAnnotation)
	}
	return maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations) && x.CreateTime.Equal(y.CreateTime)
}

// configOf returns the fields of an encoded ServiceEntry but for the endpoints, and for the resolution of one that has some.
func configOf(body []byte, has bool) (out []byte) {
	const resolution, endpoints protowire.Number = 5, 6
	c := wire.Fields(body)
	for c.Next() {
		if c.Number != endpoints && (c.Number != resolution || !has) {
			out = append(out, c.Field()...)
		}
	}
	return out
}

func entryOf(r *mirror.Resource) (*networking.ServiceEntry, error) {
	se := &networking.ServiceEntry{}
	if err := proto.Unmarshal(r.BodyValue(), se); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	return se, nil
}

// isForeign reports whether an address of a ServiceEntry may belong to somebody else. Istiods allocate the others.
func isForeign(address string) bool {
	a, err := netip.ParseAddr(address)
	return err != nil || !netip.MustParsePrefix("240.240.0.0/16").Contains(a) && !netip.MustParsePrefix("2001:2::/48").Contains(a)
}

// WithoutAddresses returns a ServiceEntry without the addresses that istiods have not allocated: r itself if it has none.
func WithoutAddresses(r *mirror.Resource) (*mirror.Resource, error) {
	if r.Kind() != federation.ServiceEntry || !slices.ContainsFunc(wire.Texts(r.BodyValue(), 2), isForeign) {
		return r, nil
	}
	se, err := entryOf(r)
	if err != nil {
		return nil, err
	}
	se.Addresses = slices.DeleteFunc(se.Addresses, isForeign)
	return withEntry(r, se, !Told(r))
}

// Allocated is an address that a cluster has allocated for a host of a ServiceEntry.
type Allocated struct{ Value, Host string }

// WithAllocated returns a ServiceEntry with the allocated addresses, and with mirror.AllocatedAnnotation: r itself where istiods
// do not use any (istio pilot/pkg/networking/serviceentry shouldV2AutoAllocateIPFromPieces).
func WithAllocated(r *mirror.Resource, all []Allocated) (*mirror.Resource, error) {
	se, err := entryOf(r)
	if err != nil {
		return nil, err
	}
	s := r.Spec()
	if se.Resolution == networking.ServiceEntry_NONE || len(se.Addresses) > 0 || strings.EqualFold(s.Labels[label.NetworkingEnableAutoallocateIp.Name], "false") {
		return r, nil
	}
	for _, a := range all[:min(len(all), mirror.MaxAllocated)] {
		ip, err := netip.ParseAddr(a.Value)
		if err == nil && ip.Zone() == "" && slices.Contains(se.Hosts, a.Host) && !slices.Contains(se.Addresses, ip.String()) {
			se.Addresses = append(se.Addresses, ip.String())
		}
	}
	if len(se.Addresses) == 0 {
		return r, nil
	}
	annotate(&s, mirror.AllocatedAnnotation, strings.Join(se.Addresses, ","))
	if r, err = mirror.New(s); err != nil {
		return nil, err
	}
	return r.WithBody(se)
}

// withEntry returns r with another body, and with EndpointsAnnotation unless it has endpoints.
func withEntry(r *mirror.Resource, se *networking.ServiceEntry, has bool) (*mirror.Resource, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(se)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	s := r.Spec()
	s.Body.Value = value
	delete(s.Annotations, EndpointsAnnotation)
	if !has {
		annotate(&s, EndpointsAnnotation, noEndpoints)
	}
	return mirror.New(s)
}

func annotate(s *mirror.Spec, key, value string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
}
