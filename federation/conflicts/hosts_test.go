package conflicts

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/mirror"
)

var (
	monday  = time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	tuesday = monday.Add(24 * time.Hour)
)

func build(t testing.TB, kind mirror.Kind, namespace, name, source string, body proto.Message) *mirror.Resource {
	t.Helper()
	packed, err := anypb.New(body)
	if err != nil {
		t.Fatal(err)
	}
	spec := mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: namespace, Name: name}, Source: source, Body: packed}
	if kind == federation.VirtualService {
		spec.CreateTime = monday
	}
	r, err := mirror.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// failer lets the builders of resources fail a rapid test.
type failer struct {
	testing.TB
	t *rapid.T
}

func (f failer) Helper()           {}
func (f failer) Fatal(args ...any) { f.t.Fatal(args...) }

// clock is a time that tests set.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func entryClaim(t testing.TB, namespace, name string, exportTo []string, hosts ...string) *mirror.Resource {
	return build(t, federation.ServiceEntry, namespace, name, "east", &networking.ServiceEntry{Hosts: hosts, ExportTo: exportTo, Ports: []*networking.ServicePort{{Number: 1, Name: "a"}}})
}

func serviceClaim(t testing.TB, namespace, name string, gateways, exportTo []string, hosts ...string) *mirror.Resource {
	return build(t, federation.VirtualService, namespace, name, "west", &networking.VirtualService{Hosts: hosts, Gateways: gateways, ExportTo: exportTo})
}

// brief is a conflict in a line.
func brief(conflicts []HostConflict) []string {
	out := []string{}
	for _, c := range conflicts {
		s := c.Kind.Kind + " " + c.Host + " " + c.Visibility + ":"
		for _, claim := range c.Claims {
			s += " " + claim.Namespace + "/" + claim.Name
		}
		if c.Ended {
			s += " (ended)"
		}
		out = append(out, s)
	}
	return out
}

func TestClaimsThatSeeOneAnotherAreInConflict(t *testing.T) {
	for _, test := range []struct {
		name  string
		given []*mirror.Resource
		want  []string
	}{
		{"one claims several hosts", []*mirror.Resource{entryClaim(t, "a", "x", nil, "db.example", "db.example", "DB.example")}, nil},
		{"both public", []*mirror.Resource{entryClaim(t, "a", "x", nil, "db.example"), entryClaim(t, "b", "y", []string{"*"}, "DB.example", "other.example")},
			[]string{"ServiceEntry db.example *: a/x b/y"}},
		{"private in different namespaces", []*mirror.Resource{entryClaim(t, "a", "x", []string{"."}, "db.example"), entryClaim(t, "b", "y", []string{"."}, "db.example")}, nil},
		{"private in one namespace", []*mirror.Resource{entryClaim(t, "a", "x", []string{"."}, "db.example"), entryClaim(t, "b", "y", []string{"a", "b"}, "db.example")},
			[]string{"ServiceEntry db.example a: a/x b/y"}},
		{"the same two in several namespaces", []*mirror.Resource{entryClaim(t, "a", "x", []string{".", "b", "c"}, "db.example"), entryClaim(t, "b", "y", []string{"a", "b"}, "db.example")},
			[]string{"ServiceEntry db.example a,b: a/x b/y"}},
		{"public and private", []*mirror.Resource{entryClaim(t, "a", "x", []string{"."}, "db.example"), entryClaim(t, "b", "y", nil, "db.example"), entryClaim(t, "c", "z", []string{"."}, "db.example")},
			[]string{"ServiceEntry db.example *: a/x b/y c/z"}},
		{"different pairs", []*mirror.Resource{
			entryClaim(t, "a", "x", []string{"."}, "db.example"), entryClaim(t, "a", "y", []string{"."}, "db.example"),
			entryClaim(t, "b", "x", []string{"."}, "db.example"), entryClaim(t, "b", "y", []string{"."}, "db.example"),
		}, []string{"ServiceEntry db.example a: a/x a/y", "ServiceEntry db.example b: b/x b/y"}},
		{"seen by nobody", []*mirror.Resource{entryClaim(t, "a", "x", []string{"~"}, "db.example"), entryClaim(t, "b", "y", nil, "db.example")}, nil},
		{"a wildcard is another host", []*mirror.Resource{entryClaim(t, "a", "x", nil, "*.example"), entryClaim(t, "b", "y", nil, "db.example")}, nil},
		{"an entry's short name stays as it is", []*mirror.Resource{entryClaim(t, "a", "x", nil, "db"), entryClaim(t, "b", "y", nil, "db")}, []string{"ServiceEntry db *: a/x b/y"}},
		{"kinds do not meet", []*mirror.Resource{entryClaim(t, "a", "x", nil, "db.example"), serviceClaim(t, "b", "y", nil, nil, "db.example")}, nil},

		{"IST0109 no gateway is mesh", []*mirror.Resource{serviceClaim(t, "a", "x", nil, nil, "web.example"), serviceClaim(t, "b", "y", []string{"gw", "mesh"}, nil, "web.example")},
			[]string{"VirtualService web.example *: a/x b/y"}},
		{"IST0109 gateways are merged", []*mirror.Resource{serviceClaim(t, "a", "x", []string{"gw"}, nil, "web.example"), serviceClaim(t, "a", "y", []string{"gw"}, nil, "web.example")}, nil},
		{"short names are completed", []*mirror.Resource{serviceClaim(t, "a", "x", nil, nil, "web"), serviceClaim(t, "b", "y", nil, nil, "web"), serviceClaim(t, "b", "z", nil, nil, "web.a.svc.cluster.local")},
			[]string{"VirtualService web.a.svc.cluster.local *: a/x b/z"}},
		{"delegates claim nothing", []*mirror.Resource{serviceClaim(t, "a", "x", nil, nil), serviceClaim(t, "a", "y", nil, nil)}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := NewHosts((&clock{monday}).now)
			for _, r := range test.given {
				h.Update(nil, r)
			}
			if d := cmp.Diff(test.want, brief(h.Conflicts()), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			for _, r := range test.given {
				h.Update(r, nil)
			}
			if len(h.multi)+len(h.single) > 0 {
				t.Errorf("something is left: %v", h)
			}
		})
	}
}

