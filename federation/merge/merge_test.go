package merge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/mirror"
)

var (
	monday  = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	tuesday = monday.Add(24 * time.Hour)
)

// item is what the tests make resources of.
type item struct {
	kind                mirror.Kind
	namespace, name     string
	labels, annotations map[string]string
	source              string
	created             time.Time
	body                proto.Message
}

func (i item) build(t testing.TB) *mirror.Resource {
	t.Helper()
	body, err := anypb.New(i.body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{
		Key:    mirror.Key{Kind: i.kind, Namespace: i.namespace, Name: i.name},
		Labels: i.labels, Annotations: i.annotations, CreateTime: i.created, Source: i.source, Body: body,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// copyOf returns a source's copy of team-a/db, changed by edit.
func copyOf(t testing.TB, source string, edit func(*item, *networking.ServiceEntry)) mirror.Copy {
	body := &networking.ServiceEntry{
		Hosts: []string{"db.example"}, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "TLS"}, {Number: 80, Name: "http", Protocol: "HTTP"}},
	}
	it := item{kind: federation.ServiceEntry, namespace: "team-a", name: "db", source: source, body: body}
	if edit != nil {
		edit(&it, body)
	}
	return mirror.Copy{Source: source, Resource: it.build(t)}
}

func endpoints(addresses ...string) (out []*networking.WorkloadEntry) {
	for _, a := range addresses {
		out = append(out, &networking.WorkloadEntry{Address: a})
	}
	return out
}

func withEndpoints(addresses ...string) func(*item, *networking.ServiceEntry) {
	return func(_ *item, se *networking.ServiceEntry) { se.Endpoints = endpoints(addresses...) }
}

func entryOf(t testing.TB, r *mirror.Resource) *networking.ServiceEntry {
	t.Helper()
	se := &networking.ServiceEntry{}
	if err := r.Body().UnmarshalTo(se); err != nil {
		t.Fatal(err)
	}
	return se
}

func addressesOf(t testing.TB, r *mirror.Resource) (out []string) {
	for _, ep := range entryOf(t, r).Endpoints {
		out = append(out, ep.Address)
	}
	return out
}

func TestPolicies(t *testing.T) {
	old := func(it *item, _ *networking.ServiceEntry) { it.created = monday }
	young := func(it *item, _ *networking.ServiceEntry) { it.created = tuesday }
	for _, test := range []struct {
		name   string
		policy mirror.Policy
		copies []mirror.Copy
		winner int
		reason string
	}{
		{"first of one", mirror.First{}, []mirror.Copy{copyOf(t, "east", nil)}, 0, ""},
		{"first of two", mirror.First{}, []mirror.Copy{copyOf(t, "east", old), copyOf(t, "west", young)}, 0, "first in order"},
		{"newest", Newest{}, []mirror.Copy{copyOf(t, "east", old), copyOf(t, "west", young), copyOf(t, "north", nil)}, 1, "newest"},
		{"unknown time is oldest", Newest{}, []mirror.Copy{copyOf(t, "east", nil), copyOf(t, "west", old)}, 1, "newest"},
		{"newest of equals is first in order", Newest{}, []mirror.Copy{copyOf(t, "north", old), copyOf(t, "east", young), copyOf(t, "west", young)}, 1, "first in order of the newest"},
		{"no time is known", Newest{}, []mirror.Copy{copyOf(t, "east", nil), copyOf(t, "west", nil)}, 0, "first in order: no creation time is known"},
		{"newest of one", Newest{}, []mirror.Copy{copyOf(t, "east", nil)}, 0, ""},
		{"reject of one", Reject{}, []mirror.Copy{copyOf(t, "east", nil)}, 0, ""},
		{"reject of equals", Reject{}, []mirror.Copy{copyOf(t, "east", nil), copyOf(t, "west", nil)}, -1, "several upstreams have it"},
		{"union of one", Union{}, []mirror.Copy{copyOf(t, "east", nil)}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := test.policy.Merge(test.copies)
			if v.Winner != test.winner || v.Reason != test.reason || v.United != nil {
				t.Errorf("%+v", v)
			}
			if test.winner < 0 {
				if v.Served != nil {
					t.Error("a copy is served")
				}
			} else if v.Served != test.copies[test.winner].Resource {
				t.Error("what is served is not the winner's copy")
			}
			if g, ok := test.policy.(mirror.Grouper); ok && g.Group(test.copies[0].Resource) != "" {
				t.Error("copies of other keys are merged")
			}
		})
	}
}

