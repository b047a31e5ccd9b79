package services

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

const host = "db.shop.svc.cluster.local"

// resource returns a ServiceEntry or WorkloadEntry of an upstream. name is namespace/name.
func resource(t testing.TB, upstream, name string, body proto.Message, labels map[string]string) *mirror.Resource {
	t.Helper()
	packed, err := anypb.New(body)
	if err != nil {
		t.Fatal(err)
	}
	kind := federation.WorkloadEntry
	if _, ok := body.(*networking.ServiceEntry); ok {
		kind = federation.ServiceEntry
	}
	namespace, name, _ := strings.Cut(name, "/")
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: namespace, Name: name}, Source: upstream, Cluster: "c-" + upstream, Labels: labels, Body: packed})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// entry returns a ServiceEntry with the port 80 and one endpoint for each address.
func entry(change func(*networking.ServiceEntry), addresses ...string) *networking.ServiceEntry {
	out := &networking.ServiceEntry{Hosts: []string{host}, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}}
	for _, a := range addresses {
		out.Endpoints = append(out.Endpoints, &networking.WorkloadEntry{Address: a})
	}
	if change != nil {
		change(out)
	}
	return out
}

func selecting(labels map[string]string) func(*networking.ServiceEntry) {
	return func(s *networking.ServiceEntry) {
		s.WorkloadSelector = &networking.WorkloadSelector{Labels: labels}
	}
}

func find(t testing.TB, in Input, q Query) Service {
	t.Helper()
	a, err := Find(in, q)
	if err != nil || len(a.Services) != 1 {
		t.Fatalf("%+v, err %v", a, err)
	}
	return a.Services[0]
}

// endpointsOf returns endpoints as "address ports upstream kind", sorted.
func endpointsOf(s Service) (out []string) {
	for _, e := range s.Endpoints {
		text := e.Address
		for _, p := range e.Ports {
			text += fmt.Sprintf(" %d:%d", p.Service, p.Port)
		}
		out = append(out, text+" "+e.Upstream+" "+e.From.Kind.Kind)
	}
	slices.Sort(out)
	return out
}

