package main

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation/services"
	"meshrelay/internal/testing/fakexds"
)

// TestTheRelayBehindARelayServesAServiceWithoutEndpoints: the first relay discovers them, the second one has
// services.mode: omit. It stays so when either restarts, and when a service that lost its endpoints has some again.
func TestTheRelayBehindARelayServesAServiceWithoutEndpoints(t *testing.T) {
	const cluster, clusters = "outbound|80||web.example", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(entryType, fakexds.MCP("shop/synthetic-web", &networking.ServiceEntry{
		Hosts: []string{"web.example"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	}))
	tell := func(addresses ...string) {
		l := &endpointv3.LocalityLbEndpoints{}
		for _, a := range addresses {
			l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: a, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080},
				}}},
			}}})
		}
		source.Set(clusters, fakexds.Bare(cluster, &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{l}}))
		source.PushNames(clusters, cluster)
	}
	ports, dirs := freePorts(t, 4), []string{t.TempDir(), t.TempDir()}
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	serve := func(i int, upstream, mode string) func() {
		return serveConfig(t, fmt.Sprintf(`
node: {id: relay-%d}
admin: {address: %q}
state: {dir: %q}
downstream: {listeners: [{address: %q, plaintext: true}]}
upstreams: [{name: up, services: {mode: %s}, xds: {addresses: [%q], plaintext: true}}]
`, i, address(2+i), dirs[i], address(i), mode, upstream))
	}
	// await waits until the client of a relay has the service with these addresses, and never without the service.
	await := func(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, want string) {
		t.Helper()
		for {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(resp.RemovedResources) > 0 {
				t.Fatalf("%v is removed", resp.RemovedResources)
			}
			for _, r := range resp.Resources {
				m, se := &mcp.Resource{}, &networking.ServiceEntry{}
				if err := r.Resource.UnmarshalTo(m); err != nil {
					t.Fatal(err)
				}
				if err := m.Body.UnmarshalTo(se); err != nil {
					t.Fatal(err)
				}
				var has []string
				for _, e := range se.Endpoints {
					has = append(has, fmt.Sprintf("%s:%d", e.Address, e.Ports["http"]))
				}
				if told := m.Metadata.Annotations[services.EndpointsAnnotation]; (told == "none") != (len(has) == 0) {
					t.Errorf("%v with the annotation %q", has, told)
				}
				if strings.Join(has, " ") == want {
					return
				}
			}
		}
	}
	watch := func() discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
		stream := openDelta(t, address(1))
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "client"}, TypeUrl: entryType}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	tell("10.0.0.1")
	first, second := serve(0, source.Addr, "discover"), serve(1, address(0), "omit")
	client := watch()
	await(client, "10.0.0.1:8080")
	tell()
	await(client, "")

	first() // the second one goes on with what it knows
	serve(0, source.Addr, "discover")
	source.Await("the first relay asks again", func(r fakexds.Request) bool { return r.TypeURL == clusters && r.Stream > 2 })
	tell("10.0.0.2")
	await(client, "10.0.0.2:8080")
	tell()
	await(client, "")

	second()
	serve(1, address(0), "omit")
	await(watch(), "")
}