func TestByName(t *testing.T) {
	for _, test := range []struct {
		name string
		kind mirror.Kind
		want mirror.Policy
		err  string
	}{
		{"first", federation.VirtualService, mirror.First{}, ""},
		{"newest", federation.VirtualService, Newest{}, ""},
		{"reject", mirror.MeshConfig, Reject{}, ""},
		{"union", federation.ServiceEntry, Union{}, ""},
		{"unionByHost", federation.ServiceEntry, Union{SameHost: true}, ""},
		{"union", federation.VirtualService, nil, "policy union is for networking.istio.io/ServiceEntry only, not for networking.istio.io/VirtualService"},
		{"last", federation.ServiceEntry, nil, `unknown policy "last": want first, newest, reject, union or unionByHost`},
	} {
		got, err := ByName(test.name, test.kind)
		if got != test.want || (err != nil) != (test.err != "") || err != nil && err.Error() != test.err {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
	}
}

func TestUnionAddsWhatTheOthersHave(t *testing.T) {
	first := copyOf(t, "east", func(it *item, se *networking.ServiceEntry) {
		it.labels = map[string]string{"app": "db"}
		it.annotations = map[string]string{"meshrelay.io/from": "east via hub"}
		it.created = monday
		se.Addresses = []string{"10.0.0.1"}
		se.SubjectAltNames = []string{"spiffe://a", "spiffe://b"}
		se.Endpoints = []*networking.WorkloadEntry{
			{Address: "192.0.2.1", Weight: 1},
			{Address: "192.0.2.2", Network: "n1", Ports: map[string]uint32{"https": 8443, "http": 8080}},
		}
	})
	second := copyOf(t, "west", func(it *item, se *networking.ServiceEntry) {
		it.labels = map[string]string{"app": "other"}
		se.Ports = []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "http", TargetPort: 80}, {Number: 443, Name: "https", Protocol: "tls"}}
		se.Addresses = []string{"10.0.0.2", "10.0.0.1"}
		se.SubjectAltNames = []string{"spiffe://b", "spiffe://a"}
		se.Endpoints = []*networking.WorkloadEntry{
			{Address: "192.0.2.1", Weight: 7}, // the same one
			{Address: "192.0.2.2", Network: "n2"},
			{Address: "192.0.2.2", Network: "n1", Ports: map[string]uint32{"http": 8080, "https": 8443}}, // the same one
			{Address: "192.0.2.3"},
		}
	})
	v := Union{}.Merge([]mirror.Copy{first, second})
	if v.Winner != 0 || !slices.Equal(v.United, []int{1}) || v.Reason != "united" {
		t.Errorf("%+v", v)
	}
	want := entryOf(t, first.Resource)
	want.Addresses = []string{"10.0.0.1", "10.0.0.2"}
	want.Endpoints = append(want.Endpoints, &networking.WorkloadEntry{Address: "192.0.2.2", Network: "n2"}, &networking.WorkloadEntry{Address: "192.0.2.3"})
	if got := entryOf(t, v.Served); !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	got, have := v.Served.Spec(), first.Resource.Spec()
	got.Body, have.Body = nil, nil
	if d := cmp.Diff(have, got); d != "" {
		t.Error(d)
	}
}

// A network alone does not tell an endpoint from others: its gateways stand for all of them.
func TestUnionTakesEachEndpointWithoutAnAddressForOneOfItsOwn(t *testing.T) {
	far := func(version string) func(*item, *networking.ServiceEntry) {
		return func(_ *item, se *networking.ServiceEntry) {
			se.Addresses = []string{"10.0.0." + version}
			se.Endpoints = []*networking.WorkloadEntry{{Network: "far", Labels: map[string]string{"version": version}}, {Network: "far"}}
		}
	}
	v := Union{}.Merge([]mirror.Copy{copyOf(t, "east", far("1")), copyOf(t, "west", far("2")), copyOf(t, "west2", far("2"))})
	se := entryOf(t, v.Served)
	if v.Reason != "united" || len(se.Endpoints) != 6 || se.Endpoints[2].Labels["version"] != "2" {
		t.Errorf("%+v: %v", v, se)
	}
}

