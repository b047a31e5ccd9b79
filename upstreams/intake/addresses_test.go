package intake

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

// town is a source with five services, in the model of TestNobodyIsSentToAnAddressThatItsSourceHasTakenAway.
type town struct {
	*machine
	registry  bool
	selects   bool // ServiceEntries of an API server that select workloads; else Kubernetes services of an istiod
	present   [5]bool
	addresses [5][]string
	ports     [5]int
	hidden    [5]bool // an import rule leaves it out
	disk      map[mirror.Key]state.Record
}

func (w *town) name(i int) string {
	if w.selects {
		return fmt.Sprintf("shop/s-%d", i)
	}
	return fmt.Sprintf("shop/synthetic-%d", i)
}

func (w *town) cluster(i, port int) string {
	if w.selects {
		return fmt.Sprintf("workloads|shop|app=s%d|http-%d|%d", i, port-80, port)
	}
	return fmt.Sprintf("outbound|%d||s%d.example", port, i)
}

// answer is all that the source has.
func (w *town) answer() Received {
	var all []fakexds.Resource
	for i := range w.present {
		if !w.present[i] {
			continue
		}
		se := &networking.ServiceEntry{
			Hosts: []string{fmt.Sprintf("s%d.example", i)}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		}
		for p := range w.ports[i] {
			se.Ports = append(se.Ports, &networking.ServicePort{Number: uint32(80 + p), Name: fmt.Sprintf("http-%d", p), Protocol: "HTTP"})
		}
		if w.selects {
			se.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": fmt.Sprintf("s%d", i)}}
		}
		if w.registry {
			for _, a := range w.addresses[i] {
				se.Endpoints = append(se.Endpoints, &networking.WorkloadEntry{Address: a})
			}
		}
		all = append(all, fakexds.MCP(w.name(i), se, func(r *mcp.Resource) {
			if w.hidden[i] {
				r.Metadata.Labels = map[string]string{"hidden": "yes"}
			}
		}))
	}
	return Received{Updates: []records.Update{w.update(true, all...)}}
}

// assignment is what the source tells of a cluster.
func (w *town) assignment(cluster string) records.Assignment {
	var all []services.Endpoint
	for i := range w.present {
		for p := range 2 {
			if w.cluster(i, 80+p) != cluster {
				continue
			}
			for _, a := range w.addresses[i] {
				all = append(all, services.Endpoint{Addr: netip.MustParseAddr(a), Port: 8080})
			}
		}
	}
	return records.Assignment{Endpoints: services.Pack(all), Known: true}
}

// tell has the source tell all that has changed of a service.
func (w *town) tell(i int) {
	if w.registry {
		w.step(w.answer())
		return
	}
	w.step(told(w.assignment, w.cluster(i, 80), w.cluster(i, 81)))
}

// saved is what is served, in the form of the disk.
func (w *town) saved() (all []state.Record) {
	if w.disk == nil {
		w.disk = map[mirror.Key]state.Record{}
	}
	changes, _ := w.TakeChanges(w.now)
	for _, c := range changes {
		if delete(w.disk, c.Key); c.Record != nil {
			w.disk[c.Key] = *c.Record
		}
	}
	return slices.Collect(maps.Values(w.disk))
}

