package snapshot

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// se returns a ServiceEntry for a host.
func se(namespace, name, host string) *mirror.Resource {
	body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{host}})
	if err != nil {
		panic(err)
	}
	key := mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: namespace, Name: name}
	return must(mirror.New(mirror.Spec{Key: key, Source: "east", Body: body}))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// filled returns a collection of resources named s-000000 and on.
func filled(size int) *Collection {
	c := New()
	updates := make([]Update, 0, size)
	for i := range size {
		res := se("shop", fmt.Sprintf("s-%06d", i), "x")
		updates = append(updates, Update{res.FullName(), res})
	}
	c.Apply(updates, time.Now())
	return c
}

func content(s *Snapshot) map[string]string {
	out := map[string]string{}
	last := ""
	s.Each(func(r Item) {
		if r.FullName() <= last {
			panic("names are not sorted: " + last + " " + r.FullName())
		}
		last = r.FullName()
		out[r.FullName()] = r.Version()
	})
	return out
}

func applyDifference(holds map[string]string, d *Difference) {
	for _, b := range d.Changed {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(b.ReadOnlyData(), m); err != nil {
			panic(err)
		}
		holds[m.Resources[0].Name] = m.Resources[0].Version
	}
	for _, name := range d.Removed {
		delete(holds, name)
	}
}

// TestApplyingOneChangeDoesNotDependOnHowMuchThereIs: neither its allocations, nor, but
// for the list of pages, their bytes.
func TestApplyingOneChangeDoesNotDependOnHowMuchThereIs(t *testing.T) {
	allocs := func(size int) float64 {
		c := filled(size)
		two := []*mirror.Resource{se("shop", "s-000500", "y"), se("shop", "s-000500", "z")}
		i := 0
		return testing.AllocsPerRun(50, func() {
			i++
			if !c.Apply([]Update{{"shop/s-000500", two[i%2]}}, time.Time{}) {
				t.Fatal("no change")
			}
		})
	}
	few, many := allocs(1000), allocs(50_000)
	if many > few+1 || many > 12 {
		t.Errorf("one change costs %v allocations among 1,000 and %v among 50,000", few, many)
	}
}

// TestClientsAtOneCursorShareTheDifference: it is worked out once, whatever their number.
func TestClientsAtOneCursorShareTheDifference(t *testing.T) {
	c := filled(1000)
	from := c.Current().Rev
	c.Apply([]Update{{"shop/s-000500", se("shop", "s-000500", "y")}}, time.Now())
	s := c.Current()
	first, ok := s.Since(from)
	if !ok || len(first.Changed) != 1 {
		t.Fatalf("difference %+v, %v", first, ok)
	}
	if n := testing.AllocsPerRun(10, func() {
		if again, _ := s.Since(from); again != first {
			t.Fatal("another")
		}
	}); n != 0 {
		t.Errorf("%v allocations for the next client", n)
	}
}

// TestASotWClientMoreCostsOneList: of the pages, which are encoded and wrapped once for all.
func TestASotWClientMoreCostsOneList(t *testing.T) {
	s := filled(5000).Current()
	for form := range Forms {
		s.Frames(form, func(int) {})
		if n := testing.AllocsPerRun(10, func() { s.Frames(form, nil) }); n != 1 || len(s.Pages) < 10 {
			t.Errorf("%v allocations for %d pages in the form %d", n, len(s.Pages), form)
		}
	}
}

