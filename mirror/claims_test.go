package mirror_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// owned tells by the rules which copies are served, each compared with each. order is that of the sources.
func owned(conflicts string, order []string, copies []copyOf) map[string]string {
	place := func(c copyOf) int { return slices.Index(order, c.source) }
	var served []copyOf // of each key, the copy of the first source
	for _, c := range copies {
		if !slices.ContainsFunc(copies, func(o copyOf) bool { return o.kind == c.kind && o.name == c.name && place(o) < place(c) }) {
			served = append(served, c)
		}
	}
	out := map[string]string{}
	for _, c := range served {
		yields := slices.ContainsFunc(served, func(o copyOf) bool {
			return o.source != c.source && o.host == c.host && (o.scope == c.scope || o.scope == 0 || c.scope == 0) &&
				(o.kind == c.kind || o.kind == entryKind) && (conflicts == "reject" || conflicts == "first" && place(o) < place(c))
		})
		if r := c.build(); !yields {
			out[r.Key().String()] = r.Version()
		}
	}
	return out
}

// TestAHostBelongsToOneUpstream: the result is that of comparing every resource with every other one, also for those who
// see a part of the upstreams, and after changes in any order.
func TestAHostBelongsToOneUpstream(t *testing.T) {
	names := []string{"east", "west", "north"}
	rapid.Check(t, func(rt *rapid.T) {
		conflicts := rapid.SampledFrom([]string{"first", "reject"}).Draw(rt, "hostConflicts")
		hidden := rapid.SampledFrom(names).Draw(rt, "hidden")
		var script []copyOf
		for range rapid.IntRange(1, 25).Draw(rt, "writes") {
			script = append(script, drawCopy(rt, names))
		}
		removes, waits := rapid.SliceOfN(rapid.Bool(), 25, 25).Draw(rt, "removes"), rapid.SliceOfN(rapid.Bool(), 25, 25).Draw(rt, "waits")
		var failed []error
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			w := newWorldOf(ctx, t, names, conflicts, nil)
			last := map[string]copyOf{}
			for i, c := range script {
				key := c.build().Key()
				if removes[i] {
					w.stores[c.source].Remove(key)
					delete(last, c.source+key.String())
				} else {
					w.stores[c.source].Put(c.build())
					last[c.source+key.String()] = c
				}
				if waits[i] {
					synctest.Wait()
				}
			}
			synctest.Wait()
			var all, seen []copyOf
			for _, c := range last {
				if all = append(all, c); c.source != hidden {
					seen = append(seen, c)
				}
			}
			if err := differ("all", w.served(), owned(conflicts, names, all)); err != nil {
				failed = append(failed, err)
			}
			if err := differ("without "+hidden, w.selected(func(r *mirror.Resource) bool { return r.Source() != hidden }), owned(conflicts, names, seen)); err != nil {
				failed = append(failed, err)
			}
			cancel()
			synctest.Wait()
		})
		for _, err := range failed {
			rt.Error(err)
		}
	})
}

// TestWhatYieldsSaysToWhom, in the resolution that operators are shown, also where there is one copy.
func TestWhatYieldsSaysToWhom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "first", nil)
		put(w, copyOf{source: "west", kind: routeKind, name: "b", host: 1})
		key := mirror.Key{Kind: routeKind, Namespace: "shop", Name: "b"}
		if w.Get(key) == nil {
			t.Error("alone it is not served")
		}
		put(w, copyOf{source: "east", kind: entryKind, name: "a", host: 1})
		s := w.Resolve(key)
		const want = "host h1.example is also claimed by networking.istio.io/ServiceEntry shop/a from east (hostConflicts: first)"
		if w.Get(key) != nil || s.Served != nil || s.Yields != want || s.Decision.Reason != want || len(s.Copies) != 1 {
			t.Errorf("%+v", s)
		}
		w.SetOwners(nil)
		synctest.Wait()
		if w.Get(key) == nil {
			t.Error("without owners it is not served")
		}
		cancel()
		synctest.Wait()
	})
}

// TestAChangeJudgesThoseOfItsHostsOnly: the looks of a change do not grow with the number of resources, nor with the claims
// of the same source.
func TestAChangeJudgesThoseOfItsHostsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "first", nil)
		for i := range 2000 {
			w.stores["west"].Put(copyOf{source: "west", kind: entryKind, name: fmt.Sprintf("w%04d", i), host: i % 1000}.build())
		}
		synctest.Wait()
		clear(w.touched)
		put(w, copyOf{source: "east", kind: entryKind, name: "e", host: 7})
		if len(w.touched) != 3 || w.Get(mirror.Key{Kind: entryKind, Namespace: "shop", Name: "w0007"}) != nil {
			t.Errorf("%d keys were merged, want e, w0007 and w1007", len(w.touched))
		}
		clear(w.touched)
		put(w, copyOf{source: "west", kind: entryKind, name: "w0008", host: 8, addr: 1})
		if len(w.touched) != 1 {
			t.Errorf("%d keys were merged for a change of one", len(w.touched))
		}
		cancel()
		synctest.Wait()
	})
}