// TestNobodyIsSentToAnAddressThatItsSourceHasTakenAway: whatever an operator and the guard do. A service that the source
// has is served with all of its addresses, unless the ports of a registry have changed and it is frozen.
func TestNobodyIsSentToAnAddressThatItsSourceHasTakenAway(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &town{registry: rapid.Bool().Draw(rt, "registry")}
		w.selects = !w.registry && rapid.Bool().Draw(rt, "selects")
		u := config.Upstream{Guard: config.Guard{Percent: 0, Count: 0, HoldFor: config.OpenEnded(10 * time.Minute), Empty: config.EmptyHold}}
		if w.registry {
			u.Guard.Profile = config.ProfileRegistry
			u.Services.Mode = config.ServicesAsIs
		} else {
			u.Services.Mode = config.ServicesDiscover
		}
		u.Name, u.Import.Selector = "east", "!hidden"
		rules, err := records.NewRules(u, config.Provenance{}, !w.selects)
		if err != nil {
			rt.Fatal(err)
		}
		w.machine = machineOf(t, u)
		w.step(Succeeded{rules})
		for i := range w.present {
			w.present[i], w.ports[i], w.addresses[i] = true, 1, []string{fmt.Sprintf("10.0.%d.1", i)}
		}
		connect := func() {
			w.open(entryURL)
			w.step(w.answer())
			w.step(Endpoints{})
			for i := range w.present {
				w.tell(i)
			}
		}
		connect()
		var revisions [][]state.Record
		// A frozen service that is not made of a Kubernetes service keeps its ports, and has the endpoints that serve all of them.
		portsMayChange, changed := rapid.Bool().Draw(rt, "ports may change"), false
		rt.Repeat(map[string]func(*rapid.T){
			"addresses": func(rt *rapid.T) {
				i := rapid.IntRange(0, 4).Draw(rt, "service")
				w.addresses[i] = nil
				for n := range rapid.IntRange(0, 3).Draw(rt, "addresses") {
					w.addresses[i] = append(w.addresses[i], fmt.Sprintf("10.0.%d.%d", i, n+rapid.IntRange(1, 9).Draw(rt, "address")))
				}
				slices.Sort(w.addresses[i])
				w.addresses[i] = slices.Compact(w.addresses[i])
				w.tell(i)
			},
			"presence": func(rt *rapid.T) {
				i := rapid.IntRange(0, 4).Draw(rt, "service")
				w.present[i] = !w.present[i]
				w.step(w.answer())
				w.tell(i)
			},
			"ports": func(rt *rapid.T) {
				i := rapid.IntRange(0, 4).Draw(rt, "service")
				authored := w.registry || w.selects // a frozen one keeps its ports
				if authored && !portsMayChange {
					return
				}
				w.ports[i], changed = 3-w.ports[i], authored
				w.step(w.answer())
				w.tell(i)
			},
			"remember": func(*rapid.T) { revisions = append(revisions, w.saved()) },
			"rollback": func(rt *rapid.T) {
				if len(revisions) > 0 {
					w.step(Rollback{Order: Order{To: 1}, Records: rapid.SampledFrom(revisions).Draw(rt, "revision")})
				}
			},
			"freeze":   func(*rapid.T) { _, _ = w.Step(w.now, Freeze{}) },
			"unfreeze": func(*rapid.T) { _, _ = w.Step(w.now, Unfreeze{}) },
			"hidden": func(rt *rapid.T) {
				i := rapid.IntRange(0, 4).Draw(rt, "service")
				w.hidden[i] = !w.hidden[i]
				w.step(w.answer())
				w.tell(i)
			},
			"reload": func(rt *rapid.T) {
				u := u
				u.Import.Namespaces.Exclude = []string{rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "namespace")}
				rules, err := records.NewRules(u, config.Provenance{}, !w.selects)
				if err != nil {
					rt.Fatal(err)
				}
				w.step(Succeeded{rules})
				connect()
			},
			"renewed": func(*rapid.T) {
				w.Intake = w.Renewed(w.now)
				connect()
			},
			"release":   func(*rapid.T) { _, _ = w.Step(w.now, Release{Order{All: true}}) },
			"reconnect": func(*rapid.T) { w.step(Closed{}); connect() },
			"time": func(rt *rapid.T) {
				w.now = w.now.Add(rapid.SampledFrom([]time.Duration{time.Second, 2 * time.Minute, 61 * time.Minute}).Draw(rt, "time"))
				w.step(Tick{})
			},
			"": func(rt *rapid.T) {
				counted := 0
				w.eachServed(func(r *mirror.Resource) { counted += empty(r) })
				if got := w.Status(w.now).Empty; got != counted {
					rt.Fatalf("%d services without endpoints are counted, and %d are served", got, counted)
				}
				for i := range w.present {
					namespace, name, _ := mirror.ParseFullName(w.name(i))
					key := mirror.Key{Kind: federation.ServiceEntry, Namespace: namespace, Name: name}
					r := w.store.Get(key)
					if r == nil {
						if w.present[i] && w.frozen == nil && !w.hidden[i] {
							rt.Fatalf("%s is not served", key)
						}
						continue
					}
					se := &networking.ServiceEntry{}
					if err := proto.Unmarshal(r.BodyValue(), se); err != nil {
						rt.Fatal(err)
					}
					var served []string
					for _, e := range se.Endpoints {
						served = append(served, e.Address)
						if !slices.Contains(w.addresses[i], e.Address) || w.registry && (!w.present[i] || w.hidden[i]) {
							rt.Fatalf("%s is served with %s, frozen %v, held %v", key, e.Address, w.frozen != nil, w.gate.Holding())
						}
					}
					if slices.Sort(served); w.present[i] && !w.hidden[i] && !slices.Equal(served, w.addresses[i]) && (w.frozen == nil || !changed) {
						rt.Fatalf("%s is served with %v of %v, frozen %v", key, served, w.addresses[i], w.frozen != nil)
					}
					if r.HasAnnotation("meshrelay.io/endpoints") != (len(served) == 0) {
						rt.Fatalf("%s: %v", key, r.Metadata())
					}
				}
			},
		})
	})
}