func TestUnionOfCopiesThatAddNothingIsTheFirst(t *testing.T) {
	first := copyOf(t, "east", withEndpoints("192.0.2.1", "192.0.2.2"))
	v := Union{}.Merge([]mirror.Copy{first, copyOf(t, "west", withEndpoints("192.0.2.2")), copyOf(t, "north", withEndpoints("192.0.2.1", "192.0.2.2"))})
	if v.Served != first.Resource || !slices.Equal(v.United, []int{1, 2}) || v.Reason != "united" {
		t.Errorf("%+v", v)
	}
}

func TestCopiesThatDisagreeAreNotUnited(t *testing.T) {
	type edit = func(*item, *networking.ServiceEntry)
	static := withEndpoints("192.0.2.1")
	dns := func(r networking.ServiceEntry_Resolution, addresses ...string) edit {
		return func(_ *item, se *networking.ServiceEntry) { se.Resolution, se.Endpoints = r, endpoints(addresses...) }
	}
	names := func(names ...string) edit {
		return func(_ *item, se *networking.ServiceEntry) { se.SubjectAltNames = names }
	}
	selector := func(namespace, app string, addresses ...string) edit {
		return func(it *item, se *networking.ServiceEntry) {
			it.namespace = namespace
			se.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": app}}
			se.Endpoints = endpoints(addresses...)
		}
	}
	for _, test := range []struct {
		name         string
		first, other edit
		reason       string // after "first in order: west "; empty: united
	}{
		{"other hosts", static, func(_ *item, se *networking.ServiceEntry) { se.Hosts = []string{"db.other"} }, "has other hosts"},
		{"hosts in another order and case", func(_ *item, se *networking.ServiceEntry) { se.Hosts = []string{"a.x", "b.x"} },
			func(_ *item, se *networking.ServiceEntry) { se.Hosts = []string{"B.x", "a.x"} }, ""},
		{"visibility", static, func(_ *item, se *networking.ServiceEntry) { se.ExportTo = []string{"."} }, "is visible to team-a, not to *"},
		{"same visibility", func(_ *item, se *networking.ServiceEntry) { se.ExportTo = []string{"team-a"} },
			func(_ *item, se *networking.ServiceEntry) { se.ExportTo = []string{"."} }, ""},
		{"resolution", static, dns(networking.ServiceEntry_DNS, "x.example"), "has resolution DNS, not STATIC"},
		{"location", static, func(_ *item, se *networking.ServiceEntry) { se.Location = networking.ServiceEntry_MESH_INTERNAL }, "has location MESH_INTERNAL, not MESH_EXTERNAL"},
		{"a port more", static, func(_ *item, se *networking.ServiceEntry) {
			se.Ports = append(se.Ports, &networking.ServicePort{Number: 8443, Name: "x", Protocol: "TLS"})
		}, "has a port 8443 more"},
		{"a port less", static, func(_ *item, se *networking.ServiceEntry) { se.Ports = se.Ports[:1] }, "has no port 80"},
		{"protocol", static, func(_ *item, se *networking.ServiceEntry) { se.Ports[0].Protocol = "HTTPS" }, `has port 443 as "HTTPS", not "TLS"`},
		{"port name", static, func(_ *item, se *networking.ServiceEntry) { se.Ports[0].Name = "tls" }, `names port 443 "tls", not "https"`},
		{"target port", static, func(_ *item, se *networking.ServiceEntry) { se.Ports[0].TargetPort = 8443 }, "has port 443 with targetPort 8443, not 443"},
		{"same selector", selector("team-a", "db"), func(it *item, se *networking.ServiceEntry) {
			selector("team-a", "db")(it, se)
			se.Addresses = []string{"10.0.0.1"}
		}, ""},
		{"other subjectAltNames", names("a"), names("a", "b"), "has other subjectAltNames"},
		{"fewer subjectAltNames", names("a"), names(), "has other subjectAltNames"},
		{"the same subjectAltNames", names("a", "b"), names("b", "a", "a"), ""},
		{"another selector", selector("team-a", "db"), selector("team-a", "x"), "has another workloadSelector"},
		{"selector and endpoints", selector("team-a", "db"), static, "has another workloadSelector"},
		{"endpoints and selector", static, selector("team-a", "db"), "has another workloadSelector"},
		{"selector with endpoints", selector("team-a", "db"), selector("team-a", "db", "192.0.2.1"), "has endpoints, which a workloadSelector excludes"},
		{"NONE", dns(networking.ServiceEntry_NONE), dns(networking.ServiceEntry_NONE, "192.0.2.1"), "has endpoints, which NONE does not allow"},
		{"DNS of the host itself", dns(networking.ServiceEntry_DNS), dns(networking.ServiceEntry_DNS, "x.example"), "does not agree on whether the host itself is resolved"},
		{"DNS of endpoints", dns(networking.ServiceEntry_DNS, "y.example"), dns(networking.ServiceEntry_DNS, "x.example"), ""},
		{"DNS_ROUND_ROBIN", dns(networking.ServiceEntry_DNS_ROUND_ROBIN, "y.example"), dns(networking.ServiceEntry_DNS_ROUND_ROBIN, "x.example"), "has another endpoint, and DNS_ROUND_ROBIN allows one"},
		{"no endpoints at first", nil, static, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			copies := []mirror.Copy{copyOf(t, "east", test.first), copyOf(t, "west", test.other)}
			v := Union{}.Merge(copies)
			if test.reason == "" {
				if v.Reason != "united" || !slices.Equal(v.United, []int{1}) {
					t.Errorf("%+v", v)
				}
				return
			}
			if v.Served != copies[0].Resource || v.Winner != 0 || v.United != nil || v.Reason != "first in order: west "+test.reason {
				t.Errorf("%+v\nwant %s", v, test.reason)
			}
		})
	}
}