// TestManyClaimsOfOneHostAreBounded: a resource for which too many claims of others would be looked at is not served.
func TestManyClaimsOfOneHostAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "first", nil)
		east := w.stores["east"]
		for i := range 4097 { // nobody sees them and west's
			east.Put(copyOf{source: "east", kind: routeKind, name: fmt.Sprintf("e%04d", i), host: 1, scope: 1}.build())
		}
		put(w, copyOf{source: "west", kind: routeKind, name: "scoped", host: 1, scope: 2})
		if w.Get(mirror.Key{Kind: routeKind, Namespace: "shop", Name: "scoped"}) == nil {
			t.Error("claims of other namespaces are looked at")
		}
		hidden := func(r *mirror.Resource) bool { return r.Source() == "west" }
		put(w, copyOf{source: "west", kind: routeKind, name: "wide", host: 1})
		key := mirror.Key{Kind: routeKind, Namespace: "shop", Name: "wide"}
		if w.Get(key) != nil || w.Select(key, "", hidden) != nil {
			t.Error("it is served although there are too many claims to look at")
		}
		east.Remove(mirror.Key{Kind: routeKind, Namespace: "shop", Name: "e0000"})
		synctest.Wait()
		if w.Get(key) != nil || w.Select(key, "", hidden) == nil {
			t.Error("it is not served to those who do not see east")
		}
		cancel()
		synctest.Wait()
	})
}

// TestClaimsOfManyNamespacesAreCompared, although they are found with those of everyone.
func TestClaimsOfManyNamespacesAreCompared(t *testing.T) {
	owners := claimsOf{}
	many := func(prefix string) (all []string) {
		for i := range 40 {
			all = append(all, fmt.Sprintf("%s%02d", prefix, i))
		}
		return all
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "serve", nil)
		w.SetOwners(owners)
		claims = map[string]mirror.Claims{
			"east/a": {What: []string{"h"}, Scopes: many("a")}, "west/b": {What: []string{"h"}, Scopes: many("b")}, "west/c": {What: []string{"h"}, Scopes: []string{"a07"}},
		}
		for _, name := range []string{"east/a", "west/b", "west/c"} {
			source, name, _ := strings.Cut(name, "/")
			put(w, copyOf{source: source, kind: entryKind, name: name})
		}
		if got := len(w.List(entryKind, "")); got != 2 || w.Get(mirror.Key{Kind: entryKind, Namespace: "shop", Name: "c"}) != nil {
			t.Errorf("%d are served, want a and b", got)
		}
		cancel()
		synctest.Wait()
	})
}

// TestRivalsOfTheCopyThatIsNoLongerServedAreJudged, although another source has changed its copy.
func TestRivalsOfTheCopyThatIsNoLongerServedAreJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"west", "north"}, "reject", policies(t)) // of VirtualServices, the newest copy is served
		put(w, copyOf{source: "west", kind: routeKind, name: "a"})
		put(w, copyOf{source: "west", kind: routeKind, name: "b"})
		put(w, copyOf{source: "north", kind: routeKind, name: "b", age: 1})
		if n := len(w.List(routeKind, "")); n != 0 {
			t.Errorf("%d are served of two sources that claim one host", n)
		}
		put(w, copyOf{source: "west", kind: routeKind, name: "b", age: 2})
		if n := len(w.List(routeKind, "")); n != 2 {
			t.Errorf("%d are served, want both of west", n)
		}
		cancel()
		synctest.Wait()
	})
}

// TestScopesToCompareAreBounded: where so many claims have so many scopes, the resource is not served.
func TestScopesToCompareAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "serve", nil)
		w.SetOwners(claimsOf{})
		many := make([]string, 20_000)
		for i := range many {
			many[i] = fmt.Sprintf("b%05d", i)
		}
		claims = map[string]mirror.Claims{"west/b": {What: []string{"h"}, Scopes: many}}
		for i := range 5 {
			name := fmt.Sprintf("e%d", i)
			claims["east/"+name] = mirror.Claims{What: []string{"h"}, Scopes: []string{"c"}}
			put(w, copyOf{source: "east", kind: entryKind, name: name})
			put(w, copyOf{source: "west", kind: entryKind, name: "b", addr: i})
			if served := w.Get(mirror.Key{Kind: entryKind, Namespace: "shop", Name: "b"}) != nil; served != (i < 3) {
				t.Errorf("with %d claims to compare with, served: %v", i+1, served)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// claims are those that claimsOf returns, by source/name.
var claims map[string]mirror.Claims

type claimsOf struct{}

func (claimsOf) Claims(r *mirror.Resource, _ func(mirror.Key) []string) mirror.Claims {
	return claims[r.Source()+"/"+r.Key().Name]
}
func (claimsOf) Owns(mirror.Kind) bool     { return true }
func (claimsOf) Yielding() mirror.Yielding { return mirror.LaterYield }
func (claimsOf) Yields(kind, to mirror.Kind) bool {
	return kind == to && kind == federation.ServiceEntry
}
func (claimsOf) Reason(_ *mirror.Resource, what string) string { return what }

// TestWhatIsUnitedIsNoConflict: the resources of one host that a union makes one, and copies of one key.
func TestWhatIsUnitedIsNoConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorldOf(ctx, t, []string{"east", "west"}, "reject", policies(t))
		a, b := mirror.Key{Kind: entryKind, Namespace: "shop", Name: "a"}, mirror.Key{Kind: entryKind, Namespace: "shop", Name: "b"}
		put(w, copyOf{source: "east", kind: entryKind, name: "a", host: 1, addr: 1})
		put(w, copyOf{source: "west", kind: entryKind, name: "a", host: 1, addr: 2})
		put(w, copyOf{source: "west", kind: entryKind, name: "b", host: 1, addr: 3})
		if s := w.Resolve(b); w.Get(a) == nil || s.MergedInto != a || s.Yields != "" {
			t.Errorf("a is %v, b %+v", w.Get(a), s)
		}
		put(w, copyOf{source: "west", kind: entryKind, name: "b", host: 1, scope: 1, addr: 3})
		if s := w.Resolve(a); s.Yields == "" || w.Get(b) != nil {
			t.Errorf("a resource that is not united is served: %+v", s)
		}
		cancel()
		synctest.Wait()
	})
}
