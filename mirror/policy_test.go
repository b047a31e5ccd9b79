package mirror_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

var (
	entryKind = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	ruleKind  = mirror.Kind{Group: "networking.istio.io", Kind: "DestinationRule"}
	routeKind = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}
)

// policies is one of each.
func policies(t *testing.T) map[mirror.Kind]mirror.Policy {
	t.Helper()
	out := map[mirror.Kind]mirror.Policy{}
	for kind, name := range map[mirror.Kind]string{entryKind: "unionByHost", ruleKind: "reject", routeKind: "newest"} {
		p, err := merge.ByName(name, kind)
		if err != nil {
			t.Fatal(err)
		}
		out[kind] = p
	}
	return out
}

// copyOf is a small resource: one of few hosts, one of few endpoints, one of few ages.
type copyOf struct {
	source          string
	kind            mirror.Kind
	name            string
	host, age, addr int
	scope           int // 0: everyone
}

func (c copyOf) build() *mirror.Resource {
	host, to := fmt.Sprintf("h%d.example", c.host), [][]string{nil, {"a"}, {"b", "."}}[c.scope]
	var body proto.Message
	switch c.kind {
	case entryKind:
		body = &networking.ServiceEntry{
			Hosts: []string{host}, ExportTo: to, Resolution: networking.ServiceEntry_STATIC,
			Ports:     []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networking.WorkloadEntry{{Address: fmt.Sprintf("10.0.0.%d", c.addr)}},
		}
	case ruleKind:
		body = &networking.DestinationRule{Host: host, ExportTo: to}
	default:
		body = &networking.VirtualService{Hosts: []string{host}, ExportTo: to}
	}
	packed, err := anypb.New(body)
	if err != nil {
		panic(err)
	}
	r, err := mirror.New(mirror.Spec{
		Key: mirror.Key{Kind: c.kind, Namespace: "shop", Name: c.name}, Source: c.source, Cluster: c.source,
		CreateTime: time.Unix(int64(1000+c.age), 0), Body: packed,
	})
	if err != nil {
		panic(err)
	}
	return r
}

func drawCopy(t *rapid.T, sources []string) copyOf {
	return copyOf{
		source: rapid.SampledFrom(sources).Draw(t, "source"),
		kind:   rapid.SampledFrom([]mirror.Kind{entryKind, entryKind, entryKind, ruleKind, routeKind}).Draw(t, "kind"),
		name:   rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name"),
		host:   rapid.IntRange(0, 2).Draw(t, "host"), age: rapid.IntRange(0, 2).Draw(t, "age"), addr: rapid.IntRange(0, 3).Draw(t, "addr"),
		scope: max(rapid.IntRange(-2, 2).Draw(t, "scope"), 0),
	}
}

// world is a running Aggregate over stores.
type world struct {
	*mirror.Aggregate
	stores  map[string]*mirror.Store
	sources []mirror.Source
	told    map[string]string // what the handlers were told of, by key: the version
	events  int
	touched map[mirror.Key]bool
}

func newWorld(ctx context.Context, t *testing.T, names []string) *world {
	t.Helper()
	return newWorldOf(ctx, t, names, "serve", policies(t))
}

// newWorldOf returns a world with a value of hostConflicts.
func newWorldOf(ctx context.Context, t *testing.T, names []string, conflicts string, policies map[mirror.Kind]mirror.Policy) *world {
	t.Helper()
	owners, err := merge.OwnersByName(conflicts)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Aggregate: mirror.NewAggregate(), stores: map[string]*mirror.Store{}, told: map[string]string{}, touched: map[mirror.Key]bool{}}
	w.SetPolicies(policies, nil)
	w.SetOwners(owners)
	for _, n := range names {
		w.stores[n] = mirror.NewStore()
		w.sources = append(w.sources, mirror.Source{Name: n, Store: w.stores[n]})
	}
	handler := func(c mirror.Change) {
		if !c.Visible() {
			return
		}
		w.events++
		if c.New == nil {
			delete(w.told, c.Key.String())
			return
		}
		w.told[c.Key.String()] = c.New.Version()
	}
	touch := func(c mirror.Change) { w.touched[c.Key] = true }
	w.SetSources(w.sources)
	w.RegisterHandler(handler)
	w.RegisterHandler(touch)
	go w.Run(ctx) //nolint:errcheck // it returns nil
	return w
}

