package downstream

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/testing/await"
)

// greeting returns the headers of a new stream, on which nothing has been answered.
func (r *relay) greeting(request *discoveryv3.DiscoveryRequest) metadata.MD {
	r.t.Helper()
	stream, err := r.dial().StreamAggregatedResources(await.Context(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	if request != nil {
		if err := stream.Send(request); err != nil {
			r.t.Fatal(err)
		}
	}
	md, err := stream.Header()
	if err != nil {
		r.t.Fatal(err)
	}
	return md
}

func TestOtherRelaysAreToldTheNameAndThatClientsAreHeld(t *testing.T) {
	for _, name := range []string{"hub", ""} {
		r := startRelay(t, false, func(c *Config, _ *Deps) { c.RelayName = name })
		var names []string
		if name != "" {
			names = []string{name}
		}
		check := func(when string, holds ...string) {
			t.Helper()
			md := r.greeting(nil)
			if !slices.Equal(md.Get(NameHeader), names) || !slices.Equal(md.Get(HoldsHeader), holds) || !slices.Equal(md.Get(ProtocolHeader), []string{"delta"}) {
				t.Errorf("%s: %v", when, md)
			}
		}
		check("held", "true")
		r.store.SetSynced()
		r.eventually(t, "clients are served", r.server.HasReleased)
		check("served")
	}
}

func TestTheClustersOfHeldClientsAreKnown(t *testing.T) {
	r := startRelay(t, false)
	node := func(id string, fields map[string]any) *corev3.Node {
		md, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.Node{Id: id, Metadata: md}
	}
	for _, n := range []*corev3.Node{
		node("a", map[string]any{"CLUSTER_ID": "east"}), node("b", map[string]any{"CLUSTER_ID": "east"}), node("c", nil),
		// A relay tells with CLUSTER_ID which cluster it takes this server for.
		node("d", map[string]any{"CLUSTER_ID": "hub", "RELAY_CLUSTER_ID": "west"}),
	} {
		r.greeting(&discoveryv3.DiscoveryRequest{TypeUrl: seV1, Node: n})
	}
	r.eventually(t, "all are known", func() bool {
		got := r.server.HeldClusters()
		slices.Sort(got)
		return slices.Equal(got, []string{"east", "west"})
	})
	r.store.SetSynced()
	r.eventually(t, "nobody is held", func() bool { return r.server.HasReleased() && r.server.HeldClusters() == nil })
}
