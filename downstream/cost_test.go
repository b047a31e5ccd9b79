package downstream

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"meshrelay/mirror"
)

// What things cost, counted: allocations, bytes, pages and what stays alive. No test
// here looks at a clock.

// TestOneChangeEncodesOnePage: for all clients and API versions together.
func TestOneChangeEncodesOnePage(t *testing.T) {
	r := startRelay(t, true)
	r.put(many(10000, "s-%05d", func(i int) string { return fmt.Sprintf("s%d.example", i) })...)
	var clients []*sotwStream
	for _, typeURL := range []string{seV1, seV1, seV1, seV1beta1, seV1alpha3, seV1alpha3} {
		s := r.sotw()
		s.send(subscribe(typeURL))
		for len(s.next().Resources) < 10000 {
		}
		clients = append(clients, s)
	}
	before := testutil.ToFloat64(r.server.metrics.pages)
	r.put(se("shop", "s-05000", "new.example"))
	for _, s := range clients {
		s.next()
	}
	if n := testutil.ToFloat64(r.server.metrics.pages) - before; n != 1 {
		t.Errorf("one change of 10,000 resources encoded %v pages for 6 clients", n)
	}
}

// TestDeltaPushIsTheResourceAndALittle: what one change costs each client on the wire
// does not depend on how much there is.
func TestDeltaPushIsTheResourceAndALittle(t *testing.T) {
	r := startRelay(t, true)
	r.put(many(2000, "s-%05d", func(i int) string { return fmt.Sprintf("s%d.example", i) })...)
	d := r.delta()
	d.send(subscribeDelta(seV1))
	for n := 0; n < 2000; {
		n += len(d.next().Resources)
	}
	changed := se("shop", "s-01000", "new.example")
	r.put(changed)
	resp := d.next()
	if overhead := proto.Size(resp) - len(changed.Frame()); len(resp.Resources) != 1 || overhead > 130 {
		t.Errorf("%d resources with %d bytes besides the resource's %d", len(resp.Resources), overhead, len(changed.Frame()))
	}
}