func TestAnUpdateReturnsTheConflictsThatItChanged(t *testing.T) {
	c := &clock{monday}
	h := NewHosts(c.now)
	step := func(old, cur *mirror.Resource, want ...string) []HostConflict {
		t.Helper()
		c.Time = c.Add(time.Hour)
		got := h.Update(old, cur)
		if d := cmp.Diff(want, brief(got), cmpopts.EquateEmpty()); d != "" {
			t.Error(d)
		}
		return got
	}
	ax := entryClaim(t, "a", "x", []string{"."}, "db.example")
	ay := entryClaim(t, "a", "y", []string{"."}, "db.example")
	pub := entryClaim(t, "p", "p", nil, "db.example", "p.example")
	step(nil, ax)
	step(nil, ay, "ServiceEntry db.example a: a/x a/y")
	began := c.Time
	step(ay, ay)
	// A resource with the same hosts and visibility changes nothing.
	same := entryClaim(t, "a", "y", []string{"a"}, "db.example", "db.example")
	step(ay, same)
	more := entryClaim(t, "a", "y", []string{"."}, "db.example", "more.example")
	step(same, more)
	if got := h.Conflicts(); len(got) != 1 || !got[0].Since.Equal(began) {
		t.Errorf("%+v, want since %v", got, began)
	}
	step(nil, pub, "ServiceEntry db.example *: a/x a/y p/p", "ServiceEntry db.example a: a/x a/y (ended)")
	began = c.Time
	// Another source serves the same key: a change of the same conflict.
	spec := pub.Spec()
	spec.Source = "west"
	moved, err := mirror.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := step(pub, moved, "ServiceEntry db.example *: a/x a/y p/p"); got[0].Claims[2].Source != "west" || !got[0].Since.Equal(began) {
		t.Errorf("%+v", got)
	}
	step(more, nil, "ServiceEntry db.example *: a/x p/p")
	step(nil, ay, "ServiceEntry db.example *: a/x a/y p/p")
	step(moved, nil, "ServiceEntry db.example *: a/x a/y (ended)", "ServiceEntry db.example a: a/x a/y")
	step(ax, nil, "ServiceEntry db.example a: a/y (ended)")
	step(ay, nil)
	step(ay, nil)
	step(nil, nil)
	step(nil, build(t, mirror.MeshConfig, "", mirror.MeshConfigName, "east", &mesh.MeshConfig{RootNamespace: "istio-system"}))
}

