package services

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// EndpointsAnnotation, with the value "none", is on a ServiceEntry that a relay serves without endpoints because the
// service has none now. The next relay takes it as it is. Relays believe it from relays only.
const EndpointsAnnotation = "meshrelay.io/endpoints"

const noEndpoints = "none"

// Told reports whether a relay serves r without endpoints because the service has none.
func Told(r *mirror.Resource) bool {
	return r.Kind() == federation.ServiceEntry && r.HasAnnotation(EndpointsAnnotation) && !federation.HasEndpoints(r.BodyValue())
}

// Untold returns r without EndpointsAnnotation: r itself if it has none.
func Untold(r *mirror.Resource) (*mirror.Resource, error) {
	if !r.HasAnnotation(EndpointsAnnotation) {
		return r, nil
	}
	s := r.Spec()
	delete(s.Annotations, EndpointsAnnotation)
	return mirror.New(s)
}

// Without returns a ServiceEntry without endpoints, and with EndpointsAnnotation. A name that was resolved for the
// endpoints is not resolved any more: without endpoints, clients would resolve the host. r itself is returned if it
// has no endpoints that it could lose: the annotation, a workloadSelector, or another resolution than STATIC.
func Without(r *mirror.Resource) (*mirror.Resource, error) {
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
	se.Endpoints, se.Resolution = nil, networking.ServiceEntry_STATIC
	return withEntry(r, se, false)
}

// WithPorts returns r, which has no endpoints, with the ports of an earlier content of it if a port of r has the number
// 0: a registry without a healthy instance does not know the ports.
func WithPorts(r, earlier *mirror.Resource) (*mirror.Resource, error) {
	se, err := entryOf(r)
	if err != nil || earlier == nil {
		return r, err
	}
	known := true
	for _, p := range se.Ports {
		known = known && p.Number != 0
	}
	if known {
		return r, nil
	}
	before, err := entryOf(earlier)
	if err != nil {
		return nil, err
	}
	se.Ports = before.Ports
	return r.WithBody(se)
}

// Follow returns a ServiceEntry with the endpoints of present, which is another content of it. It leaves out endpoints
// that do not serve all ports of r under the names that r gives them. The resolution goes with the endpoints. made: the
// endpoints decide which ports of a Kubernetes service are served, so that the ports are those of present, and r only
// decides about their names and protocols.
func Follow(r, present *mirror.Resource, made bool) (*mirror.Resource, error) {
	se, err := entryOf(r)
	if err != nil || se.WorkloadSelector != nil {
		return r, err
	}
	now, err := entryOf(present)
	if err != nil {
		return nil, err
	}
	names := make(map[uint32]string, len(now.Ports)) // in present
	for _, p := range now.Ports {
		names[p.Number] = p.Name
	}
	if ports := portsOf(se.Ports, now.Ports); made && len(now.Endpoints) > 0 && len(ports) > 0 {
		se.Ports = ports
	}
	se.Endpoints = nil
	for _, e := range now.Endpoints {
		if serves(e, se.Ports, names) {
			se.Endpoints = append(se.Endpoints, e)
		}
	}
	if len(se.Endpoints) == 0 {
		return Without(r)
	}
	se.Resolution = now.Resolution
	return withEntry(r, se, true)
}

// portsOf returns the ports of present, as own has them. It leaves out those whose name another port of own has.
func portsOf(own, present []*networking.ServicePort) (out []*networking.ServicePort) {
	for _, p := range present {
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

// serves reports whether an endpoint serves all of some ports, and has it name them as they are named. names has the
// names that it uses, by number.
func serves(e *networking.WorkloadEntry, ports []*networking.ServicePort, names map[uint32]string) bool {
	named := make(map[string]uint32, len(ports))
	for _, p := range ports {
		name, is := names[p.Number]
		number, has := e.Ports[name]
		if !is || !has && len(e.Ports) > 0 {
			return false
		}
		named[p.Name] = number
	}
	if len(e.Ports) > 0 { // else it serves the numbers of the ports
		e.Ports = named
	}
	return true
}

// SameConfig reports whether two contents of a ServiceEntry differ in their endpoints only.
func SameConfig(a, b *mirror.Resource) bool {
	if !bytes.Equal(configOf(a.BodyValue()), configOf(b.BodyValue())) {
		return false
	}
	x, y := a.Metadata(), b.Metadata()
	for _, all := range []map[string]string{x.Annotations, y.Annotations} {
		delete(all, mirror.ProvenanceAnnotation)
		delete(all, EndpointsAnnotation)
	}
	return maps.Equal(x.Labels, y.Labels) && maps.Equal(x.Annotations, y.Annotations) && x.CreateTime.Equal(y.CreateTime)
}

// configOf returns the fields of an encoded ServiceEntry but for the endpoints and the resolution, which goes with
// them.
func configOf(body []byte) (out []byte) {
	const resolution, endpoints protowire.Number = 5, 6
	c := wire.Fields(body)
	for c.Next() {
		if c.Number != resolution && c.Number != endpoints {
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
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[EndpointsAnnotation] = noEndpoints
	}
	return mirror.New(s)
}
