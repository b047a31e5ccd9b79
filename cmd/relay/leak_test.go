package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// TestMetricsHaveNoTextOfATenantOrClient: whoever reaches the admin address can read them. What they name are kinds
// that are well known, and upstreams, which the config names.
func TestMetricsHaveNoTextOfATenantOrClient(t *testing.T) {
	const canary = "canary"
	marked := func(m *mcp.Resource) {
		m.Metadata.Version = canary
		m.Metadata.Labels = map[string]string{canary: canary, "istio.io/rev": canary}
		m.Metadata.Annotations = map[string]string{"meshrelay.io/from": canary + "(" + canary + ")@1 via " + canary, canary: canary}
	}
	widget := "acme-" + canary + ".example/v1/Widget-" + canary
	var sources []string
	for _, name := range []string{"east", "west"} {
		server := fakexds.Start(t, &fakexds.Server{})
		server.Set("networking.istio.io/v1/ServiceEntry",
			fakexds.MCP("team-"+canary+"/n-"+canary, &networking.ServiceEntry{Hosts: []string{canary + ".example", name}}, marked),
			fakexds.MCP("team-"+canary+"/o-"+canary, &networking.ServiceEntry{Hosts: []string{canary + ".example"}}, marked),
			fakexds.MCP("team-"+canary+"/"+strings.Repeat(canary, 200), &networking.ServiceEntry{Hosts: []string{canary}}, marked)) // refused
		server.Set(widget, fakexds.MCP("team-"+canary+"/w", &structpb.Struct{}, marked))
		sources = append(sources, "- {name: "+name+", xds: {addresses: ['"+server.Addr+"'], plaintext: true}, import: {kinds: [se, 'acme-"+canary+".example/Widget-"+canary+"']}}")
	}
	ports := freePorts(t, 2)
	r := running{xds: "127.0.0.1:" + fmt.Sprint(ports[0]), admin: "127.0.0.1:" + fmt.Sprint(ports[1])}
	r.run(t, "hub", "upstreams:\n"+strings.Join(sources, "\n")+"\n")
	stream := openDelta(t, r.xds)
	text := structpb.NewStringValue(canary)
	node := &corev3.Node{Id: "node-" + canary, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"CLUSTER_ID": text, "ISTIO_REVISION": text, "NAMESPACE": text}}}
	for _, url := range []string{"networking.istio.io/v1/ServiceEntry", widget, "unknown-" + canary} {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: url}); err != nil {
			t.Fatal(err)
		}
		node = nil
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce, ErrorDetail: &status.Status{Message: canary}}); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, "the metrics count it all", func() bool {
		body := scrape(t, r.admin)
		if at := strings.Index(body, canary); at >= 0 {
			t.Fatalf("the metrics have %.200q", body[max(0, at-100):])
		}
		return strings.Contains(body, `relay_upstream_resources{kind="networking.istio.io/ServiceEntry",upstream="east"} 2`) && strings.Contains(body, `relay_downstream_nacks_total{kind="other"} 2`)
	})
}

func scrape(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
