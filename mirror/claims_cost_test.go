package mirror

import "testing"

// oneHost is Owners of resources that all claim one host.
type oneHost struct{}

func (oneHost) Claims(*Resource, func(Key) []string) Claims { return Claims{What: []string{"h"}} }
func (oneHost) OnlyEarlier() bool                           { return true }
func (oneHost) Yields(_, _ Kind) bool                       { return true }
func (oneHost) Reason(_, _ *Resource, _ string) string      { return "taken" }

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
