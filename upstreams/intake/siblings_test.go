package intake

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

// rollout is a service of two ports, and its endpoints: old ones serve port 80, new ones both.
type rollout struct {
	*machine
	clusters []string
	old, new int
}

func newRollout(t *testing.T, rules config.Rewrite) *rollout {
	t.Helper()
	u, _ := discovered()
	u.Rewrite, u.Guard = rules, config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(0)}
	m := &rollout{machine: machineOf(t, u)}
	m.open(entryURL)
	m.clusters = slices.Collect(maps.Keys(m.step(Received{Updates: []records.Update{m.update(true, m.service())}}).Clusters))
	return m
}

func (m *rollout) service() fakexds.Resource {
	return fakexds.MCP("shop/synthetic-web", &networking.ServiceEntry{
		Hosts: []string{"web.shop.svc.cluster.local"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}, {Number: 9901, Name: "admin", Protocol: "HTTP"}},
	})
}

// pods sets the numbers of endpoints.
func (m *rollout) pods(old, fresh int) {
	m.old, m.new = old, fresh
	m.step(told(m.from, m.clusters...))
}

func (m *rollout) from(cluster string) records.Assignment {
	var all []services.Endpoint
	for i := range m.old + m.new {
		if strings.Contains(cluster, "|80|") || i >= m.old {
			all = append(all, services.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 8080})
		}
	}
	return records.Assignment{Endpoints: services.Pack(all), Known: true}
}

// shown returns what is served: "NAME PORT… xENDPOINTS" for each, where ~ stands for a hash.
func (m *rollout) shown() string {
	var out []string
	for _, r := range m.store.List(federation.ServiceEntry, "") {
		se := &networking.ServiceEntry{}
		if err := r.Body().UnmarshalTo(se); err != nil {
			m.t.Fatal(err)
		}
		prefix, name, made := strings.Cut(r.Key().Name, "synthetic-")
		if !made {
			continue
		}
		name = prefix + name
		ports := ""
		for _, p := range se.Ports {
			ports += fmt.Sprintf(" %d", p.Number)
		}
		if r.HasAnnotation(mirror.SiblingAnnotation) {
			name = name[:len(name)-8] + "~"
		}
		out = append(out, fmt.Sprintf("%s%s x%d", name, ports, len(se.Endpoints)))
	}
	return strings.Join(out, ", ")
}

func (m *rollout) has(what, want string) {
	m.t.Helper()
	if got := m.shown(); got != want {
		m.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestEachPortOfAServiceHasAllItsEndpoints(t *testing.T) {
	m := newRollout(t, config.Rewrite{})
	for _, step := range []struct {
		old, fresh int
		want       string
	}{
		{10, 0, "web 80 x10"}, {10, 1, "web 80 x10, web-~ 80 9901 x1"}, {4, 6, "web 80 9901 x6, web-~ 80 x4"}, {0, 10, "web 80 9901 x10"}, {1, 0, "web 80 x1"}, {0, 0, "web 80 9901 x0"},
	} {
		m.pods(step.old, step.fresh)
		m.has(fmt.Sprint(step.old, step.fresh), step.want)
	}
	if m.gate.Holding() || m.leaves() > 0 {
		t.Errorf("%d deletions wait", m.leaves())
	}
	named := newRollout(t, config.Rewrite{NamePrefix: "e-"})
	named.pods(2, 1)
	named.has("of another name", "e-web 80 x2, e-web-~ 80 9901 x1")
}

func TestSiblingsOfAServiceOutliveASourceAndARelay(t *testing.T) {
	m := newRollout(t, config.Rewrite{})
	m.pods(3, 2)
	const both = "web 80 x3, web-~ 80 9901 x2"
	changes, meta := m.TakeChanges(m.now)
	m.Intake = m.Renewed(m.now)
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true, m.service())}})
	m.has("before endpoints are known", both)
	m.pods(3, 1)
	m.has("afterwards", "web 80 x3, web-~ 80 9901 x1")

	again := newRollout(t, config.Rewrite{})
	again.Intake = machineOf(t, again.u).Intake
	again.store = again.served
	saved := state.Saved{Meta: meta}
	for _, c := range changes {
		saved.Records = append(saved.Records, *c.Record)
	}
	slices.Reverse(saved.Records) // the disk has them in any order
	again.step(Restored{Saved: saved})
	again.has("from the disk", both)
	again.open(entryURL)
	again.step(Received{Updates: []records.Update{again.update(true, again.service())}, Live: true})
	again.has("before the answers", both)
	again.pods(5, 0)
	again.has("from the source", "web 80 x5")
}

func TestSiblingsOfAFrozenServiceFollowItsEndpoints(t *testing.T) {
	m := newRollout(t, config.Rewrite{})
	m.pods(3, 0)
	m.step(Freeze{})
	m.pods(3, 1)
	m.has("a new one", "web 80 x3, web-~ 80 9901 x1")
	m.pods(1, 3)
	m.has("the largest is another one", "web 80 9901 x3, web-~ 80 x1")
	m.pods(0, 4)
	m.has("one is gone", "web 80 9901 x4")
	m.step(Unfreeze{Order{Force: true}})
	m.has("no longer frozen", "web 80 9901 x4")
}

func TestSiblingsGoWithTheirService(t *testing.T) {
	m := newRollout(t, config.Rewrite{})
	m.policy(config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(1e12)}, config.Staleness{})
	has := func() {
		m.step(Received{Updates: []records.Update{m.update(true, append(entries(8, "a"), m.service())...)}})
	}
	has()
	m.pods(3, 2)
	m.step(Received{Updates: []records.Update{m.update(true)}})
	if !m.gate.Holding() || m.leaves() != 9 {
		t.Fatalf("%d are held: want the service once, and 8 others", m.leaves())
	}
	m.has("held", "web 80 x3, web-~ 80 9901 x2")
	m.pods(1, 2)
	m.has("while it is held", "web 80 9901 x2, web-~ 80 x1")
	has()
	m.pods(1, 0)
	m.has("back", "web 80 x1")
	m.pods(3, 2)
	m.step(Received{Updates: []records.Update{m.update(true)}})
	m.step(Release{Order{All: true}})
	m.has("released", "")
	out := m.step(Received{Updates: []records.Update{m.update(true)}})
	if n := cmp.Or(len(out.Clusters), m.gate.Size(), m.leaves()); n != 0 || out.Clusters == nil {
		t.Errorf("%d are left, endpoints are asked for: %v", n, out.Clusters)
	}
}

func TestASiblingIsTracedToItsService(t *testing.T) {
	m := newRollout(t, config.Rewrite{})
	m.pods(3, 2)
	for _, r := range m.store.List(federation.ServiceEntry, "") {
		if all := m.Trace(r.Key()); len(all) != 1 || all[0].Key != r.Key() || all[0].Resource != r || all[0].Original.Name != "synthetic-web" {
			t.Errorf("%s: %+v", r.Key(), all)
		}
	}
}
