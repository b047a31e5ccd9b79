package conflicts

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/federation/merge"
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

// world is an Aggregate with its Tracker.
type world struct {
	*Tracker
	t      testing.TB
	stores map[string]*mirror.Store
}

// newWorld returns a world of sources, in their order, and a value of hostConflicts.
func newWorld(t testing.TB, owners string, sources ...string) *world {
	t.Helper()
	by, err := merge.OwnersByName(owners)
	if err != nil {
		t.Fatal(err)
	}
	a := mirror.NewAggregate()
	a.SetOwners(by)
	w := &world{t: t, stores: map[string]*mirror.Store{}}
	w.Tracker = Follow(a, slog.New(slog.DiscardHandler))
	var of []mirror.Source
	for _, name := range sources {
		w.stores[name] = mirror.NewStore()
		of = append(of, mirror.Source{Name: name, Store: w.stores[name]})
	}
	a.SetSources(of)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = a.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *world) put(all ...*mirror.Resource) {
	for _, r := range all {
		w.stores[r.Source()].Put(r)
	}
}

func (w *world) remove(all ...*mirror.Resource) {
	for _, r := range all {
		w.stores[r.Source()].Remove(r.Key())
	}
}

// conflicts returns the host conflicts once all is merged.
func (w *world) conflicts() []HostConflict {
	w.t.Helper()
	if err := w.resources.CaughtUp(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	return w.HostConflicts()
}

// brief is a conflict in a line.
func brief(conflicts []HostConflict) []string {
	out := []string{}
	for _, c := range conflicts {
		s := c.Kind.Kind + " " + c.Host + " " + c.Visibility + ":"
		for _, claim := range c.Claims {
			s += " " + claim.Namespace + "/" + claim.Name
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
			w := newWorld(t, "serve", "east", "west")
			w.put(test.given...)
			if d := cmp.Diff(test.want, brief(w.conflicts()), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			w.remove(test.given...)
			if all := w.conflicts(); len(all) > 0 {
				t.Errorf("something is left: %v", all)
			}
		})
	}
}

// TestConflictsFollowTheClaims, and are as old as the last of them, whatever else changes.
func TestConflictsFollowTheClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "serve", "west", "east")
		step := func(want ...string) (since time.Duration) {
			t.Helper()
			got := w.conflicts()
			if d := cmp.Diff(want, brief(got), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			if len(got) > 0 {
				since = time.Since(got[0].Since)
			}
			<-time.NewTimer(time.Hour).C
			return since
		}
		ax := entryClaim(t, "a", "x", []string{"."}, "db.example")
		ay := entryClaim(t, "a", "y", []string{"."}, "db.example")
		pub := entryClaim(t, "p", "p", nil, "db.example", "p.example")
		w.put(ax)
		step()
		w.put(ay)
		step("ServiceEntry db.example a: a/x a/y")
		spec := ay.Spec()
		spec.Labels = map[string]string{"a": "b"} // the same claims
		w.put(must(mirror.New(spec)))
		if since := step("ServiceEntry db.example a: a/x a/y"); since != time.Hour {
			t.Errorf("a change that keeps the claims has them in conflict for %v", since)
		}
		w.put(pub)
		if since := step("ServiceEntry db.example *: a/x a/y p/p"); since != 0 {
			t.Errorf("a third claim has them in conflict for %v", since)
		}
		spec = pub.Spec()
		spec.Source = "west"
		moved := must(mirror.New(spec))
		w.put(moved)
		if step("ServiceEntry db.example *: a/x a/y p/p"); w.conflicts()[0].Claims[2].Source != "west" {
			t.Errorf("the source that comes first is not named: %+v", w.conflicts())
		}
		w.remove(ay)
		step("ServiceEntry db.example *: a/x p/p")
		w.put(ay)
		w.remove(pub, moved)
		step("ServiceEntry db.example a: a/x a/y")
		w.remove(ax)
		step()
	})
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
		w := newWorld(t, "serve", "west", "east")
		w.put(test.given...)
		if got := w.conflicts(); len(got) != 1 || got[0].Winner != test.want {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

func TestManyClaimsAreShownInPart(t *testing.T) {
	w := newWorld(t, "serve", "west")
	for i := range 1000 {
		w.put(serviceClaim(t, fmt.Sprintf("ns-%03d", i), "x", nil, nil, "w.x"))
	}
	c := w.conflicts()[0]
	if len(c.Claims) != 64 || c.More != 936 || c.Claims[0].Namespace != "ns-000" || c.Claims[63].Namespace != "ns-063" {
		t.Errorf("%d claims and %d more", len(c.Claims), c.More)
	}
	wide := make([]string, 100)
	for i := range wide {
		wide[i] = fmt.Sprintf("ns-%03d", i)
	}
	w = newWorld(t, "serve", "west")
	w.put(serviceClaim(t, "a", "x", nil, wide, "w.x"), serviceClaim(t, "a", "y", nil, wide, "w.x"))
	if got := w.conflicts(); len(got) != 1 || len(got[0].Visibility) > 200 {
		t.Errorf("%v", brief(got))
	}
}

func TestHostConflictInJSON(t *testing.T) {
	w := newWorld(t, "serve", "west")
	w.put(serviceClaim(t, "a", "x", nil, nil, "w.x"), serviceClaim(t, "b", "y", nil, nil, "w.x"))
	conflicts := w.conflicts()
	conflicts[0].Since = monday
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
	if d := cmp.Diff(conflicts, back); d != "" {
		t.Error(d)
	}
}

// TestHostConflictsAgreeWithAModel: they depend on the present resources only.
func TestHostConflictsAgreeWithAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := failer{t: rt}
		w, have := newWorld(t, "serve", "east"), map[string]*mirror.Resource{}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			ns := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "namespace")
			name := rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name")
			if rapid.IntRange(0, 3).Draw(rt, "remove") > 0 {
				exportTo := rapid.SampledFrom([][]string{nil, {"*"}, {"."}, {"a", "b"}, {"."}, {"c"}, {"~"}}).Draw(rt, "exportTo")
				hosts := rapid.SliceOfN(rapid.SampledFrom([]string{"1.x", "2.x"}), 1, 2).Draw(rt, "hosts")
				have[ns+"/"+name] = entryClaim(f, ns, name, exportTo, hosts...)
				w.put(have[ns+"/"+name])
			} else if was := have[ns+"/"+name]; was != nil {
				delete(have, ns+"/"+name)
				w.remove(was)
			}
			if got, want := brief(w.conflicts()), model(f, have); !slices.Equal(got, want) {
				rt.Fatalf("got  %q\nwant %q", got, want)
			}
		}
	})
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

// BenchmarkHosts is a change of a ServiceEntry among 20,000, half of which claim one host, with its merge.
func BenchmarkHosts(b *testing.B) {
	w := newWorld(b, "serve", "east")
	for i := range 10_000 {
		w.put(entryClaim(b, "a", fmt.Sprint("x", i), nil, fmt.Sprintf("h%d.example", i)), entryClaim(b, fmt.Sprint("ns", i), "x", []string{"."}, "everywhere.example"))
	}
	free := entryClaim(b, "b", "y", nil, "new.example")
	spec := free.Spec()
	spec.Labels = map[string]string{"a": "b"}
	for _, bench := range []struct {
		name string
		two  *mirror.Resource
	}{
		{"unchanged", must(mirror.New(spec))}, {"changed", entryClaim(b, "b", "y", nil, "more.example")}, {"conflict", entryClaim(b, "b", "y", nil, "h7.example")},
		{"private-of-10000", entryClaim(b, "b", "y", []string{"."}, "everywhere.example")}, {"public-of-10000", entryClaim(b, "b", "y", nil, "everywhere.example")},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, r := range []*mirror.Resource{free, bench.two} {
					w.put(r)
					if err := w.resources.CaughtUp(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