func TestCopiesThatAgreeAreUnitedAroundOneThatDoesNot(t *testing.T) {
	v := Union{}.Merge([]mirror.Copy{
		copyOf(t, "east", withEndpoints("192.0.2.1")),
		copyOf(t, "west", func(_ *item, se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS }),
		copyOf(t, "north", withEndpoints("192.0.2.2")),
	})
	if got := addressesOf(t, v.Served); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.2"}) || !slices.Equal(v.United, []int{2}) ||
		v.Reason != "united, but west has resolution DNS, not STATIC" {
		t.Errorf("%v, %+v", got, v)
	}
}

func TestEndpointsOfAnotherNamespaceAreNeverUnited(t *testing.T) {
	victim := copyOf(t, "east", func(it *item, se *networking.ServiceEntry) {
		it.namespace, se.Endpoints = "payments", endpoints("192.0.2.1")
	})
	attacker := copyOf(t, "tenant", func(it *item, se *networking.ServiceEntry) {
		it.namespace, it.name, se.Endpoints = "attacker", "x", endpoints("198.51.100.66")
	})
	neighbour := copyOf(t, "east", func(it *item, se *networking.ServiceEntry) {
		it.namespace, it.name, se.Endpoints = "payments", "more", endpoints("192.0.2.2")
	})
	u := Union{SameHost: true}
	if u.Group(victim.Resource) == u.Group(attacker.Resource) || u.Group(victim.Resource) != u.Group(neighbour.Resource) {
		t.Error("a group is not of one namespace")
	}
	v := u.Merge([]mirror.Copy{victim, attacker, neighbour})
	if got := addressesOf(t, v.Served); !slices.Equal(got, []string{"192.0.2.1", "192.0.2.2"}) || !slices.Equal(v.United, []int{2}) {
		t.Errorf("%v, %+v", got, v)
	}
	if want := "united, but tenant attacker/x is of another namespace"; v.Reason != want {
		t.Error(v.Reason)
	}
}

