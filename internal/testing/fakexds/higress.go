package fakexds

import (
	"context"
	"net"
	"strings"

	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// HigressTypes are the types that Higress' controller answers. It is silent about others.
var HigressTypes = []string{
	RegistryType, "networking.istio.io/v1alpha3/VirtualService", "networking.istio.io/v1alpha3/DestinationRule",
	"networking.istio.io/v1alpha3/EnvoyFilter", "networking.istio.io/v1alpha3/Gateway", "extensions.istio.io/v1alpha1/WasmPlugin",
}

// NewHigress returns a server that is as silent as Higress' controller, which is built on an istiod's
// server. Tests use Start and Offer(HigressTypes...).
func NewHigress(lis net.Listener) *Server {
	s := &Server{Listener: lis, offered: HigressTypes}
	s.prepare(lis)
	return s
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.grpc.Stop)()
	return s.grpc.Serve(s.Listener)
}

// Higress returns a resource as Higress' controller encodes it: without a version and labels.
func Higress(fullName string, body proto.Message) Resource {
	return MCP(fullName, body, func(m *mcp.Resource) { m.Metadata.Version = "" })
}

// Higress returns a service as Higress' controller does. Services of a registry of the kind nacos and
// of one of the kind nacos2 can have one name.
func (s Service) Higress(instances ...Instance) Resource {
	suffix := s.Group + "." + s.Namespace + "." + strings.TrimRight(s.Kind, "0123456789")
	host := s.Name + "." + strings.ReplaceAll(suffix, "_", "-")
	se := &networking.ServiceEntry{Hosts: []string{host}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC}
	for _, i := range instances {
		if se.Ports == nil {
			se.Ports = []*networking.ServicePort{{Name: "HTTP", Number: i.Port, Protocol: "HTTP"}}
		}
		se.Endpoints = append(se.Endpoints, &networking.WorkloadEntry{Address: i.IP, Labels: i.Metadata, Ports: map[string]uint32{"HTTP": i.Port}})
	}
	return Higress("mcp/"+host, se)
}
