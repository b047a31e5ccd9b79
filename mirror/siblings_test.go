package mirror_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

// TestASiblingComesFromTheSourcesOfItsService: with each policy, in any order, also for those who see a part of the upstreams.
func TestASiblingComesFromTheSourcesOfItsService(t *testing.T) {
	const name = "synthetic-web"
	sibling := func(source, suffix string) *mirror.Resource {
		s := copyOf{source: source, kind: entryKind, name: name + suffix, host: 1, addr: 1}.build().Spec()
		s.Annotations = map[string]string{mirror.SiblingAnnotation: name}
		r, err := mirror.New(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for policy, want := range map[string]string{"first": "east/synthetic-web east/synthetic-web-00000001", "newest": "west/synthetic-web west/synthetic-web-00000002", "reject": "", "union": "east/synthetic-web east/synthetic-web-00000001 west/synthetic-web-00000002"} {
		for _, conflicts := range []string{"serve", "first", "reject"} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				p, err := merge.ByName(policy, entryKind)
				if err != nil {
					t.Fatal(err)
				}
				w := newWorldOf(ctx, t, []string{"east", "west"}, conflicts, map[mirror.Kind]mirror.Policy{entryKind: merge.ForEntries(p)})
				w.stores["west"].Put(sibling("west", "-00000002"))
				synctest.Wait()
				w.stores["east"].Put(sibling("east", "-00000001"))
				put(w, copyOf{source: "west", kind: entryKind, name: name, host: 1, addr: 2, age: 1})
				put(w, copyOf{source: "east", kind: entryKind, name: name, host: 1, addr: 1})
				shows := func(what, want string, get func(mirror.Key) *mirror.Resource) {
					t.Helper()
					var got []string
					for _, key := range w.Keys(entryKind) {
						if r := get(key); r != nil {
							got = append(got, r.Source()+"/"+r.Key().Name)
						}
					}
					if have := strings.Join(got, " "); have != want {
						t.Errorf("%s, hostConflicts %s, %s: %q, want %q", policy, conflicts, what, have, want)
					}
				}
				const west = "west/synthetic-web west/synthetic-web-00000002"
				shows("both", want, w.Get)
				shows("a view of west", west, func(key mirror.Key) *mirror.Resource {
					return w.Select(key, "", func(r *mirror.Resource) bool { return r.Source() == "west" })
				})
				if told := len(w.told); told != len(strings.Fields(want)) {
					t.Errorf("%s: handlers know %v", policy, slices.Collect(maps.Keys(w.told)))
				}
				w.stores["east"].Remove(mirror.Key{Kind: entryKind, Namespace: "shop", Name: name})
				w.stores["east"].Remove(mirror.Key{Kind: entryKind, Namespace: "shop", Name: name + "-00000001"})
				synctest.Wait()
				shows("without east", west, w.Get)
				cancel()
				synctest.Wait()
			})
		}
	}
}
