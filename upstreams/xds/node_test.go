package xds

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// sharedServer is the config of upstreams of one server.
const sharedServer = `node: {id: relay-1, namespace: istio-system}
provenance: {relay: hub}
downstream: {listeners: [{address: "127.0.0.1:1", plaintext: true}]}
upstreams:
`

func parsed(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("relay.yaml", []byte(text), &Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Node.IP = "10.0.0.7"
	return cfg
}

// run runs the upstreams of a config until the end of the test.
func run(t *testing.T, cfg *config.Config) *upstreams.Manager {
	t.Helper()
	m, err := upstreams.NewManager(cfg, []upstreams.Kind{Kind()}, mirror.NewAggregate(), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return m
}

// Relays leave out what is for other revisions than a client claims.
func TestAnUpstreamIsToldTheRevisionThatIsMirrored_C11(t *testing.T) {
	cfg := parsed(t, sharedServer+"- {name: a, import: {revision: blue}, xds: {addresses: [\"127.0.0.1:1\"], plaintext: true}}\n")
	if n := nodeConfig(cfg.Upstreams[0], upstreams.Env{Node: cfg.Node}, ""); n.Revision != "blue" {
		t.Errorf("%+v", n)
	}
}

// nodeIDs returns the node ID of each stream of a server, by the number of the stream.
func nodeIDs(s *fakexds.Server) map[int]string {
	ids := map[int]string{}
	for _, r := range s.Requests() {
		if r.Node != nil {
			ids[r.Stream] = r.Node.Id
		}
	}
	return ids
}

// wantNodes waits until a server has had streams of nodes with these names and no others.
func wantNodes(t *testing.T, s *fakexds.Server, names ...string) {
	t.Helper()
	var want []string
	for _, name := range names {
		want = append(want, fmt.Sprintf("waypoint~10.0.0.7~%s.istio-system~istio-system.svc.cluster.local", name))
	}
	slices.Sort(want)
	s.Await(fmt.Sprintf("streams of the nodes %v", names), func(fakexds.Request) bool { return len(nodeIDs(s)) >= len(want) })
	if got := slices.Sorted(maps.Values(nodeIDs(s))); !slices.Equal(got, want) {
		t.Errorf("nodes %q, want %q", got, want)
	}
}

// serverOfServices starts a server with a service of a cluster.
func serverOfServices(t *testing.T) *fakexds.Server {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(entryURL, fakexds.MCP("shop/synthetic-web", &networking.ServiceEntry{
		Hosts: []string{"web.example"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	}))
	return s
}

// TestTheStreamForEndpointsHasANodeOfItsOwn: a server may keep streams by node ID.
func TestTheStreamForEndpointsHasANodeOfItsOwn(t *testing.T) {
	s := serverOfServices(t)
	run(t, parsed(t, sharedServer+fmt.Sprintf("- {name: east, xds: {addresses: [%q], protocol: sotw, plaintext: true}, services: {mode: discover}}\n", s.Addr)))
	wantNodes(t, s, "relay-1", "relay-1_endpoints")
}

// TestASecondUpstreamOfAServerHasNodesOfItsOwn, for each of its streams.
func TestASecondUpstreamOfAServerHasNodesOfItsOwn(t *testing.T) {
	s := serverOfServices(t)
	cfg := parsed(t, sharedServer+fmt.Sprintf(`
- {name: east, xds: {addresses: ["127.0.0.1:1", %[1]q], protocol: sotw, plaintext: true}}
- {name: west, xds: {addresses: [%[1]q], protocol: sotw, plaintext: true}, services: {mode: discover}}
- {name: south, xds: {addresses: ["127.0.0.1:2"], protocol: sotw, plaintext: true}}
`, s.Addr))
	run(t, cfg)
	wantNodes(t, s, "relay-1", "relay-1_upstream-west", "relay-1_upstream-west_endpoints")
	for i, second := range []bool{false, true, false} {
		if got := cfg.Upstreams[i].Source.(*Config).Second; got != second {
			t.Errorf("%s is the second upstream of a server: %v", cfg.Upstreams[i].Name, got)
		}
	}
}

// TestAProbeHasANodeOfItsOwn: doctor may look at a server whose relay runs.
func TestAProbeHasANodeOfItsOwn(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	cfg := parsed(t, sharedServer+fmt.Sprintf("- {name: east, xds: {addresses: [%[1]q], protocol: sotw, plaintext: true}}\n- {name: west, xds: {addresses: [%[1]q], protocol: sotw, plaintext: true}}\n", s.Addr))
	ctx := await.Context(t)
	for _, u := range cfg.Upstreams {
		for _, check := range probe(u, upstreams.Env{Node: cfg.Node}) {
			check.Run(ctx)
		}
	}
	wantNodes(t, s, "relay-1_probe", "relay-1_upstream-west_probe")
}

// TestAReloadMakesAnUpstreamTheSecondOfItsServer: its stream begins anew, with another node.
func TestAReloadMakesAnUpstreamTheSecondOfItsServer(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	const one = "- {name: %s, xds: {addresses: [%q], protocol: sotw, plaintext: true}}\n"
	before := parsed(t, sharedServer+fmt.Sprintf(one, "west", s.Addr))
	next := parsed(t, sharedServer+fmt.Sprintf(one, "east", s.Addr)+fmt.Sprintf(one, "west", s.Addr))
	m := run(t, before)
	wantNodes(t, s, "relay-1")
	if err := m.Apply(next); err != nil {
		t.Fatal(err)
	}
	wantNodes(t, s, "relay-1", "relay-1", "relay-1_upstream-west")
	if got, want := config.Changes(before, next), []string{"upstreams: east added", "upstreams[west].xds"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}
