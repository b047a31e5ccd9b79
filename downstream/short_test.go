package downstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/downstream/snapshot"
	"meshrelay/mirror"
)

// stamped returns a resource as a relay imports it.
func stamped(r *mirror.Resource) *mirror.Resource {
	return r.Stamped(&mirror.Stamp{Source: "east", Cluster: "east", Relay: "hub"})
}

// formOf returns the form of a served resource.
func formOf(t *testing.T, name string, version string, annotations map[string]string) snapshot.Form {
	t.Helper()
	_, annotated := annotations[mirror.ProvenanceAnnotation]
	if annotated == strings.Contains(version, ".") {
		t.Fatalf("%s has the version %q and the annotations %v", name, version, annotations)
	}
	if annotated {
		return snapshot.Full
	}
	return snapshot.Short
}

// sotwForm returns the form of a response, whose resources all have one.
func sotwForm(t *testing.T, resp *discoveryv3.DiscoveryResponse) (form snapshot.Form) {
	t.Helper()
	if len(resp.Resources) == 0 {
		t.Fatal("the response is empty")
	}
	for i, a := range resp.Resources {
		md := decode(t, a).Metadata
		f := formOf(t, md.Name, md.Version, md.Annotations)
		if i > 0 && f != form {
			t.Fatal("a response has both forms")
		}
		form = f
	}
	return form
}

// TestIstiodsAreSentTheShortForm: by SotW, which is what they speak. Relays, tools and whoever is in
// doubt are sent the other.
func TestIstiodsAreSentTheShortForm(t *testing.T) {
	relayNode, tool, odd := node("RELAY_CLUSTER_ID", ""), node(), node()
	tool.Id, odd.Id = "tool", "sidecar~10.0.0.1"
	for name, tc := range map[string]struct {
		node *corev3.Node
		want snapshot.Form
	}{
		"an istiod":                {node(), snapshot.Short},
		"an istiod with a cluster": {node("CLUSTER_ID", "north"), snapshot.Short},
		"a relay":                  {relayNode, snapshot.Full},
		"a tool":                   {tool, snapshot.Full},
		"an id that is cut off":    {odd, snapshot.Full},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRelay(t, true)
			r.put(stamped(se("shop", "a", "a.example")), stamped(se("shop", "b", "b.example")))
			s := r.sotw()
			s.send(&discoveryv3.DiscoveryRequest{Node: tc.node, TypeUrl: seV1})
			first := s.next()
			r.put(stamped(se("shop", "b", "c.example")))
			second := s.next()
			one := r.sotw()
			one.send(&discoveryv3.DiscoveryRequest{Node: tc.node, TypeUrl: seV1, ResourceNames: []string{"shop/a"}})
			for _, resp := range []*discoveryv3.DiscoveryResponse{first, second, one.next()} {
				if got := sotwForm(t, resp); got != tc.want {
					t.Errorf("%d resources are in the form %d, want %d", len(resp.Resources), got, tc.want)
				}
			}
			if first.VersionInfo == second.VersionInfo {
				t.Error("two contents have one version")
			}
			d := r.delta()
			d.send(&discoveryv3.DeltaDiscoveryRequest{Node: tc.node, TypeUrl: seV1})
			for _, res := range d.next().Resources {
				md := decode(t, res.Resource).Metadata
				if formOf(t, res.Name, md.Version, md.Annotations) != snapshot.Full || md.Version != res.Version {
					t.Errorf("%s is sent to a delta client as %v", res.Name, md)
				}
			}
		})
	}
}

// TestReconnectForAnotherFormIsSentAll_S15: after a restart with another config, say. With the form that
// it has, a client is spared.
func TestReconnectForAnotherFormIsSentAll_S15(t *testing.T) {
	r := startRelay(t, true)
	r.put(stamped(se("shop", "a", "a.example")))
	tool := node()
	tool.Id = "tool"
	ask := func(n *corev3.Node, version string) *sotwStream {
		s := r.sotw()
		s.send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: seV1, VersionInfo: version})
		s.send(&discoveryv3.DiscoveryRequest{TypeUrl: vsV1})
		return s
	}
	for _, tc := range []struct {
		name      string
		has, asks *corev3.Node
		want      snapshot.Form
	}{{"short, then full", node(), tool, snapshot.Full}, {"full, then short", tool, node(), snapshot.Short}} {
		version := ask(tc.has, "").next().VersionInfo
		if got := sotwForm(t, ask(tc.asks, version).next()); got != tc.want {
			t.Errorf("%s: it is sent the form %d", tc.name, got)
		}
		if got := ask(tc.has, version).next(); got.TypeUrl != vsV1 {
			t.Errorf("%s: it is sent what it has, of %s", tc.name, got.TypeUrl)
		}
	}
	// A delta client has one form, whoever it is.
	d := r.delta()
	d.send(subscribeDelta(seV1))
	held := d.next().Resources[0]
	for _, n := range []*corev3.Node{node(), tool} {
		again := r.delta()
		again.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: seV1, InitialResourceVersions: map[string]string{held.Name: held.Version}})
		if got := again.next(); len(got.Resources) != 0 {
			t.Errorf("%s is sent what it has", n.Id)
		}
	}
}

