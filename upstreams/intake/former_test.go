package intake

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

// newHeld returns a machine whose guard holds the deletion of all that came on its stream: eight
// ServiceEntries, and one more.
func newHeld(t *testing.T, u config.Upstream, more fakexds.Resource) (m *machine, key mirror.Key) {
	t.Helper()
	u.Guard = config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(10 * time.Minute)}
	m = machineOf(t, u)
	m.open(entryURL)
	out := m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), more)...)}})
	m.step(told(oneEndpoint, slices.Collect(maps.Keys(out.Clusters))...))
	m.step(Received{Updates: []records.Update{m.update(true)}})
	namespace, name, _ := mirror.ParseFullName(more.Name)
	key = mirror.Key{Kind: federation.ServiceEntry, Namespace: namespace, Name: name}
	if !m.gate.Holding() || m.leaves() != 9 || m.store.Get(key) == nil {
		t.Fatalf("%d are held, and 9 should be", m.leaves())
	}
	return m, key
}

// machineOf returns a machine for the control plane of a config.
func machineOf(t *testing.T, u config.Upstream) *machine {
	t.Helper()
	u.Name = "east"
	rules, err := records.NewRules(u, config.Provenance{}, true)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, store: mirror.NewStore(), now: time.Unix(1_000_000, 0), u: u}
	m.Intake = New(u, m.store, rules, true)
	return m
}

// discovered is a Kubernetes service as an istiod has it, whose endpoints are asked for.
func discovered() (config.Upstream, fakexds.Resource) {
	return config.Upstream{Services: config.Services{Mode: config.ServicesDiscover}}, fakexds.MCP("shop/synthetic-web", &networking.ServiceEntry{
		Hosts: []string{"web.example"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
	})
}

// told is the event that a source has told of clusters.
func told(of func(cluster string) records.Assignment, clusters ...string) Endpoints {
	e := Endpoints{}
	for _, c := range clusters {
		e[c] = of(c)
	}
	return e
}

// oneEndpoint is the Assignment of each cluster that has one endpoint, and noEndpoint that of those that have none.
func oneEndpoint(string) records.Assignment {
	return records.Assignment{Endpoints: services.Pack([]services.Endpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Port: 8080}}), Known: true}
}

func noEndpoint(string) records.Assignment { return records.Assignment{Known: true} }

// TestAHeldServiceFollowsItsEndpoints: also when the upstream has it again, which ends the hold.
func TestAHeldServiceFollowsItsEndpoints(t *testing.T) {
	u, service := discovered()
	m, key := newHeld(t, u, service)
	before := m.store.Get(key)
	cluster := "outbound|80||web.example"
	out := m.step(told(noEndpoint, cluster))
	if r := m.store.Get(key); out.Clusters != nil || !services.Told(r) {
		t.Errorf("it is served with endpoints that have gone: %v", r)
	}
	m.step(told(oneEndpoint, cluster))
	if !before.Equal(m.store.Get(key)) {
		t.Error("it is another with its endpoints")
	}
	m.step(Closed{})
	m.now = m.now.Add(2 * time.Minute)
	m.open(entryURL)
	out = m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), service)...)}})
	if m.gate.Holding() || out.Clusters != nil || out.Deleted > 0 || !before.Equal(m.store.Get(key)) {
		t.Errorf("the hold has not ended, or other endpoints are asked for: %v, %d deleted", out.Clusters, out.Deleted)
	}
	// When it has gone, nobody asks for its endpoints.
	out = m.step(Received{Updates: []records.Update{m.update(true, entries(8, "a")...)}})
	if m.store.Get(key) != nil || out.Clusters == nil || len(out.Clusters) > 0 {
		t.Errorf("clusters are followed: %v", out.Clusters)
	}
}

// TestServicesWithoutEndpointsAreCounted: while they have none, through a restart of the machine, and until they go.
func TestServicesWithoutEndpointsAreCounted(t *testing.T) {
	u, service := discovered()
	u.Guard = config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(10 * time.Minute)}
	m := machineOf(t, u)
	m.open(entryURL)
	counts := func(want int) {
		t.Helper()
		served := 0
		m.eachServed(func(r *mirror.Resource) { served += empty(r) })
		if got := m.Status(m.now).Empty; got != want || served != want {
			t.Errorf("%d services without endpoints are counted, and %d are served: want %d", got, served, want)
		}
	}
	clusters := slices.Collect(maps.Keys(m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), service)...)}}).Clusters))
	m.step(told(oneEndpoint, clusters...))
	counts(0)
	m.step(told(noEndpoint, clusters...))
	counts(1)
	m.Intake = m.Renewed(m.now)
	counts(1)
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), service)...)}})
	m.step(told(noEndpoint, clusters...))
	counts(1)
	m.step(told(oneEndpoint, clusters...))
	counts(0)
	m.step(told(noEndpoint, clusters...))
	m.step(Received{Updates: []records.Update{m.update(true, entries(8, "a")...)}})
	counts(0)
}

// TestWhatTheRulesLeaveOutSinceIsNotServedAgain: neither is it when something wrong follows.
func TestWhatTheRulesLeaveOutSinceIsNotServedAgain(t *testing.T) {
	x := func(change ...func(*mcp.Resource)) fakexds.Resource {
		return fakexds.MCP("shop/x", &networking.ServiceEntry{Hosts: []string{"x"}}, change...)
	}
	m, key := newHeld(t, config.Upstream{Services: config.Services{Mode: config.ServicesOmit}, Import: config.Import{Selector: "!hidden"}}, x())
	hidden := x(func(r *mcp.Resource) { r.Metadata.Labels = map[string]string{"hidden": "yes"} })
	wrong := x(func(r *mcp.Resource) { r.Body.Value = []byte{0xff} })
	for _, r := range []fakexds.Resource{hidden, wrong} {
		m.step(Received{Updates: []records.Update{m.update(false, r)}})
		if m.gate.State(key) != gate.Held {
			t.Error("its deletion does not wait any more")
		}
	}
	if out := m.records.LeftOut(); len(out) != 1 || out[0].Name != "x" {
		t.Errorf("left out: %+v", out)
	}
}

// What was told of a cluster while nobody asked for it is old by the time that somebody does: the source tells it again.
func TestEndpointsThatNobodyAsksForAreNotKept(t *testing.T) {
	u, service := discovered()
	u.Guard = config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(10 * time.Minute)}
	m := machineOf(t, u)
	m.open(entryURL)
	cluster := "outbound|80||web.example"
	serves := func(what string, want bool) {
		t.Helper()
		if got := m.store.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "synthetic-web"}) != nil; got != want {
			t.Errorf("%s: served is %t", what, got)
		}
	}
	m.step(told(oneEndpoint, cluster))
	for range 2 {
		out := m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), service)...)}})
		if _, asks := out.Clusters[cluster]; !asks {
			t.Errorf("it asks for %v", out.Clusters)
		}
		serves("before the answer", false)
		m.step(told(oneEndpoint, cluster))
		serves("after the answer", true)
		m.step(Received{Updates: []records.Update{m.update(true, entries(8, "a")...)}})
		serves("when it is gone", false)
	}
}
