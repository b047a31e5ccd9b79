package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// one describes a resource. Its upstream and cluster are east.
type one struct {
	namespace, name     string
	upstream, cluster   string
	age                 int // in hours
	labels, annotations map[string]string
	body                proto.Message
}

func kindOf(body proto.Message) mirror.Kind {
	switch body.(type) {
	case *networking.ServiceEntry:
		return federation.ServiceEntry
	case *networking.WorkloadEntry:
		return federation.WorkloadEntry
	case *networking.DestinationRule:
		return federation.DestinationRule
	case *networking.VirtualService:
		return federation.VirtualService
	}
	return mirror.MeshConfig
}

func (o one) resource(t testing.TB) *mirror.Resource {
	t.Helper()
	packed, err := anypb.New(o.body)
	if err != nil {
		t.Fatal(err)
	}
	spec := mirror.Spec{
		Key: mirror.Key{Kind: kindOf(o.body), Namespace: o.namespace, Name: o.name}, Source: "east", Cluster: "east", Labels: o.labels,
		Annotations: o.annotations, CreateTime: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC).Add(-time.Duration(o.age) * time.Hour), Body: packed,
	}
	if o.upstream != "" {
		spec.Source, spec.Cluster = o.upstream, o.upstream
	}
	if o.cluster != "" {
		spec.Cluster = o.cluster
	}
	if spec.Kind == mirror.MeshConfig {
		spec.Key = mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}
		spec.CreateTime = time.Time{}
	}
	r, err := mirror.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// input returns an Input of resources.
func input(t testing.TB, all ...one) (in Input) {
	t.Helper()
	for _, o := range all {
		r := o.resource(t)
		switch o.body.(type) {
		case *networking.ServiceEntry:
			in.Entries = append(in.Entries, r)
		case *networking.WorkloadEntry:
			in.Workloads = append(in.Workloads, r)
		case *networking.DestinationRule:
			in.Rules = append(in.Rules, r)
		case *networking.VirtualService:
			in.Routes = append(in.Routes, r)
		case *meshconfig.MeshConfig:
			in.Mesh = r
		}
	}
	return in
}

func find(t testing.TB, in Input, q Query) Service {
	t.Helper()
	a, err := Find(in, q)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Services) != 1 {
		t.Fatalf("services %v, similar %q", a.Services, a.Similar)
	}
	return a.Services[0]
}

const host = "db.shop.svc.cluster.local"

func tcp(number uint32, name string) *networking.ServicePort {
	return &networking.ServicePort{Number: number, Name: name, Protocol: "TCP"}
}

// se returns a STATIC ServiceEntry of the host with one endpoint for each address.
func se(change func(*networking.ServiceEntry), addresses ...string) *networking.ServiceEntry {
	out := &networking.ServiceEntry{Hosts: []string{host}, Resolution: networking.ServiceEntry_STATIC, Location: networking.ServiceEntry_MESH_INTERNAL, Ports: []*networking.ServicePort{tcp(80, "http")}}
	for _, a := range addresses {
		out.Endpoints = append(out.Endpoints, &networking.WorkloadEntry{Address: a})
	}
	if change != nil {
		change(out)
	}
	return out
}

func selecting(pairs ...string) func(*networking.ServiceEntry) {
	return func(out *networking.ServiceEntry) {
		out.WorkloadSelector = &networking.WorkloadSelector{Labels: labelsOf(pairs...)}
	}
}

func labelsOf(pairs ...string) map[string]string {
	out := map[string]string{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		out[k] = v
	}
	return out
}

func exported(to ...string) func(*networking.ServiceEntry) {
	return func(out *networking.ServiceEntry) { out.ExportTo = to }
}

// endpointsOf returns the endpoints of a service as "address port/…", sorted.
func endpointsOf(s Service) (out []string) {
	for _, e := range s.Endpoints {
		text := e.Address
		for _, p := range e.Ports {
			text += fmt.Sprintf(" %d:%d", p.Service, p.Port)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// outcomes returns resources as "namespace/name outcome", sorted.
func outcomes(all []Applied) (out []string) {
	for _, a := range all {
		out = append(out, fmt.Sprintf("%s/%s %s", a.Namespace, a.Name, a.Outcome))
	}
	slices.Sort(out)
	return out
}

func findings(s Service) (out []string) {
	for _, f := range s.Findings {
		out = append(out, string(f.Kind)+": "+f.Detail)
	}
	return out
}

func equal(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %q\nwant %q", what, got, want)
	}
}