// TestEachFormIsEncodedOnce: and dropped with its last client.
func TestEachFormIsEncodedOnce(t *testing.T) {
	r := startRelay(t, true)
	for _, res := range many(1000, "s-%03d", func(int) string { return strings.Repeat("x", 200) }) {
		r.store.Put(stamped(res))
	}
	r.put(stamped(se("shop", "z", "z.example")))
	pages := r.view().snapshot(typeSE).Pages
	encoded := func(form snapshot.Form) (n int) {
		for _, p := range pages {
			if p.Encoded(form) {
				n++
			}
		}
		return n
	}
	counted := func() int { return int(testutil.ToFloat64(r.server.metrics.pages)) }
	tool := node()
	tool.Id = "tool"
	var streams []*sotwStream
	for i, n := range []*corev3.Node{node(), node("ISTIO_VERSION", "1.23"), tool, tool} {
		s := r.sotw()
		s.send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: seV1})
		s.next()
		streams = append(streams, s)
		if want := len(pages) * (1 + i/2); counted() != want {
			t.Errorf("with %d clients %d pages were encoded, want %d", i+1, counted(), want)
		}
	}
	streams[2].cancel()
	streams[3].cancel()
	r.eventually(t, "the form of the tools is dropped", func() bool { return encoded(snapshot.Full) == 0 })
	if got := encoded(snapshot.Short); got != len(pages) {
		t.Errorf("%d of %d pages stay encoded for istiods", got, len(pages))
	}
	streams[0].cancel()
	streams[1].cancel()
	r.eventually(t, "the form of the istiods is dropped", func() bool { return encoded(snapshot.Short) == 0 })
}

// TestResponsesToIstiodsCostFewBytes: beside what the upstream gave, all that is in a response counted.
func TestResponsesToIstiodsCostFewBytes(t *testing.T) {
	const n = 1000
	r := startRelay(t, true)
	given := 0
	for i := range n {
		name := fmt.Sprintf("service-%06d", i)
		res := build(kindSE, fmt.Sprintf("team-%02d", i%20), name, &networking.ServiceEntry{
			Hosts: []string{name + ".team.example.com"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
			Ports:     []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "HTTPS"}},
			Endpoints: []*networking.WorkloadEntry{{Address: fmt.Sprintf("10.100.%d.%d", i/250, i%250), Locality: "region-1/zone-a", ServiceAccount: "default"}, {Address: "10.200.7.3"}},
		}, "app", name, "team", "checkout")
		// An istiod gives it with the version that Kubernetes has.
		given += len(res.Frame()) - len(res.Version()) + len("48213")
		r.store.Put(stamped(res))
	}
	r.put(vs("shop", "a", "a"))
	sizes := map[string]int{}
	tool := node()
	tool.Id = "tool"
	for name, client := range map[string]*corev3.Node{"istiod": node(), "tool": tool} {
		s := r.sotw()
		s.send(&discoveryv3.DiscoveryRequest{Node: client, TypeUrl: seV1})
		resp := s.next()
		if len(resp.Resources) != n {
			t.Fatalf("%d resources", len(resp.Resources))
		}
		sizes[name] = proto.Size(resp)
	}
	if ratio := float64(sizes["istiod"]) / float64(given); ratio > 1.07 {
		t.Errorf("an istiod is sent %d bytes of %d, %.3f", sizes["istiod"], given, ratio)
	}
	if sizes["tool"] < sizes["istiod"]+30*n {
		t.Errorf("a tool is sent %d bytes, an istiod %d", sizes["tool"], sizes["istiod"])
	}
	// What the status shows is what was sent.
	var bytes []int
	for _, c := range r.server.Clients() {
		for _, st := range c.Types {
			bytes = append(bytes, int(st.Bytes))
		}
	}
	slices.Sort(bytes)
	if want := []int{sizes["istiod"], sizes["tool"]}; !slices.Equal(bytes, want) {
		t.Errorf("the status shows %v bytes, want %v", bytes, want)
	}
}