func TestWinnerIsNamedWhereIstiodsChoiceIsCertain(t *testing.T) {
	at := func(created time.Time, r *mirror.Resource) *mirror.Resource {
		spec := r.Spec()
		spec.CreateTime = created
		r, err := mirror.New(spec)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, test := range []struct {
		name  string
		given []*mirror.Resource
		want  string
	}{
		{"the oldest", []*mirror.Resource{at(tuesday, serviceClaim(t, "a", "x", nil, nil, "w.x")), at(monday, serviceClaim(t, "b", "y", nil, nil, "w.x"))}, "b/y"},
		{"an unknown time is 1970 to istiod", []*mirror.Resource{at(tuesday, serviceClaim(t, "a", "x", nil, nil, "w.x")), at(time.Time{}, serviceClaim(t, "b", "y", nil, nil, "w.x"))}, "b/y"},
		{"of one age by name, then namespace", []*mirror.Resource{at(monday, serviceClaim(t, "a", "y", nil, nil, "w.x")), at(monday, serviceClaim(t, "b", "x", nil, nil, "w.x"))}, "b/x"},
		{"private ones come first where they are seen", []*mirror.Resource{at(tuesday, serviceClaim(t, "a", "x", nil, []string{"."}, "w.x")), at(monday, serviceClaim(t, "b", "y", nil, nil, "w.x"))}, ""},
		{"ServiceEntries", []*mirror.Resource{at(tuesday, entryClaim(t, "a", "x", nil, "w.x")), at(monday, entryClaim(t, "b", "y", nil, "w.x"))}, ""},
	} {
		h := NewHosts((&clock{monday}).now)
		for _, r := range test.given {
			h.Update(nil, r)
		}
		if got := h.Conflicts(); len(got) != 1 || got[0].Winner != test.want {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

func TestManyClaimsAreShownInPart(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	for i := range 1000 {
		h.Update(nil, serviceClaim(t, fmt.Sprintf("ns-%03d", i), "x", nil, nil, "w.x"))
	}
	c := h.Conflicts()[0]
	if len(c.Claims) != 64 || c.More != 936 || c.Claims[0].Namespace != "ns-000" || c.Claims[63].Namespace != "ns-063" {
		t.Errorf("%d claims and %d more", len(c.Claims), c.More)
	}
	wide := make([]string, 100)
	for i := range wide {
		wide[i] = fmt.Sprintf("ns-%03d", i)
	}
	h = NewHosts((&clock{monday}).now)
	h.Update(nil, serviceClaim(t, "a", "x", nil, wide, "w.x"))
	if got := h.Update(nil, serviceClaim(t, "a", "y", nil, wide, "w.x")); len(got) != 1 || len(got[0].Visibility) > 200 {
		t.Errorf("%v", brief(got))
	}
}

func TestHostConflictInJSON(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	h.Update(nil, serviceClaim(t, "a", "x", nil, nil, "w.x"))
	h.Update(nil, serviceClaim(t, "b", "y", nil, nil, "w.x"))
	conflicts := h.Conflicts()
	b, err := json.Marshal(conflicts)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"kind":"networking.istio.io/VirtualService","host":"w.x","visibility":"*",` +
		`"claims":[{"namespace":"a","name":"x","source":"west","visibility":"*"},{"namespace":"b","name":"y","source":"west","visibility":"*"}],` +
		`"winner":"a/x","since":"2026-03-02T08:00:00Z"}]`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back []HostConflict
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(conflicts, back, cmpopts.IgnoreUnexported(HostConflict{})); d != "" {
		t.Error(d)
	}
}

// The conflicts depend on the present resources only, and the results of the updates add up to
// them.
func TestHostsAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := failer{t: t}
		h := NewHosts((&clock{monday}).now)
		h.maxScoped = rapid.SampledFrom([]int{1 << 20, 2, 1}).Draw(t, "room")
		have := map[string]*mirror.Resource{}
		updated := map[string]string{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			ns := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace")
			name := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name")
			old := have[ns+"/"+name]
			var cur *mirror.Resource
			if rapid.IntRange(0, 3).Draw(t, "remove") > 0 {
				exportTo := rapid.SampledFrom([][]string{nil, {"*"}, {"."}, {"a", "b"}, {"."}, {"c"}, {"~"}}).Draw(t, "exportTo")
				hosts := rapid.SliceOfN(rapid.SampledFrom([]string{"1.x", "2.x"}), 1, 2).Draw(t, "hosts")
				cur = entryClaim(f, ns, name, exportTo, hosts...)
				have[ns+"/"+name] = cur
			} else {
				delete(have, ns+"/"+name)
			}
			for _, c := range h.Update(old, cur) {
				for scope, claims := range byScope(c) {
					if updated[scope] = claims; c.Ended {
						delete(updated, scope)
					}
				}
			}
			present := map[string]string{}
			for _, c := range h.Conflicts() {
				maps.Copy(present, byScope(c))
			}
			if d := cmp.Diff(present, updated); d != "" {
				t.Fatalf("the updates do not add up to the conflicts: %s", d)
			}
			followed := maps.Clone(have)
			for _, n := range h.NotFollowed() {
				delete(followed, n.Namespace+"/"+n.Name)
			}
			if got, want := brief(h.Conflicts()), model(f, followed); !slices.Equal(got, want) {
				t.Fatalf("got  %q\nwant %q", got, want)
			}
			if h.scoped > h.maxScoped {
				t.Fatalf("%d is noted, and %d is the bound", h.scoped, h.maxScoped)
			}
		}
		for _, r := range have {
			h.Update(r, nil)
		}
		if len(h.multi)+len(h.single)+len(h.unfollowed)+h.scoped != 0 {
			t.Fatalf("something is left: %v", h.multi)
		}
	})
}

// byScope returns the claims of a conflict by host and namespace.
func byScope(c HostConflict) map[string]string {
	out := map[string]string{}
	for scope := range strings.SplitSeq(c.Visibility, ",") {
		out[c.Host+" "+scope] = fmt.Sprint(c.Claims)
	}
	return out
}

// model finds the conflicts the slow way.
func model(t testing.TB, have map[string]*mirror.Resource) []string {
	type scope struct{ host, ns string }
	claims := map[scope][]string{}
	public := map[string]bool{}
	all := map[string][]string{}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		se, ns := &networking.ServiceEntry{}, have[key].Namespace()
		if err := have[key].Body().UnmarshalTo(se); err != nil {
			t.Fatal(err)
		}
		v := federation.VisibilityOf(se.ExportTo, ns)
		for _, h := range slices.Compact(slices.Sorted(slices.Values(se.Hosts))) {
			if v.Public || len(v.Namespaces) > 0 {
				all[h] = append(all[h], key)
			}
			public[h] = public[h] || v.Public
			for _, n := range v.Namespaces {
				claims[scope{h, n}] = append(claims[scope{h, n}], key)
			}
		}
	}
	out := []string{}
	for _, h := range slices.Sorted(maps.Keys(all)) {
		if public[h] {
			if len(all[h]) > 1 {
				out = append(out, line(h, "*", all[h]))
			}
			continue
		}
		byKeys := map[string]int{}
		scopes := []string{}
		var keys [][]string
		for _, n := range []string{"a", "b", "c"} {
			c := claims[scope{h, n}]
			if len(c) < 2 {
				continue
			}
			if i, ok := byKeys[fmt.Sprint(c)]; ok {
				scopes[i] += "," + n
				continue
			}
			byKeys[fmt.Sprint(c)] = len(scopes)
			scopes, keys = append(scopes, n), append(keys, c)
		}
		for i := range scopes {
			out = append(out, line(h, scopes[i], keys[i]))
		}
	}
	return out
}

func line(host, scope string, keys []string) string {
	s := "ServiceEntry " + host + " " + scope + ":"
	for _, k := range keys {
		s += " " + k
	}
	return s
}

func TestHostsIsSafeForConcurrentUse(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	var wg sync.WaitGroup
	for i := range 4 {
		r := entryClaim(t, fmt.Sprint("ns-", i), "x", nil, "a.x", "b.x")
		wg.Go(func() {
			for range 200 {
				h.Update(nil, r)
				h.Conflicts()
				h.Update(r, nil)
			}
		})
	}
	wg.Wait()
	if got := h.Conflicts(); len(got) > 0 {
		t.Error(brief(got))
	}
}

func BenchmarkHostsUpdate(b *testing.B) {
	h := NewHosts(time.Now)
	for i := range 10_000 {
		h.Update(nil, entryClaim(b, "a", fmt.Sprint("x", i), nil, fmt.Sprintf("h%d.example", i)))
		h.Update(nil, entryClaim(b, fmt.Sprint("ns", i), "x", []string{"."}, "everywhere.example"))
	}
	free := entryClaim(b, "b", "y", nil, "new.example")
	contested := entryClaim(b, "b", "y", nil, "h7.example")
	other := entryClaim(b, "b", "y", nil, "new.example", "more.example")
	private := entryClaim(b, "b", "y", []string{"."}, "everywhere.example")
	public := entryClaim(b, "b", "y", nil, "everywhere.example")
	for _, bench := range []struct {
		name     string
		one, two *mirror.Resource
	}{
		{"unchanged", free, free}, {"changed", free, other}, {"conflict", free, contested},
		{"private-of-10000", free, private}, {"public-of-10000", free, public},
	} {
		b.Run(bench.name, func(b *testing.B) {
			h.Update(nil, bench.two)
			b.ReportAllocs()
			for b.Loop() {
				h.Update(bench.two, bench.one)
				h.Update(bench.one, bench.two)
			}
		})
	}
}