func TestSameHostUnitesAcrossKeys(t *testing.T) {
	u := Union{SameHost: true}
	in := func(namespace, name string, edit func(*networking.ServiceEntry)) mirror.Copy {
		return copyOf(t, "west", func(it *item, se *networking.ServiceEntry) {
			it.namespace, it.name = namespace, name
			if edit != nil {
				edit(se)
			}
		})
	}
	group := u.Group(copyOf(t, "east", nil).Resource)
	if group == "" || group != u.Group(in("team-a", "x", func(se *networking.ServiceEntry) { se.Hosts, se.ExportTo = []string{"DB.example"}, []string{"*"} }).Resource) {
		t.Errorf("public resources of one host are not of one group: %q", group)
	}
	private := func(se *networking.ServiceEntry) { se.ExportTo = []string{"."} }
	if a, b, c := u.Group(in("a", "x", private).Resource), u.Group(in("a", "y", func(se *networking.ServiceEntry) { se.ExportTo = []string{"a"} }).Resource), u.Group(in("b", "x", private).Resource); a != b || a == c || a == group {
		t.Errorf("groups %q, %q, %q", a, b, c)
	}
	if (Union{}).Group(in("a", "x", nil).Resource) != "" {
		t.Error("a group without SameHost")
	}
	if u.Group(item{kind: federation.VirtualService, namespace: "a", name: "x", body: &networking.VirtualService{Hosts: []string{"db.example"}}}.build(t)) != "" {
		t.Error("a group of another kind")
	}
}

// randomCopies draws copies that agree in some respects and differ in others.
func randomCopies(t *rapid.T) []mirror.Copy {
	texts := func(label, prefix string) []string {
		var out []string
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 4), 0, 4).Draw(t, label) {
			out = append(out, fmt.Sprintf("%s%d", prefix, n))
		}
		return out
	}
	resolutions := []networking.ServiceEntry_Resolution{networking.ServiceEntry_STATIC, networking.ServiceEntry_STATIC, networking.ServiceEntry_STATIC,
		networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN, networking.ServiceEntry_NONE}
	n := rapid.IntRange(1, 5).Draw(t, "n")
	var out []mirror.Copy
	for i := range n {
		source := fmt.Sprintf("source-%d", i)
		out = append(out, copyOf(failer{TB: nil, t: t}, source, func(it *item, se *networking.ServiceEntry) {
			se.Resolution = rapid.SampledFrom(resolutions).Draw(t, "resolution")
			se.Endpoints = endpoints(texts("endpoints", "192.0.2.")...)
			se.Addresses = texts("addresses", "10.0.0.")
			if rapid.IntRange(0, 5).Draw(t, "altName") == 0 {
				se.SubjectAltNames = []string{"spiffe://db"}
			}
			if rapid.IntRange(0, 5).Draw(t, "selector") == 0 {
				se.WorkloadSelector = &networking.WorkloadSelector{Labels: map[string]string{"app": "db"}}
			}
			if rapid.IntRange(0, 5).Draw(t, "port") == 0 {
				se.Ports = se.Ports[:1]
			}
			if day := rapid.IntRange(0, 2).Draw(t, "day"); day > 0 {
				it.created = monday.Add(time.Duration(day) * 24 * time.Hour)
			}
		}))
	}
	return out
}

// failer lets the builders of resources fail a rapid test.
type failer struct {
	testing.TB
	t *rapid.T
}

func (f failer) Helper()           {}
func (f failer) Fatal(args ...any) { f.t.Fatal(args...) }

var allPolicies = []mirror.Policy{mirror.First{}, Newest{}, Reject{}, Union{}, Union{SameHost: true}}

func TestAMergeIsAPureFunctionOfTheCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		copies := randomCopies(t)
		for _, p := range allPolicies {
			want := p.Merge(copies)
			// Merges before this one do not matter: merge others in between, and copies that
			// were built anew.
			anew := make([]mirror.Copy, len(copies))
			for _, i := range rapid.Permutation(indexes(len(copies))).Draw(t, "arrival") {
				p.Merge(copies[i:])
				r, err := mirror.New(copies[i].Resource.Spec())
				if err != nil {
					t.Fatal(err)
				}
				anew[i] = mirror.Copy{Source: copies[i].Source, Resource: r}
			}
			got := p.Merge(anew)
			if !got.Served.Equal(want.Served) || got.Winner != want.Winner || !slices.Equal(got.United, want.United) || got.Reason != want.Reason {
				t.Fatalf("%T: %+v, want %+v", p, got, want)
			}
			if got.Served != nil && string(got.Served.Frame()) != string(want.Served.Frame()) {
				t.Fatalf("%T: other bytes", p)
			}
		}
	})
}