// TestAddressesMakeNoLineInTheJournal: a service that loses all of them, or has some again, does.
func TestAddressesMakeNoLineInTheJournal(t *testing.T) {
	w := &town{registry: true, machine: machineOf(t, config.Upstream{Guard: config.Guard{Percent: 100, Profile: config.ProfileRegistry}})}
	w.open(entryURL)
	for _, test := range []struct {
		what      string
		addresses []string
		ports     int
		want      string
	}{
		{"it is new", []string{"10.0.0.1"}, 1, "1 added"},
		{"another address", []string{"10.0.0.2"}, 1, ""},
		{"no address", nil, 1, "1 changed (1 endpoint)"},
		{"an address again", []string{"10.0.0.2"}, 1, "1 changed (1 endpoint)"},
		{"another port", []string{"10.0.0.2"}, 2, "1 changed (1 service)"},
	} {
		w.present[0], w.addresses[0], w.ports[0] = true, test.addresses, test.ports
		got := ""
		for _, e := range w.step(w.answer()).Events {
			if e.Type == events.Changed {
				got += e.Resources.String()
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

// TestAServiceThatIsBackIsServedAsItIsNow: its former record, which had other ports, is told of the same endpoints.
func TestAServiceThatIsBackIsServedAsItIsNow(t *testing.T) {
	u := config.Upstream{Name: "east", Services: config.Services{Mode: config.ServicesDiscover}, Guard: config.Guard{Empty: config.EmptyHold}}
	u.Import.Selector = "!hidden"
	rules, err := records.NewRules(u, config.Provenance{}, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 { // the order in which records are told is that of a map
		w := &town{machine: machineOf(t, u), selects: true}
		w.step(Succeeded{rules})
		for i := range 2 {
			w.present[i], w.ports[i], w.addresses[i] = true, 1, []string{"10.0.0.1"}
		}
		w.open(entryURL)
		for _, change := range []func(){func() {}, func() { w.hidden[0] = true }, func() { w.ports[0], w.hidden[0] = 2, false }} {
			change()
			w.step(w.answer())
			w.tell(0)
			w.tell(1)
		}
		se := &networking.ServiceEntry{}
		r := w.store.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "s-0"})
		if r == nil || proto.Unmarshal(r.BodyValue(), se) != nil || len(se.Ports) != 2 || len(se.Endpoints) != 1 {
			t.Fatalf("it is served with the ports %v and the endpoints %v", se.Ports, se.Endpoints)
		}
	}
}

// TestARevisionThatWasSavedInAFreezeFollowsTheAddresses: the source had changed the service, and a rule had left it out, before its
// first write to disk. A rollback to it must not serve the addresses of then.
func TestARevisionThatWasSavedInAFreezeFollowsTheAddresses(t *testing.T) {
	u := config.Upstream{Name: "east", Services: config.Services{Mode: config.ServicesDiscover}, Guard: config.Guard{Percent: 100}}
	u.Import.Selector = "!hidden"
	rules, err := records.NewRules(u, config.Provenance{}, false)
	if err != nil {
		t.Fatal(err)
	}
	w := &town{machine: machineOf(t, u), selects: true}
	w.step(Succeeded{rules})
	w.present[0], w.ports[0], w.addresses[0] = true, 1, []string{"10.0.0.1"}
	w.open(entryURL)
	w.step(w.answer())
	w.step(Endpoints{})
	w.tell(0)
	w.step(Freeze{})
	for _, change := range []func(){func() { w.ports[0] = 2 }, func() { w.hidden[0] = true }} {
		change()
		w.step(w.answer())
		w.tell(0)
	}
	revision := w.saved()
	w.addresses[0] = nil
	w.tell(0)
	w.step(Rollback{Order: Order{To: 1}, Records: revision})
	se := &networking.ServiceEntry{}
	if r := w.store.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "s-0"}); r == nil || proto.Unmarshal(r.BodyValue(), se) != nil || len(se.Endpoints) > 0 {
		t.Errorf("served with %v", se.Endpoints)
	}
}
