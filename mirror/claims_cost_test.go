package mirror

import (
	"fmt"
	"testing"

	"meshrelay/internal/wire"
)

// oneHost is Owners of resources that all claim one host.
type oneHost struct{}

func (oneHost) Claims(*Resource, func(Key) []string) Claims { return Claims{What: []string{"h"}} }
func (oneHost) Owns(Kind) bool                              { return true }
func (oneHost) Yielding() Yielding                          { return LaterYield }
func (oneHost) Yields(_, _ Kind) bool                       { return true }
func (oneHost) Reason(_ *Resource, _ string) string         { return "taken" }

// TestClaimsThatChangeTogetherAreQueuedOnceInABatch: two sources that change all their claims of one host cost the sum of
// their claims for each batch, and not the product.
func TestClaimsThatChangeTogetherAreQueuedOnceInABatch(t *testing.T) {
	const keys = 4000
	f := newFleet(t, 2, keys)
	f.SetOwners(oneHost{})
	f.putAll()
	f.merge()
	for i, s := range f.sources {
		for _, r := range f.resources[i] {
			s.Store.Put(entry(t, s.Name, r.Key().Name, "other.example"))
		}
	}
	f.claims.marks = 0
	if n := f.merge(); n > 3*keys {
		t.Errorf("%d keys were merged for %d that changed", n, keys)
	}
	if batches := 3 * keys / batchLen; f.claims.marks > batches*keys {
		t.Errorf("keys were queued %d times, want %d at most", f.claims.marks, batches*keys)
	}
	if n := len(f.List(f.resources[0][0].Key().Kind, "")); n != keys/2 {
		t.Errorf("%d are served, want those of the first source", n)
	}
}

// ownHosts is Owners of the hosts of ServiceEntries, all of which are served.
type ownHosts struct{ oneHost }

func (ownHosts) Claims(r *Resource, _ func(Key) []string) Claims {
	return Claims{What: wire.Texts(r.BodyValue(), entryHosts)}
}
func (ownHosts) Yielding() Yielding { return NoneYields }

// TestAClaimThatDecidesNothingCostsItsOwn: no other key is queued or looked at, of however many that claim the same host, and
// a change that keeps the claims costs no place in the index.
func TestAClaimThatDecidesNothingCostsItsOwn(t *testing.T) {
	var costs []float64
	for _, n := range []int{100, 10_000} {
		f := newFleet(t, 1, n)
		f.SetOwners(ownHosts{})
		f.putAll()
		f.merge()
		store, merged, looks := f.sources[0].Store, 0, 0
		changes := []*Resource{entry(t, "cluster-0", "e7", "e.example"), f.resources[0][7], entry(t, "cluster-0", "e7", "other.example")}
		spec := changes[0].Spec()
		spec.Labels = map[string]string{"a": "b"}
		changes[0], _ = New(spec)
		costs = append(costs, testing.AllocsPerRun(10, func() {
			for _, r := range changes {
				looks += f.looks(func() { store.Put(r); merged += f.merge() })
			}
		}))
		if f.claims.marks > 0 || merged != 33 || looks > 12*merged {
			t.Errorf("%d keys are queued and %d merged for 33 changes of one, with %d looks into the store", f.claims.marks, merged, looks)
		}
		if all := f.Contests(false); len(all) != 1 || len(all[0].Claims) != n-1 {
			t.Errorf("%d contests, want one of all others", len(all))
		}
	}
	if costs[1] > costs[0]+1 {
		t.Errorf("a change costs %v allocations among 100 claims, %v among 10,000", costs[0], costs[1])
	}
}

// TestTheIndexHoldsAPlaceForEachClaim.
func TestTheIndexHoldsAPlaceForEachClaim(t *testing.T) {
	const n = 20_000
	f := newFleet(t, 1, n)
	for i, r := range f.resources[0] {
		f.resources[0][i] = entry(t, r.Source(), r.Key().Name, fmt.Sprintf("e%d.example", i))
	}
	f.putAll()
	f.merge()
	index := held(func() any { f.SetOwners(ownHosts{}); f.merge(); return f })
	t.Logf("%d bytes for each", index/n)
	if index/n > 200 {
		t.Errorf("a claim costs %d bytes", index/n)
	}
}