func indexes(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// A copy that did not go into what is served makes no difference: without it, the same is
// served.
func TestRemovingALoserChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		copies := randomCopies(t)
		for _, p := range allPolicies {
			v := p.Merge(copies)
			for i := range copies {
				if v.Winner < 0 || i == v.Winner || slices.Contains(v.United, i) {
					continue
				}
				if got := p.Merge(slices.Delete(slices.Clone(copies), i, i+1)); !got.Served.Equal(v.Served) {
					t.Fatalf("%T: without %d something else is served", p, i)
				}
			}
		}
	})
}

func TestUnionIsAssociativeAndIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		copies, u := randomCopies(t), Union{}
		all := u.Merge(copies)
		// By and by is the same as at once.
		sum := copies[0]
		for _, c := range copies[1:] {
			sum.Resource = u.Merge([]mirror.Copy{sum, c}).Served
		}
		if !sum.Resource.Equal(all.Served) {
			t.Fatalf("by and by: %v\nat once: %v", sum.Resource.Body(), all.Served.Body())
		}
		// Once more is the same as once.
		again := u.Merge(append([]mirror.Copy{{Source: copies[0].Source, Resource: all.Served}}, copies...))
		if again.Served != all.Served {
			t.Fatal("merging once more changes what is served")
		}
		// It has what the copies have that agree, and nothing else.
		f := failer{t: t}
		want, seen := addressesOf(f, copies[0].Resource), map[string]bool{}
		for _, a := range want {
			seen[a] = true
		}
		for _, i := range all.United {
			for _, a := range addressesOf(f, copies[i].Resource) {
				if !seen[a] {
					seen[a] = true
					want = append(want, a)
				}
			}
		}
		if got := addressesOf(f, all.Served); !slices.Equal(got, want) {
			t.Fatalf("endpoints %v, want %v", got, want)
		}
		if se := entryOf(f, all.Served); se.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(se.Endpoints) > max(1, len(addressesOf(f, copies[0].Resource))) {
			t.Fatal("DNS_ROUND_ROBIN got more than one endpoint")
		}
	})
}

func TestOneCopyIsNotDecoded(t *testing.T) {
	copies := []mirror.Copy{copyOf(t, "east", withEndpoints("192.0.2.1"))}
	for _, p := range []mirror.Policy{mirror.First{}, Newest{}, Reject{}, Union{}} {
		if n := testing.AllocsPerRun(100, func() { p.Merge(copies) }); n > 0 {
			t.Errorf("%T: %v allocations", p, n)
		}
	}
}

func TestReasonsAreBounded(t *testing.T) {
	copies := []mirror.Copy{copyOf(t, "east", nil)}
	for i := range 60 {
		copies = append(copies, copyOf(t, fmt.Sprintf("s%d", i), func(_ *item, se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS }))
	}
	v := Union{}.Merge(copies)
	if !strings.HasSuffix(v.Reason, "; 56 more") || len(v.Reason) > 500 {
		t.Error(v.Reason)
	}
}

func BenchmarkUnion(b *testing.B) {
	many := func(from int) func(*item, *networking.ServiceEntry) {
		return func(_ *item, se *networking.ServiceEntry) {
			for i := range 1000 {
				se.Endpoints = append(se.Endpoints, &networking.WorkloadEntry{Address: fmt.Sprintf("10.0.%d.%d", from+i/250, i%250)})
			}
		}
	}
	for _, bench := range []struct {
		name   string
		copies []mirror.Copy
	}{
		{"one", []mirror.Copy{copyOf(b, "east", withEndpoints("192.0.2.1"))}},
		{"equal", []mirror.Copy{copyOf(b, "east", withEndpoints("192.0.2.1")), copyOf(b, "west", withEndpoints("192.0.2.1"))}},
		{"two", []mirror.Copy{copyOf(b, "east", withEndpoints("192.0.2.1", "192.0.2.2")), copyOf(b, "west", withEndpoints("192.0.2.3", "192.0.2.1"))}},
		{"two-of-1000-endpoints", []mirror.Copy{copyOf(b, "east", many(0)), copyOf(b, "west", many(2))}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Union{}.Merge(bench.copies)
			}
		})
	}
}

func BenchmarkUnionGroup(b *testing.B) {
	r := copyOf(b, "east", withEndpoints("192.0.2.1", "192.0.2.2")).Resource
	b.ReportAllocs()
	for b.Loop() {
		Union{SameHost: true}.Group(r)
	}
}