// served is what the merged view has, by key: the version.
func (w *world) served() map[string]string {
	out := map[string]string{}
	for _, kind := range w.Kinds() {
		for _, r := range w.List(kind, "") {
			out[r.Key().String()] = r.Version()
		}
	}
	return out
}

// selected is what those see who see only what accept lets through.
func (w *world) selected(accept func(*mirror.Resource) bool) map[string]string {
	out := map[string]string{}
	for _, kind := range w.SourceKinds() {
		for _, key := range w.Keys(kind) {
			if r := w.Select(key, "", accept); r != nil {
				out[key.String()] = r.Version()
			}
		}
	}
	return out
}

// fresh is what an Aggregate serves that has never had anything else than copies.
func fresh(ctx context.Context, t *testing.T, names []string, conflicts string, copies []copyOf) map[string]string {
	w := newWorldOf(ctx, t, names, conflicts, policies(t))
	for _, c := range copies {
		w.stores[c.source].Put(c.build())
	}
	synctest.Wait()
	return w.served()
}

func differ(what string, got, want map[string]string) error {
	if maps.Equal(got, want) {
		return nil
	}
	return fmt.Errorf("%s: serves\n%v\nwant\n%v", what, got, want)
}

// TestServedResourcesDependOnTheCopiesAlone: not on the order in which they came, nor on what
// was there before. Removing a source gives the merge without it, and who sees a part of
// the copies sees their merge.
func TestServedResourcesDependOnTheCopiesAlone(t *testing.T) {
	names := []string{"east", "west", "north"}
	rapid.Check(t, func(rt *rapid.T) {
		type write struct {
			copyOf
			remove bool
			wait   bool
		}
		var script []write
		for range rapid.IntRange(1, 25).Draw(rt, "writes") {
			script = append(script, write{drawCopy(rt, names), rapid.IntRange(0, 3).Draw(rt, "remove") == 0, rapid.Bool().Draw(rt, "wait")})
		}
		order := rapid.Permutation(names).Draw(rt, "order")
		gone := rapid.SampledFrom(names).Draw(rt, "gone")
		hidden := rapid.SampledFrom(names).Draw(rt, "hidden")
		conflicts := rapid.SampledFrom([]string{"serve", "first", "reject"}).Draw(rt, "hostConflicts")
		shuffle := rapid.Uint64().Draw(rt, "shuffle")
		var errs []error
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			check := func(what string, got, want map[string]string) {
				if err := differ(what, got, want); err != nil {
					errs = append(errs, err)
				}
			}
			w := newWorldOf(ctx, t, names, conflicts, policies(t))
			last := map[string]copyOf{}
			for _, s := range script {
				key := mirror.Key{Kind: s.kind, Namespace: "shop", Name: s.name}
				if s.remove {
					w.stores[s.source].Remove(key)
					delete(last, s.source+key.String())
				} else {
					w.stores[s.source].Put(s.build())
					last[s.source+key.String()] = s.copyOf
				}
				if s.wait {
					synctest.Wait()
				}
			}
			synctest.Wait()
			var copies []copyOf
			keys := slices.Sorted(maps.Keys(last))
			for i := range keys { // in some order
				copies = append(copies, last[keys[(i+int(shuffle%uint64(len(keys))))%len(keys)]])
			}
			only := func(names ...string) (out []copyOf) {
				for _, c := range copies {
					if slices.Contains(names, c.source) {
						out = append(out, c)
					}
				}
				return out
			}
			want := fresh(ctx, t, names, conflicts, copies)
			check("after the writes", w.served(), want)
			check("as the handlers were told", w.told, want)
			check("to those who see everything", w.selected(func(*mirror.Resource) bool { return true }), want)
			seen := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == hidden })
			check("to those who do not see "+hidden, w.selected(func(r *mirror.Resource) bool { return r.Source() != hidden }), fresh(ctx, t, seen, conflicts, only(seen...)))

			reordered := func(order []string) (out []mirror.Source) {
				for _, n := range order {
					out = append(out, mirror.Source{Name: n, Store: w.stores[n]})
				}
				return out
			}
			w.SetSources(reordered(order))
			synctest.Wait()
			check("in another order", w.served(), fresh(ctx, t, order, conflicts, copies))
			left := slices.DeleteFunc(slices.Clone(order), func(n string) bool { return n == gone })
			w.SetSources(reordered(left))
			synctest.Wait()
			want = fresh(ctx, t, left, conflicts, only(left...))
			check("without "+gone, w.served(), want)
			check("as the handlers were told then", w.told, want)
			cancel()
			synctest.Wait()
		})
		for _, err := range errs {
			rt.Error(err)
		}
	})
}

