package mirror

import (
	"runtime"
	"testing"
)

// held returns the bytes of what make makes and holds.
func held(make func() any) int {
	live := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what is in a pool goes with the second one
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := live()
	kept := make()
	after := live()
	runtime.KeepAlive(kept)
	return after - before
}

// TestStoreAndMergedViewHoldAPlaceForEachResource: a name, a pointer, and the room of a map that is
// half full at worst. The resource itself is held once.
func TestStoreAndMergedViewHoldAPlaceForEachResource(t *testing.T) {
	const n = 20_000
	f := newFleet(t, 4, n)
	stores := held(func() any { f.putAll(); return f })
	f.merge()
	t.Logf("%d bytes in a store", stores/n)
	// What waited to be merged is garbage now.
	if stores/n > 200 {
		t.Errorf("a resource costs %d bytes in a store and while it waits", stores/n)
	}
	again := newFleet(t, 4, n)
	both := held(func() any { again.putAll(); again.merge(); return again })
	t.Logf("%d bytes in a store and in the merged view", both/n)
	if both/n > 110 {
		t.Errorf("a resource costs %d bytes in a store and in the merged view", both/n)
	}
}

func TestQueueHoldsOneRoomForAllThatWait(t *testing.T) {
	q, s := newQueue(), NewStore()
	f := newFleet(t, 1, keptRoom/2)
	for range 3 { // a burst leaves its room to the next one
		for _, r := range f.resources[0] {
			q.mark(r.ref(), s)
		}
		for len(q.pop(make([]change, 0, batchLen))) > 0 {
		}
		if c := cap(q.order); c < len(f.resources[0]) || c > keptRoom {
			t.Fatalf("room for %d after %d", c, len(f.resources[0]))
		}
	}
	// One that comes while others wait takes the room of those that do not wait any more.
	all := f.resources[0]
	for i := range 100 * len(all) {
		q.mark(all[i%len(all)].ref(), s)
		if got := q.pop(make([]change, 0, 1)); i%2 == 0 && len(got) != 1 {
			t.Fatal("nothing waits")
		}
		q.mark(all[(i+1)%len(all)].ref(), s)
	}
	if c := cap(q.order); c > 2*keptRoom {
		t.Errorf("room for %d, and at most %d wait", c, len(all))
	}
}