func TestUnchangedPlanCostsNoAllocation(t *testing.T) {
	c := filled(10000)
	w := &watch{typeURL: seV1, wildcard: true, owed: true, all: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
	if _, _, err := w.planDelta(c.current.Load(), nil); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { w.planDelta(c.current.Load(), nil) }); n != 0 { //nolint:errcheck // it can not fail
		t.Errorf("%v allocations to find that nothing has changed", n)
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
			if !c.apply([]update{{"shop/s-000500", two[i%2]}}, time.Time{}) {
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
	from := c.current.Load().rev
	c.apply([]update{{"shop/s-000500", se("shop", "s-000500", "y")}}, time.Now())
	s := c.current.Load()
	first, ok := s.since(from)
	if !ok || len(first.changed) != 1 {
		t.Fatalf("difference %+v, %v", first, ok)
	}
	if n := testing.AllocsPerRun(10, func() {
		if again, _ := s.since(from); again != first {
			t.Fatal("another")
		}
	}); n != 0 {
		t.Errorf("%v allocations for the next client", n)
	}
}

// TestClientsThatComeTogetherShareTheFirstResponse: each costs a stream, and no list of
// all that there is.
func TestClientsThatComeTogetherShareTheFirstResponse(t *testing.T) {
	c := filled(1000)
	s := c.current.Load()
	open := func() *message {
		w := &watch{typeURL: seV1, wildcard: true, owed: true, all: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
		st, ok, err := w.planDelta(s, []byte("relay"))
		if !ok || err != nil || st.opening == nil {
			t.Fatalf("step %+v, %v, %v", st, ok, err)
		}
		return st.opening
	}
	if first := open(); open() != first || len(first.buffers) != 1001 {
		t.Errorf("%d buffers, or not the same for the next client", len(first.buffers))
	}
}

// TestNoncesAreUniqueOnAStream_S15: also those of first responses, which all clients have
// in common.
func TestNoncesAreUniqueOnAStream_S15(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"), dr("shop", "a", "a.example"))
	d := r.delta()
	seen := map[string]string{}
	note := func() {
		resp := d.next()
		if other, again := seen[resp.Nonce]; again || resp.Nonce == "" {
			t.Errorf("%s has the nonce %q, as %q had", resp.TypeUrl, resp.Nonce, other)
		}
		seen[resp.Nonce] = resp.TypeUrl
	}
	for _, typeURL := range []string{seV1, seV1alpha3, drV1, vsV1, "example.com/v1/Widget"} {
		d.send(subscribeDelta(typeURL))
		note()
	}
	for i := range 3 {
		r.put(dr("shop", "a", fmt.Sprintf("%d.example", i)))
		note()
	}
}

// TestClientThatDoesNotReadKeepsNothingAlive: but the bytes of the message that it is
// being sent.
func TestClientThatDoesNotReadKeepsNothingAlive(t *testing.T) {
	for _, protocol := range []string{protocolSotW, protocolDelta} {
		t.Run(protocol, func(t *testing.T) {
			r := startRelay(t, true)
			const n = 2000
			filler := strings.Repeat("x", 1000)
			var old []weak.Pointer[mirror.Resource] // all but the last
			put := func(round int) {
				resources := many(n, "s-%04d", func(int) string { return filler + fmt.Sprint(round) })
				for _, res := range resources {
					old = append(old, weak.Make(res))
				}
				r.put(resources...)
			}
			put(0)
			if protocol == protocolSotW {
				r.stalled(seV1)
			} else {
				r.stalledDelta(seV1)
			}
			eventually(t, "a response is on its way", func() bool {
				c := r.server.Clients()
				return len(c) == 1 && len(c[0].Types) == 1 && c[0].Types[0].Pushes == 1
			})
			for round := range 3 { // the transport takes one response more than it can send
				put(round + 1)
			}
			old = old[:len(old)-n]
			eventually(t, "what is no longer served is garbage", func() bool {
				runtime.GC()
				alive := 0
				for _, p := range old {
					if p.Value() != nil {
						alive++
					}
				}
				return alive == 0
			})
		})
	}
}

// TestEncodedPagesGoWithTheLastSotWClient: they hold the resources a second time.
func TestEncodedPagesGoWithTheLastSotWClient(t *testing.T) {
	r := startRelay(t, true)
	r.put(many(1000, "s-%03d", func(int) string { return "x" })...)
	encoded := func() (n int) {
		for _, p := range r.view().snapshot(kindSE).pages {
			if p.encoded.Load() != nil {
				n++
			}
		}
		return n
	}
	d := r.delta()
	d.send(subscribeDelta(seV1))
	d.next()
	if n := encoded(); n != 0 {
		t.Errorf("%d pages are encoded, for delta clients alone", n)
	}
	one, two := r.sotw(), r.sotw()
	for _, s := range []*sotwStream{one, two} {
		s.send(subscribe(seV1))
		s.next()
	}
	one.cancel()
	eventually(t, "one client is gone", func() bool { return len(r.server.Clients()) == 2 })
	if encoded() == 0 {
		t.Error("nothing is encoded, with a SotW client there")
	}
	two.cancel()
	eventually(t, "nothing is encoded any more", func() bool { return encoded() == 0 })
}

// TestWhatComesWhileTheServerOpensIsServed: a change is either read when the server opens
// or pushed after that.
func TestWhatComesWhileTheServerOpensIsServed(t *testing.T) {
	for range 20 {
		r := startRelay(t, false)
		r.put(many(2000, "s-%05d", func(int) string { return "x" })...) // opening takes a moment
		r.store.SetSynced()
		n := 0
		for after := 0; after < 10; n++ {
			r.store.Put(se("shop", fmt.Sprintf("t-%05d", n), "x"))
			if r.server.HasReleased() {
				after++
			}
		}
		eventually(t, "all is in the view", func() bool { return r.view().snapshot(kindSE).count == 2000+n })
		r.stop()
	}
}

// filled returns a collection of resources named s-000000 and on.
func filled(size int) *collection {
	c := newCollection()
	updates := make([]update, 0, size)
	for i := range size {
		res := se("shop", fmt.Sprintf("s-%06d", i), "x")
		updates = append(updates, update{res.FullName(), res})
	}
	c.apply(updates, time.Now())
	return c
}

func BenchmarkApplyOneChange(b *testing.B) {
	for _, size := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := filled(size)
			two := []*mirror.Resource{se("shop", "s-000500", "y"), se("shop", "s-000500", "z")}
			runtime.GC()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.apply([]update{{"shop/s-000500", two[i%2]}}, time.Now())
			}
		})
	}
}

// BenchmarkPushToOneClient is what a client costs on a change, but for its transport.
func BenchmarkPushToOneClient(b *testing.B) {
	for _, protocol := range []string{protocolSotW, protocolDelta} {
		b.Run(protocol, func(b *testing.B) {
			m, err := newMetrics(prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			c := filled(10000)
			w := &watch{typeURL: seV1, wildcard: true, owed: true, all: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
			before := c.current.Load()
			c.apply([]update{{"shop/s-000500", se("shop", "s-000500", "y")}}, time.Now())
			after := c.current.Load()
			w.nonce = "1"
			b.ReportAllocs()
			for b.Loop() {
				w.cursor, w.sent, w.owed, w.all = before.rev, before.digest, false, false
				var msg *message
				if protocol == protocolSotW {
					st, _ := w.planSotW(after, m)
					msg = sotwMessage(w.typeURL, st.version, "2", nil, st.buffers, st.bytes)
				} else {
					st, _, err := w.planDelta(after, nil)
					if err != nil {
						b.Fatal(err)
					}
					msg = deltaMessage(w.typeURL, "2", nil, st.diff.changed, st.diff.bytes, nil)
				}
				if msg.size == 0 {
					b.Fatal("nothing to send")
				}
			}
		})
	}
}