func put(w *world, c copyOf) { w.stores[c.source].Put(c.build()); synctest.Wait() }

// TestUnionOverNamesFollowsEveryChange: one key's resource depends on others.
func TestUnionOverNamesFollowsEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWorld(ctx, t, []string{"east", "west"})
		a, b := mirror.Key{Kind: entryKind, Namespace: "shop", Name: "a"}, mirror.Key{Kind: entryKind, Namespace: "shop", Name: "b"}
		endpoints := func(key mirror.Key) int {
			r := w.Get(key)
			if r == nil {
				return -1
			}
			se := &networking.ServiceEntry{}
			if err := proto.Unmarshal(r.Body().GetValue(), se); err != nil {
				t.Fatal(err)
			}
			return len(se.Endpoints)
		}
		expect := func(what string, wantA, wantB int) {
			t.Helper()
			if gotA, gotB := endpoints(a), endpoints(b); gotA != wantA || gotB != wantB {
				t.Errorf("%s: a has %d endpoints and b %d, want %d and %d (-1: not served)", what, gotA, gotB, wantA, wantB)
			}
		}
		put(w, copyOf{source: "west", kind: entryKind, name: "b", host: 1, addr: 1})
		expect("one alone", -1, 1)
		put(w, copyOf{source: "east", kind: entryKind, name: "a", host: 1, addr: 2})
		expect("the first of the host takes the other in", 2, -1)
		if s := w.Resolve(b); s.MergedInto != a || len(s.Group) != 2 || s.Served != nil {
			t.Errorf("b is settled as %+v", s)
		}
		clear(w.touched)
		w.events = 0
		put(w, copyOf{source: "west", kind: entryKind, name: "b", host: 1, addr: 3})
		if w.events != 1 {
			t.Errorf("an endpoint that changed in one source came as %d events", w.events)
		}
		if !w.touched[a] || !w.touched[b] {
			t.Errorf("touched: %v", w.touched)
		}
		expect("a change of what was taken in", 2, -1)
		put(w, copyOf{source: "west", kind: entryKind, name: "b", host: 2, addr: 3})
		expect("another host", 1, 1)
		put(w, copyOf{source: "west", kind: entryKind, name: "b", host: 1, addr: 3})
		w.stores["east"].Remove(a)
		synctest.Wait()
		expect("the first is gone", -1, 1)
		cancel()
		synctest.Wait()
	})
}

// TestSelectHidesRefusedCopiesWhileTheMergeLags: a copy that has gone may still be merged.
func TestSelectHidesRefusedCopiesWhileTheMergeLags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWorld(ctx, t, []string{"east", "west"})
		put(w, copyOf{source: "east", kind: routeKind, name: "a"})
		key := mirror.Key{Kind: routeKind, Namespace: "shop", Name: "a"}
		w.stores["east"].Remove(key) // and the Aggregate has not been told
		if r := w.Select(key, "", func(r *mirror.Resource) bool { return r.Source() == "west" }); r != nil {
			t.Errorf("those who see west alone are served %s's", r.Source())
		}
		cancel()
		synctest.Wait()
	})
}