// TestClientsAtOneCursorShareOnePiece: unless a message has no room for that.
func TestClientsAtOneCursorShareOnePiece(t *testing.T) {
	c := filled(1000)
	from := c.Current().Rev
	var updates []Update
	for i := range 10 {
		name := fmt.Sprintf("s-%06d", i)
		updates = append(updates, Update{"shop/" + name, se("shop", name, "y")})
	}
	c.Apply(updates, time.Now())
	s := c.Current()
	alone, _ := s.Since(from)
	if n := len(alone.Entries(1 << 20)); n != 10 {
		t.Errorf("a client that nobody follows is sent %d pieces", n)
	}
	second, _ := s.Since(from)
	third, _ := s.Since(from)
	piece := second.Entries(1 << 20)
	if len(piece) != 1 || &third.Entries(1 << 20)[0].ReadOnlyData()[0] != &piece[0].ReadOnlyData()[0] {
		t.Errorf("%d pieces, or the next client has another", len(piece))
	}
	if got, want := piece.Materialize(), alone.Changed.Materialize(); !bytes.Equal(got, want) || len(got) != second.Bytes {
		t.Errorf("%d bytes in one piece differ from %d in ten", len(got), len(want))
	}
	if n := len(second.Entries(second.Bytes - 1)); n != 10 {
		t.Errorf("%d pieces for messages that have no room for one", n)
	}
}

func BenchmarkApplyOneChange(b *testing.B) {
	for _, size := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := filled(size)
			two := []*mirror.Resource{se("shop", "s-000500", "y"), se("shop", "s-000500", "z")}
			runtime.GC()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Apply([]Update{{"shop/s-000500", two[i%2]}}, time.Now())
			}
		})
	}
}

// TestRemovalsAreRememberedByName: names that come and go for ever are no more to remember
// than the names, and who was away for all of it is still told what has gone.
func TestRemovalsAreRememberedByName(t *testing.T) {
	c := New()
	c.Keep = Memory{Changes: 64, Removals: 1024}
	const names = 100
	put := func(i int, host string) Update {
		res := se("shop", fmt.Sprintf("s-%06d", i), host)
		return Update{res.FullName(), res}
	}
	for i := range names {
		c.Apply([]Update{put(i, "first.example")}, time.Now())
	}
	away := c.Current()
	for i := range 50 * names {
		u := put(i%names, "again.example")
		c.Apply([]Update{{Name: u.Name}}, time.Now())
		if i < 50*names-names/2 { // the last ones stay away
			c.Apply([]Update{u}, time.Now())
		}
	}
	s := c.Current()
	if most := 2*names + c.Keep.Removals/64 + 1; len(s.removed) > most {
		t.Errorf("%d removals of %d names are remembered, want %d at most", len(s.removed), names, most)
	}
	d, ok := s.Since(away.Rev)
	if !ok {
		t.Fatal("who was away is too far behind")
	}
	holds := content(away)
	applyDifference(holds, d)
	if want := content(s); !maps.Equal(holds, want) {
		t.Errorf("who was away holds %d, want %d", len(holds), len(want))
	}
	if got := len(d.Removed); got != names/2 {
		t.Errorf("%d names are removed, want %d", got, names/2)
	}
}

// TestClientsThatComeTogetherShareEverything: also the list of it, which takes 40 bytes for each item.
func TestClientsThatComeTogetherShareEverything(t *testing.T) {
	s := filled(50_000).Current()
	got := make([]*Difference, 8)
	var clients sync.WaitGroup
	for i := range got {
		clients.Go(func() { got[i] = s.Everything() })
	}
	clients.Wait()
	for i, d := range got {
		if d != got[0] || !s.IsEverything(d) || len(d.Changed) != 50_000 {
			t.Fatalf("client %d has a list of its own, of %d", i, len(d.Changed))
		}
	}
}

// TestPagesHoldAnEntryForEachItem: an item and its revision, and no item twice.
func TestPagesHoldAnEntryForEachItem(t *testing.T) {
	const n = 20_000
	var updates []Update
	for i := range n {
		res := se("shop", fmt.Sprintf("s-%06d", i), "x")
		updates = append(updates, Update{res.FullName(), res})
	}
	live := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := live()
	c := New()
	for part := range slices.Chunk(updates, 4096) {
		c.Apply(part, time.Now())
	}
	// The log of the last changes is there, however many items there are.
	held := live() - before - cap(c.Current().Log)*int(unsafe.Sizeof(Change{}))
	runtime.KeepAlive(updates)
	t.Logf("%d bytes for each item", held/n)
	if held/n > 32 {
		t.Errorf("%d bytes for each item", held/n)
	}
}
