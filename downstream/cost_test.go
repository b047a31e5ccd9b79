package downstream

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/snapshot"
	"meshrelay/mirror"
)

// Costs, counted in allocations, bytes, pages and live objects. No test here looks at a clock.

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
			r.eventually(t, "a response is on its way", func() bool {
				c := r.server.Clients()
				return len(c) == 1 && len(c[0].Types) == 1 && c[0].Types[0].Pushes >= 1
			})
			for round := range 3 { // the transport takes one response more than it can send
				put(round + 1)
			}
			old = old[:len(old)-n]
			r.eventually(t, "what is no longer served is garbage", func() bool {
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
		for _, p := range r.view().snapshot(typeSE).Pages {
			if p.Encoded(snapshot.Short) {
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
	r.eventually(t, "one client is gone", func() bool { return len(r.server.Clients()) == 2 })
	if encoded() == 0 {
		t.Error("nothing is encoded, with a SotW client there")
	}
	two.cancel()
	r.eventually(t, "nothing is encoded any more", func() bool { return encoded() == 0 })
}

// TestWhatComesWhileTheServerOpensIsServed: a change is either read when the server opens
// or pushed after that.
func TestWhatComesWhileTheServerOpensIsServed(t *testing.T) {
	all := many(2000, "s-%05d", func(int) string { return "x" }) // opening takes a moment
	for range 20 {
		r := startRelay(t, false)
		r.put(all...)
		r.store.SetSynced()
		n := 0
		for after := 0; after < 10; n++ {
			r.store.Put(se("shop", fmt.Sprintf("t-%05d", n), "x"))
			runtime.Gosched() // on one processor, too, the server is to open soon
			if r.server.HasReleased() {
				after++
			}
		}
		r.eventually(t, "all is in the view", func() bool { return r.view().snapshot(typeSE).Count == 2000+n })
		r.stop()
	}
}

func TestWorkOfPushesIsReported(t *testing.T) {
	r := startRelay(t, true)
	r.eventually(t, "clients are served", r.server.HasReleased)
	work := r.server.work
	before := work.Total()
	r.put(se("shop", "a", "0")) // nobody is connected: this is planning
	r.eventually(t, "planning is reported", func() bool { return work.Total() > before })

	d := r.deltaBy("a", seV1)
	d.next()
	before = work.Total()
	r.put(se("shop", "a", "1"))
	d.next()
	if got := work.Total() - before; got <= 0 {
		t.Errorf("%v of work for a push to a client", got)
	}
}