// TestAggregateHasSyncedWhenGroupsAreResolved_C21: the initial content is complete once no key has to be
// settled again on account of another.
func TestAggregateHasSyncedWhenGroupsAreResolved_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const pairs = 500
		a, east, west := mirror.NewAggregate(), mirror.NewStore(), mirror.NewStore()
		a.SetPolicies(policies(t), nil)
		a.SetSources([]mirror.Source{{Name: "east", Store: east}, {Name: "west", Store: west}})
		early := 0
		// It is asked in the midst of things, as the server does.
		a.RegisterHandler(func(mirror.Change) {
			if n := len(a.List(entryKind, "")); mirror.IsClosed(a.Synced()) && n != pairs {
				early++
			}
		})
		for i := range pairs {
			east.Put(copyOf{source: "east", kind: entryKind, name: fmt.Sprintf("e%03d", i), host: i, addr: 1}.build())
			west.Put(copyOf{source: "west", kind: entryKind, name: fmt.Sprintf("w%03d", i), host: i, addr: 2}.build())
		}
		east.SetSynced()
		west.SetSynced()
		go a.Run(ctx) //nolint:errcheck // it returns nil
		synctest.Wait()
		if n := len(a.List(entryKind, "")); early > 0 || n != pairs || !mirror.IsClosed(a.Synced()) {
			t.Errorf("synced %d keys too early; in the end %d are served, want %d", early, n, pairs)
		}
		cancel()
		synctest.Wait()
	})
}

// TestThePolicyOfAllOthersIsForUnknownKindsToo, and not for MeshConfig.
func TestThePolicyOfAllOthersIsForUnknownKindsToo_C22(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWorld(ctx, t, []string{"east", "west"})
		w.SetPolicies(nil, merge.Reject{})
		widget := mirror.Kind{Group: "example.com", Kind: "Widget"}
		for _, source := range []string{"east", "west"} {
			for _, key := range []mirror.Key{{Kind: widget, Namespace: "shop", Name: "a"}, {Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}} {
				body := &anypb.Any{TypeUrl: "type.googleapis.com/example.Widget"}
				if key.Kind == mirror.MeshConfig {
					body.TypeUrl = "type.googleapis.com/istio.mesh.v1alpha1.MeshConfig"
				}
				r, err := mirror.New(mirror.Spec{Key: key, Source: source, Body: body})
				if err != nil {
					t.Fatal(err)
				}
				w.stores[source].Put(r)
			}
		}
		synctest.Wait()
		if n := w.Counts(); n[widget] != 0 || n[mirror.MeshConfig] != 1 {
			t.Errorf("served: %v", n)
		}
		cancel()
		synctest.Wait()
	})
}

// TestTooManyKeysOfOneHostAreNotMerged: each change would cost the square of their number.
func TestTooManyKeysOfOneHostAreNotMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newWorld(ctx, t, []string{"east"})
		count := func() int { return len(w.List(entryKind, "")) }
		for i := range 64 {
			put(w, copyOf{source: "east", kind: entryKind, name: fmt.Sprintf("n%02d", i), addr: i})
		}
		if n := count(); n != 1 {
			t.Errorf("of 64 keys of one host %d are served, want one for all", n)
		}
		put(w, copyOf{source: "east", kind: entryKind, name: "x", addr: 99})
		if n := count(); n != 65 {
			t.Errorf("of 65 keys of one host %d are served, want each by itself", n)
		}
		w.stores["east"].Remove(mirror.Key{Kind: entryKind, Namespace: "shop", Name: "n07"})
		synctest.Wait()
		if n := count(); n != 1 {
			t.Errorf("of 64 keys again %d are served, want one for all", n)
		}
		cancel()
		synctest.Wait()
	})
}