func wantAll(t testing.TB, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestAServiceHasThePortsAndEndpointsOfAllItsEntries, and tells from where each comes.
func TestAServiceHasThePortsAndEndpointsOfAllItsEntries(t *testing.T) {
	app := map[string]string{"app": "db"}
	in := Input{
		Entries: []*mirror.Resource{
			resource(t, "west", "team/db", entry(func(s *networking.ServiceEntry) {
				s.Ports = append(s.Ports, &networking.ServicePort{Number: 90, Name: "admin", Protocol: "TCP"})
				selecting(app)(s)
			}), nil),
			resource(t, "east", "shop/db", entry(func(s *networking.ServiceEntry) {
				s.Ports[0].TargetPort = 8080
				s.Endpoints[0].Ports, s.ExportTo = map[string]uint32{"http": 9000}, []string{"."}
			}, "10.0.0.1", "10.0.0.2", "unix:///db"), nil),
		},
		Workloads: []*mirror.Resource{
			resource(t, "west", "team/vm", &networking.WorkloadEntry{Address: "10.1.0.1"}, app),
			resource(t, "west", "team/other", &networking.WorkloadEntry{Address: "10.1.0.2"}, nil),
			resource(t, "west", "shop/vm", &networking.WorkloadEntry{Address: "10.1.0.3"}, app),
		},
	}
	s := find(t, in, Query{Host: "DB.shop.svc.cluster.local"})
	wantAll(t, endpointsOf(s), "10.0.0.1 80:9000 east ServiceEntry", "10.0.0.2 80:8080 east ServiceEntry", "10.1.0.1 80:80 90:90 west WorkloadEntry", "unix:///db 80:0 east ServiceEntry")
	wantAll(t, s.Clusters, "c-east", "c-west")
	if len(s.Ports) != 2 || s.All != 4 || len(s.Entries) != 2 || s.Entries[0].Namespace != "shop" || s.Entries[0].Endpoints != 3 || !slices.Equal(s.Entries[0].ExportTo, []string{"."}) {
		t.Errorf("%+v", s)
	}
	wantAll(t, endpointsOf(find(t, in, Query{Host: host, Port: "admin"})), "10.1.0.1 90:90 west WorkloadEntry")
	if _, err := Find(in, Query{Host: host, Port: "91"}); err == nil || !strings.Contains(err.Error(), `has no port "91"`) {
		t.Error(err)
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(3, func(i, j int) { in.Workloads[i], in.Workloads[j] = in.Workloads[j], in.Workloads[i] }) // a test
	slices.Reverse(in.Entries)
	if got := find(t, in, Query{Host: host}); !reflect.DeepEqual(got, s) {
		t.Errorf("another order has another answer:\n%+v\n%+v", got, s)
	}
}

// TestWhatComesFromASourceOutOfContactIsMarked: entry, endpoints, and the cluster of the service, with its first loss.
func TestWhatComesFromASourceOutOfContactIsMarked(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	in := Input{
		Entries: []*mirror.Resource{
			resource(t, "east", "shop/db", entry(nil, "10.0.0.1"), nil), resource(t, "west", "team/db", entry(nil, "10.1.0.1"), nil), resource(t, "west", "team/db2", entry(nil, "10.1.0.2"), nil),
		},
		ContactLost: func(r *mirror.Resource) time.Time {
			return map[string]time.Time{"team/db": late, "team/db2": early}[r.Namespace()+"/"+r.Key().Name]
		},
	}
	s := find(t, in, Query{Host: host})
	if want := map[string]time.Time{"c-west": early}; !maps.Equal(want, s.ContactLost) {
		t.Errorf("by cluster: %v", s.ContactLost)
	}
	for _, e := range s.Entries {
		if (e.Upstream == "west") == e.ContactLost.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	for _, e := range s.Endpoints {
		if (e.Upstream == "west") == e.ContactLost.IsZero() {
			t.Errorf("%+v", e)
		}
	}
}

// TestAnEndpointOfAUnionTellsItsUpstream.
func TestAnEndpointOfAUnionTellsItsUpstream(t *testing.T) {
	east, west := resource(t, "east", "shop/db", entry(nil, "10.0.0.1", "10.0.0.9"), nil), resource(t, "west", "shop/db", entry(nil, "10.0.0.2", "10.0.0.9"), nil)
	union := resource(t, "east", "shop/db", entry(nil, "10.0.0.1", "10.0.0.9", "10.0.0.2"), nil)
	s := find(t, Input{Entries: []*mirror.Resource{union}, Copies: []*mirror.Resource{west, east}}, Query{Host: host})
	wantAll(t, endpointsOf(s), "10.0.0.1 80:80 east ServiceEntry", "10.0.0.2 80:80 west ServiceEntry", "10.0.0.9 80:80 east ServiceEntry")
}

func TestASelectorWithoutLabels(t *testing.T) {
	vm := resource(t, "east", "shop/vm", &networking.WorkloadEntry{Address: "10.1.0.1"}, nil)
	for name, want := range map[string]int{"shop/db": 1, "shop/synthetic-db": 0} {
		in := Input{Entries: []*mirror.Resource{resource(t, "east", name, entry(selecting(nil)), nil)}, Workloads: []*mirror.Resource{vm}}
		if got := find(t, in, Query{Host: host}).All; got != want {
			t.Errorf("%s: %d endpoints, want %d", name, got, want)
		}
	}
}

func TestHostsAreSelected(t *testing.T) {
	var in Input
	for i, h := range []string{"a.example", "b.example", "*.c.example", "db.shop.svc.cluster.local"} {
		in.Entries = append(in.Entries, resource(t, "east", fmt.Sprint("shop/e", i), entry(func(s *networking.ServiceEntry) { s.Hosts = []string{h} }), nil))
	}
	for name, tc := range map[string]struct {
		q     Query
		hosts []string
		more  int
	}{
		"all":       {Query{}, []string{"*.c.example", "a.example", "b.example", "db.shop.svc.cluster.local"}, 0},
		"limited":   {Query{Limit: 1}, []string{"*.c.example"}, 3},
		"from":      {Query{From: "b"}, []string{"b.example", "db.shop.svc.cluster.local"}, 0},
		"search":    {Query{Search: "SHOP"}, []string{"db.shop.svc.cluster.local"}, 0},
		"covered":   {Query{Host: "x.c.example"}, []string{"*.c.example"}, 0},
		"not there": {Query{Host: "db.shop"}, nil, 0},
	} {
		a, err := Find(in, tc.q)
		var hosts []string
		for _, s := range a.Services {
			hosts = append(hosts, s.Host)
		}
		if err != nil || !slices.Equal(hosts, tc.hosts) || a.More != tc.more {
			t.Errorf("%s: %q, %d more, err %v", name, hosts, a.More, err)
		}
	}
}

func TestListsOfAServiceHaveALimit(t *testing.T) {
	var addresses []string
	for i := range 30 {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d", i))
	}
	in := Input{Entries: []*mirror.Resource{resource(t, "east", "shop/db", entry(func(s *networking.ServiceEntry) { s.Addresses = addresses }, addresses...), nil)}}
	if s := find(t, in, Query{Host: host, Limit: 10}); len(s.Endpoints) != 10 || s.More["endpoints"] != 20 || s.All != 30 {
		t.Errorf("%+v", s)
	}
	if s := find(t, in, Query{}); len(s.Addresses) != rowLimit || s.More["addresses"] != 30-rowLimit || s.Endpoints != nil {
		t.Errorf("%+v", s)
	}
}

// TestWorkIsBounded: entries and the workloads that they select are not multiplied. If all select all, the answer has
// all hosts, and is partial.
func TestWorkIsBounded(t *testing.T) {
	const n, most = 1000, 50_000
	for name, wantPartial := range map[string]bool{"apart": false, "crowd": true} {
		var in Input
		for i := range n {
			labels := map[string]string{"all": "yes"}
			if name == "apart" {
				labels["app"] = fmt.Sprint(i)
			}
			in.Entries = append(in.Entries, resource(t, "east", fmt.Sprint("shop/e", i), entry(func(s *networking.ServiceEntry) {
				s.Hosts = []string{fmt.Sprintf("h%d.example", i)}
				selecting(labels)(s)
			}), nil))
			in.Workloads = append(in.Workloads, resource(t, "east", fmt.Sprint("shop/w", i), &networking.WorkloadEntry{Address: "10.0.0.1"}, labels))
		}
		w := newWorld(in, Query{})
		w.budget = most
		a, err := w.answer()
		if steps := most - w.budget; err != nil || len(a.Services) != n || a.Partial != wantPartial || !wantPartial && steps > 10*n || steps > most+2*n {
			t.Errorf("%s: %d steps, %d services, partial %v, err %v", name, steps, len(a.Services), a.Partial, err)
		}
	}
}
