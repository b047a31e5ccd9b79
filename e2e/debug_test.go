package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
)

// ask sends one request as istioctl does, and returns the answer.
func (c *xdsClient) ask(typeURL string, names ...string) *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	s, err := c.stub.StreamAggregatedResources(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := s.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "debug~0.0.0.0~istioctl~cluster.local"}, TypeUrl: typeURL, ResourceNames: names,
	}); err != nil {
		c.t.Fatal(err)
	}
	resp, err := s.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// showsSynced waits until a relay tells in its answer to istioctl that a client has acknowledged the ServiceEntries.
func (r *relay) showsSynced(t *testing.T) {
	t.Helper()
	eventually(t, "the istiod is synced", func() error { // it acknowledges after it has it
		resp := dial(t, r.xds).ask("istio.io/debug/syncz")
		var id struct{ Component, ID string }
		if err := json.Unmarshal([]byte(resp.GetControlPlane().GetIdentifier()), &id); err != nil || id.Component == "" || id.ID != "hub" {
			t.Fatalf("control plane identifier %q: %v", resp.GetControlPlane().GetIdentifier(), err)
		}
		found := false
		for _, a := range resp.Resources {
			cfg := &statusv3.ClientConfig{}
			if err := a.UnmarshalTo(cfg); err != nil {
				t.Fatal(err)
			}
			for _, x := range cfg.GenericXdsConfigs {
				if x.TypeUrl != seV1alpha3 {
					continue
				}
				if found = true; x.ConfigStatus != statusv3.ConfigStatus_SYNCED {
					return fmt.Errorf("%s of %s is %v", x.TypeUrl, cfg.GetNode().GetId(), x.ConfigStatus)
				}
			}
		}
		if !found {
			return fmt.Errorf("no client has asked for it: %v", resp.Resources)
		}
		return nil
	})
}
