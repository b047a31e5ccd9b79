package main

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/testing/fakexds"
)

// TestARelayBehindARelayServesNoPartOfAnAnswer_S4_S18: an answer of 12 MB comes in parts on both hops. Clients that wait
// from the start, with gRPC's default limit, get all of it with the first answer. Resources that were deleted while
// the relay between was down are gone.
func TestARelayBehindARelayServesNoPartOfAnAnswer_S4_S18(t *testing.T) {
	const typeURL, n = "gateway.networking.k8s.io/v1alpha2/UDPRoute", 120 // the kind that is sent last
	source := fakexds.Start(t, &fakexds.Server{})
	set := func(from int) {
		var all []fakexds.Resource
		for i := from; i < from+n; i++ {
			body := &structpb.Struct{Fields: map[string]*structpb.Value{"filler": structpb.NewStringValue(strings.Repeat("x", 100_000))}}
			all = append(all, fakexds.MCP(fmt.Sprintf("shop/r-%03d", i), body))
		}
		source.Set(typeURL, all...)
	}
	set(0)
	source.Withhold(typeURL, true)
	ports := freePorts(t, 4)
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	serve := func(i int, upstream string) func() {
		return serveConfig(t, fmt.Sprintf("node: {id: relay-%d}\nadmin: {address: %q}\ndownstream: {listeners: [{address: %q, plaintext: true}]}\nupstreams: [{name: up, guard: {percent: 100}, xds: {addresses: [%q], plaintext: true}}]\n", i, address(2+i), address(i), upstream))
	}
	stop := serve(0, source.Addr)
	serve(1, address(0))

	stream := openDelta(t, address(1))
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "client"}, TypeUrl: typeURL}); err != nil {
		t.Fatal(err)
	}
	source.Await("the relay asks", func(r fakexds.Request) bool { return r.TypeURL == typeURL })
	source.Withhold(typeURL, false)
	source.Push(typeURL)
	holds := map[string]bool{}
	answer := func() (parts int) {
		t.Helper()
		for parts = 1; ; parts++ {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if size := proto.Size(resp); size > 4<<20 {
				t.Errorf("a part has %d bytes", size)
			}
			for _, r := range resp.Resources {
				holds[r.Name] = true
			}
			for _, name := range resp.RemovedResources {
				delete(holds, name)
			}
			if resp.SystemVersionInfo == "" {
				return parts
			}
		}
	}
	if parts := answer(); len(holds) != n || parts < 6 {
		t.Fatalf("the first answer brings %d of %d in %d parts", len(holds), n, parts)
	}
	stop()
	set(10)
	serve(0, source.Addr)
	for len(holds) != n || holds["shop/r-000"] || !holds[fmt.Sprintf("shop/r-%03d", n+9)] {
		answer() // until the stream times out
	}
}
