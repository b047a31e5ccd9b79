package conflicts

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// numbered returns n names.
func numbered(prefix, suffix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d%s", prefix, i, suffix)
	}
	return out
}

// allocated returns what f allocates, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// noted counts what is kept of hosts and of the namespaces that see them.
func (h *Hosts) noted() int {
	n := len(h.single)
	for _, e := range h.multi {
		n += 1 + len(e.scopes)
	}
	return n
}

func TestCostOfAConfigGrowsWithItsHostsPlusItsNamespaces(t *testing.T) {
	hosts, namespaces := numbered("h", ".example", 2000), numbered("ns", "", 2000)
	h := NewHosts((&clock{monday}).now)
	one := serviceClaim(t, "a", "x", nil, namespaces, hosts...)
	two := serviceClaim(t, "a", "y", nil, namespaces, hosts...)
	cost := allocated(func() {
		h.Update(nil, one)
		h.Update(nil, two)
		h.Conflicts()
		h.Update(two, nil)
	})
	if cost > 4<<20 {
		t.Errorf("2,000 hosts for 2,000 namespaces cost %d bytes", cost)
	}
	if n := h.noted(); n > len(hosts)+len(namespaces) {
		t.Errorf("%d entries are kept", n)
	}
}

func TestConfigAboveTheCapIsReportedAsNotFollowed(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	wide := serviceClaim(t, "a", "x", nil, numbered("ns", "", 65), numbered("h", ".example", 64)...)
	fits := serviceClaim(t, "a", "x", nil, numbered("ns", "", 64), numbered("h", ".example", 64)...)
	other := serviceClaim(t, "b", "y", nil, nil, "h1.example")
	h.Update(nil, other)
	h.Update(nil, wide)
	want := []NotFollowed{{wide.Key(), "west", 64, 65, tooMany}}
	if d := cmp.Diff(want, h.NotFollowed()); d != "" || len(h.Conflicts()) > 0 {
		t.Errorf("%v\n%s", brief(h.Conflicts()), d)
	}
	h.Update(wide, fits)
	if len(h.NotFollowed()) > 0 || len(h.Conflicts()) != 1 {
		t.Errorf("below the cap: %v, not followed %v", brief(h.Conflicts()), h.NotFollowed())
	}
	h.Update(fits, wide)
	if len(h.NotFollowed()) != 1 || len(h.Conflicts()) > 0 {
		t.Errorf("above it again: %v, not followed %v", brief(h.Conflicts()), h.NotFollowed())
	}
	h.Update(wide, nil)
	h.Update(other, nil)
	if n := h.noted(); n+len(h.NotFollowed()) > 0 || h.scoped != 0 {
		t.Errorf("%d entries are left, %d counted", n, h.scoped)
	}
}

// Many configs below the cap must not do together what one above it can not.
func TestScopedClaimsOfAllResourcesAreBounded(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	h.maxScoped = 4 * maxClaims
	var all []*mirror.Resource
	for i := range 40 {
		hosts := numbered(fmt.Sprintf("h%d-", i/2), ".example", 64)
		r := serviceClaim(t, "a", fmt.Sprint("x", i), nil, numbered("ns", "", 64), hosts...)
		h.Update(nil, r)
		all = append(all, r)
	}
	if h.scoped > h.maxScoped {
		t.Errorf("%d is noted, and %d is the bound", h.scoped, h.maxScoped)
	}
	skipped := len(h.NotFollowed())
	if skipped == 0 || skipped == len(all) || len(h.Conflicts()) == 0 {
		t.Fatalf("%d of %d are not followed, %d conflicts", skipped, len(all), len(h.Conflicts()))
	}
	// With room they are followed as soon as they change.
	h.maxScoped = 1 << 20
	for _, r := range all {
		h.Update(r, r)
	}
	if n := len(h.NotFollowed()); n > 0 || len(h.Conflicts()) != 20*64 {
		t.Errorf("%d are not followed yet, and there are %d conflicts", n, len(h.Conflicts()))
	}
	for _, r := range all {
		h.Update(r, nil)
	}
	if n := h.noted(); n > 0 || h.scoped != 0 {
		t.Errorf("%d entries are left, %d counted", n, h.scoped)
	}
}

func TestScopeHoldsItsClaimsByKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s scope
		have := map[string]*claimant{}
		names := rapid.SliceOfN(rapid.IntRange(0, 2000), 0, 3000).Draw(t, "names")
		for _, i := range names {
			c := &claimant{namespace: "a", name: fmt.Sprintf("%04d", i), sum: uint64(i)}
			if have[c.name] != nil {
				if !s.drop(c) {
					t.Fatalf("%s is not there", c.name)
				}
				delete(have, c.name)
				continue
			}
			if s.drop(c) {
				t.Fatalf("%s is there", c.name)
			}
			s.insert(c)
			have[c.name] = c
		}
		var want []*claimant
		sum := uint64(0)
		for _, name := range slices.Sorted(maps.Keys(have)) {
			want, sum = append(want, have[name]), sum^have[name].sum
		}
		if !slices.Equal(s.claims, want) || s.sum != sum {
			t.Fatalf("%d claims, want %d", len(s.claims), len(want))
		}
	})
}

func TestCountsAreThoseOfTheConflicts(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	for i := range 4 {
		h.Update(nil, entryClaim(t, "a", fmt.Sprint("x", i), []string{".", fmt.Sprint("b", i/2)}, "db.example"))
		h.Update(nil, serviceClaim(t, "a", fmt.Sprint("x", i), nil, nil, "w.example", fmt.Sprint("w", i, ".example")))
	}
	want := map[mirror.Kind]int{}
	for _, c := range h.Conflicts() {
		want[c.Kind]++
	}
	if d := cmp.Diff(want, h.Counts()); d != "" || len(want) != 2 {
		t.Error(d)
	}
}

func TestHostsHoldsOnToNoResourceThatIsGone(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	many := numbered("h", ".example", 128)
	for range 2 {
		one, two := serviceClaim(t, "a", "x", nil, []string{"b", "c"}, many...), serviceClaim(t, "a", "y", []string{"mesh"}, []string{"b", "c"}, many...)
		h.Update(nil, one)
		h.Update(nil, two)
		for key, e := range h.multi {
			for _, s := range e.scopes {
				for _, c := range s.claims {
					if c.hosts != nil {
						t.Fatalf("the claims of %s hold all hosts of %s", key.host, c.name)
					}
				}
			}
		}
		h.Update(two, nil)
		h.Update(one, nil)
		if len(h.single) != 0 || len(h.multi) != 0 || h.scoped != 0 {
			t.Fatalf("%d and %d hosts are left, with %d namespaces", len(h.single), len(h.multi), h.scoped)
		}
	}
}

// TestPublicClaimTouchesTheConflictsThatItEnds: of 1,000 namespaces, only two have one.
func TestPublicClaimTouchesTheConflictsThatItEnds(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	for i := range 1000 {
		h.Update(nil, entryClaim(t, fmt.Sprint("ns", i), "x", []string{"."}, "db.example"))
	}
	for _, ns := range []string{"ns1", "ns2"} {
		h.Update(nil, entryClaim(t, ns, "y", []string{"."}, "db.example"))
	}
	all := h.multi[hostKey{federation.ServiceEntry, "db.example"}]
	crowded := func() []string { return slices.Sorted(maps.Keys(all.crowded)) }
	if got := crowded(); !slices.Equal(got, []string{"ns1", "ns2"}) {
		t.Fatalf("%v have several claims", got)
	}
	public := entryClaim(t, "a", "z", nil, "db.example")
	ended := func(all []HostConflict) (n int) {
		for _, c := range all {
			if c.Ended {
				n++
			}
		}
		return n
	}
	for range 2 {
		if got := h.Update(nil, public); len(got) != 3 || ended(got) != 2 {
			t.Errorf("%d conflicts change with the first public claim, and %d end", len(got), ended(got))
		}
		if got := h.Update(public, nil); len(got) != 3 || ended(got) != 1 {
			t.Errorf("%d conflicts change with the end of the last public claim, and %d end", len(got), ended(got))
		}
	}
	h.Update(entryClaim(t, "ns1", "y", []string{"."}, "db.example"), nil)
	h.Update(entryClaim(t, "ns2", "x", []string{"."}, "db.example"), nil)
	if got := crowded(); len(got) != 0 {
		t.Errorf("%v have several claims after their end", got)
	}
}
