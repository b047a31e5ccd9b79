package subscription

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/downstream/snapshot"
	"meshrelay/mirror"
)

const seV1 = "networking.istio.io/v1/ServiceEntry"

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
func filled(size int) *snapshot.Collection {
	c := snapshot.New()
	updates := make([]snapshot.Update, 0, size)
	for i := range size {
		res := se("shop", fmt.Sprintf("s-%06d", i), "x")
		updates = append(updates, snapshot.Update{Name: res.FullName(), Item: res})
	}
	c.Apply(updates, time.Now())
	return c
}

func content(s *snapshot.Snapshot) map[string]string {
	out := map[string]string{}
	last := ""
	s.Each(func(r snapshot.Item) {
		if r.FullName() <= last {
			panic("names are not sorted: " + last + " " + r.FullName())
		}
		last = r.FullName()
		out[r.FullName()] = r.Version()
	})
	return out
}

func applyDifference(holds map[string]string, d *snapshot.Difference) {
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

func TestUnchangedPlanCostsNoAllocation(t *testing.T) {
	c := filled(10000)
	w := &Watch{Target: targetOf(seV1, Type{}), wildcard: true, mustReply: true, sendAll: true, special: nothing}
	if _, _, err := w.planDelta(c.Current(), nil, PartBytes); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { w.planDelta(c.Current(), nil, PartBytes) }); n != 0 { //nolint:errcheck // it can not fail
		t.Errorf("%v allocations to find that nothing has changed", n)
	}
}

// TestClientsThatComeTogetherShareTheFirstResponse: each costs a stream, and no list of
// all that there is.
func TestClientsThatComeTogetherShareTheFirstResponse(t *testing.T) {
	c := filled(1000)
	s := c.Current()
	open := func() []*snapshot.Message {
		w := &Watch{Target: targetOf(seV1, Type{}), wildcard: true, mustReply: true, sendAll: true, special: nothing}
		st, ok, err := w.planDelta(s, []byte("relay"), PartBytes)
		if !ok || err != nil || st.initial == nil {
			t.Fatalf("step %+v, %v, %v", st, ok, err)
		}
		return st.initial
	}
	if first := open(); &open()[0] != &first[0] || len(first) != 1 || len(first[0].Buffers) != 2 {
		t.Errorf("%d buffers, or not the same for the next client", len(first[0].Buffers))
	}
}

// BenchmarkPushToOneClient is what a client costs on a change, but for its transport.
func BenchmarkPushToOneClient(b *testing.B) {
	for _, delta := range []bool{false, true} {
		b.Run(fmt.Sprint("delta ", delta), func(b *testing.B) {
			c := filled(10000)
			w := &Watch{Target: targetOf(seV1, Type{}), wildcard: true, mustReply: true, sendAll: delta, special: nothing}
			before := c.Current()
			c.Apply([]snapshot.Update{{Name: "shop/s-000500", Item: se("shop", "s-000500", "y")}}, time.Now())
			after := c.Current()
			w.sentNonce = numbered + 1
			b.ReportAllocs()
			for b.Loop() {
				w.cursor, w.own().sent, w.mustReply, w.sendAll = before.Rev, before.Digest, false, false
				var msg *snapshot.Message
				if !delta {
					st, _ := w.planSotW(after, snapshot.Full, func(int) {})
					msg = snapshot.SotW(w.TypeURL, st.sotwVersion, "2", nil, st.frames, st.bytes)
				} else {
					st, _, err := w.planDelta(after, nil, PartBytes)
					if err != nil {
						b.Fatal(err)
					}
					msg = snapshot.Delta(snapshot.Head{TypeURL: w.TypeURL, Nonce: "2"}, st.diff.Changed, st.diff.Bytes, nil)
				}
				if msg.Size == 0 {
					b.Fatal("nothing to send")
				}
			}
		})
	}
}

func TestSlowDeltaCursorIsServedFromTheLogThePagesOrNotAtAll(t *testing.T) {
	c := snapshot.New()
	w := &Watch{Target: targetOf(seV1, Type{}), wildcard: true, special: nothing}
	holds := map[string]string{}
	sync := func() {
		t.Helper()
		st, ok, err := w.planDelta(c.Current(), nil, PartBytes)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			applyDifference(holds, st.diff)
		}
	}
	put := func(i int, host string) snapshot.Update {
		res := se("shop", fmt.Sprintf("s-%06d", i), host)
		return snapshot.Update{Name: res.FullName(), Item: res}
	}
	for i := range 100 {
		c.Apply([]snapshot.Update{put(i, "first.example")}, time.Now())
	}
	sync()
	// More changes than the log holds, with removals among them.
	for i := range 3 * c.Keep.Changes {
		if i%10 == 0 {
			c.Apply([]snapshot.Update{{Name: fmt.Sprintf("shop/s-%06d", i/10%100)}}, time.Now())
		} else {
			c.Apply([]snapshot.Update{put(i%50+100, fmt.Sprintf("h%d.example", i))}, time.Now())
		}
	}
	s := c.Current()
	if _, ok := s.Since(w.cursor); s.LogFrom <= w.cursor || !ok {
		t.Fatalf("the test does not leave the log: cursor %d, log from %d, removals known %v", w.cursor, s.LogFrom, ok)
	}
	sync()
	if want := content(s); !maps.Equal(holds, want) {
		t.Errorf("client holds %d, snapshot %d", len(holds), len(want))
	}
	if len(s.Log) > 2*c.Keep.Changes {
		t.Errorf("log %d: not bounded", len(s.Log))
	}
}

// TestDeltaAndSotWArriveAtTheSame_S18 runs random changes against both protocols'
// watches, which look at random moments, and compares what each client holds with
// what there is.
func TestDeltaAndSotWArriveAtTheSame_S18(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := snapshot.New()
		truth := map[string]*mirror.Resource{}
		delta := &Watch{Target: targetOf(seV1, Type{}), wildcard: true, mustReply: true, sendAll: true, special: nothing}
		sotw := &Watch{Target: targetOf(seV1, Type{}), wildcard: true, mustReply: true, special: nothing}
		named := &Watch{Target: targetOf(seV1, Type{}), mustReply: true, special: &special{names: map[string]struct{}{"shop/s-1": {}, "shop/s-2": {}}}}
		deltaHolds, sotwHolds, namedHolds := map[string]string{}, map[string]string{}, map[string]string{}
		look := func(t *rapid.T) {
			s := c.Current()
			st, ok, err := delta.planDelta(s, nil, PartBytes)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				for _, name := range st.diff.Removed {
					if _, held := deltaHolds[name]; !held {
						t.Fatalf("%s is removed, and was never sent", name)
					}
				}
				applyDifference(deltaHolds, st.diff)
			}
			if st, ok, err = named.planDelta(s, nil, PartBytes); err != nil {
				t.Fatal(err)
			} else if ok {
				applyDifference(namedHolds, st.diff)
			}
			if st, ok := sotw.planSotW(s, snapshot.Full, func(int) {}); ok {
				sotwHolds = decodeFrames(st)
			}
			want := content(s)
			if !maps.Equal(deltaHolds, want) {
				t.Fatalf("delta holds %v, want %v", deltaHolds, want)
			}
			if !maps.Equal(sotwHolds, want) {
				t.Fatalf("SotW holds %v, want %v", sotwHolds, want)
			}
			for name := range named.names {
				if namedHolds[name] != want[name] {
					t.Fatalf("the named client holds %q of %s, want %q", namedHolds[name], name, want[name])
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				byName := map[string]snapshot.Update{}
				for range rapid.IntRange(1, 8).Draw(t, "updates") {
					name := fmt.Sprintf("s-%d", rapid.IntRange(0, 40).Draw(t, "name"))
					if rapid.Bool().Draw(t, "remove") {
						byName["shop/"+name] = snapshot.Update{Name: "shop/" + name}
						delete(truth, "shop/"+name)
						continue
					}
					// Some bodies are large, so that pages split and merge.
					host := strings.Repeat("x", rapid.SampledFrom([]int{1, 10, 9000}).Draw(t, "size")) + fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "content"))
					res := se("shop", name, host)
					byName["shop/"+name] = snapshot.Update{Name: "shop/" + name, Item: res}
					truth["shop/"+name] = res
				}
				c.Apply(slices.Collect(maps.Values(byName)), time.Now())
				s := c.Current()
				if s.Count != len(truth) || len(content(s)) != len(truth) {
					t.Fatalf("%d resources, want %d", s.Count, len(truth))
				}
				var sum snapshot.Digest
				size := 0
				for name, res := range truth {
					if got := s.Get(name); !snapshot.Same(got, res) {
						t.Fatalf("%s is %v", name, got)
					}
					sum = sum.Plus(res.Digest())
					size += len(res.Frame())
				}
				if sum != s.Digest || size != s.Bytes {
					t.Fatalf("digest %v and %d bytes, want %v and %d", s.Digest, s.Bytes, sum, size)
				}
			},
			"look": look,
		})
		look(t)
	})
}

func decodeFrames(st step) map[string]string {
	m := snapshot.SotW(seV1, st.sotwVersion, "1", nil, st.frames, st.bytes)
	resp := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(m.Buffers.Materialize(), resp); err != nil {
		panic(err)
	}
	if m.Size != m.Buffers.Len() {
		panic("size is wrong")
	}
	holds := map[string]string{}
	for _, a := range resp.Resources {
		r, err := mirror.Decode(mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, must(proto.Marshal(a)), "east")
		if err != nil {
			panic(err)
		}
		holds[r.FullName()] = r.Version()
	}
	return holds
}

// TestWildcardAskedForAgainBringsWhatHasGone_S17: also what went after the client was brought
// up to date for the last time.
func TestWildcardAskedForAgainBringsWhatHasGone_S17(t *testing.T) {
	c := filled(3)
	ws, limits := New(true, nil, lookup), Limits{1, 1, 100, PartBytes}
	if _, err := ws.Request(&Request{TypeURL: seV1}, limits, time.Now()); err != nil {
		t.Fatal(err)
	}
	w := ws.Watch(seV1)
	if _, ok, err := w.planDelta(c.Current(), nil, PartBytes); !ok || err != nil {
		t.Fatal(ok, err)
	}
	w.sentNonce = numbered + 1
	again := &Request{TypeURL: seV1, Subscribe: []string{wildcardName}}
	if _, err := ws.Request(again, limits, time.Now()); err != nil {
		t.Fatal(err)
	}
	c.Apply([]snapshot.Update{{Name: "shop/s-000001"}}, time.Now())
	st, ok, err := w.planDelta(c.Current(), nil, PartBytes)
	if !ok || err != nil || len(st.diff.Changed) != 2 || !slices.Equal(st.diff.Removed, []string{"shop/s-000001"}) {
		t.Errorf("%d resources and %v are sent, %v, %v", len(st.diff.Changed), st.diff.Removed, ok, err)
	}
}

// named returns n names, and a watch for them that has everything of c.
func named(t *testing.T, c *snapshot.Collection, n int, delta bool) *Watch {
	t.Helper()
	w := &Watch{Target: targetOf(seV1, Type{}), mustReply: true, sendAll: delta, special: &special{names: map[string]struct{}{}}}
	for i := range n {
		w.names[fmt.Sprintf("shop/s-%06d", i)] = struct{}{}
	}
	if !delta {
		w.planSotW(c.Current(), snapshot.Full, func(int) {})
	} else if _, _, err := w.planDelta(c.Current(), nil, PartBytes); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestAChangeOfAnotherNameCostsTheSameForAnyNumberOfNames: the names are not gone through.
func TestAChangeOfAnotherNameCostsTheSameForAnyNumberOfNames(t *testing.T) {
	c := filled(70_000)
	for _, delta := range []bool{false, true} {
		allocs := func(names int) float64 {
			w := named(t, c, names, delta)
			var snapshots []*snapshot.Snapshot
			for i := range 20 {
				c.Apply([]snapshot.Update{{Name: "shop/s-069999", Item: se("shop", "s-069999", fmt.Sprint(i))}}, time.Now())
				snapshots = append(snapshots, c.Current())
			}
			return testing.AllocsPerRun(len(snapshots)-2, func() {
				s := snapshots[0]
				snapshots = snapshots[1:]
				var ok bool
				if delta {
					_, ok, _ = w.planDelta(s, nil, PartBytes)
				} else {
					_, ok = w.planSotW(s, snapshot.Full, func(int) {})
				}
				if ok {
					t.Fatal("a client is told of what it did not ask for")
				}
			})
		}
		if few, many := allocs(1), allocs(65_536); many > few || many > 2 {
			t.Errorf("delta %v: %v allocations with one name, %v with 65,536", delta, few, many)
		}
	}
}

// TestNamesThatHaveChangedAreFoundAsByLookingAtAll: whatever changes, and however far behind
// a client is.
func TestNamesThatHaveChangedAreFoundAsByLookingAtAll(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		c := snapshot.New()
		c.Keep = snapshot.Memory{Changes: 8, Removals: 64}
		name := func(i int) string { return fmt.Sprintf("shop/s-%d", i) }
		change := func() {
			var updates []snapshot.Update
			for _, i := range rnd.Perm(20)[:1+rnd.IntN(4)] {
				u := snapshot.Update{Name: name(i)}
				if rnd.IntN(3) > 0 {
					u.Item = se("shop", fmt.Sprintf("s-%d", i), fmt.Sprint(rnd.IntN(3)))
				}
				updates = append(updates, u)
			}
			c.Apply(updates, time.Now())
		}
		change()
		delta, sotw := named(t, c, 0, true), named(t, c, 0, false)
		delta.own().names, sotw.own().names = map[string]struct{}{}, map[string]struct{}{}
		for i := range 10 {
			delta.names[name(i)], sotw.names[name(i)] = struct{}{}, struct{}{}
		}
		delta.sendAll, delta.mustReply, sotw.mustReply = true, true, true
		for range 30 {
			for range rnd.IntN(12) {
				change()
			}
			s := c.Current()
			owed := delta.mustReply
			full := &Watch{Target: targetOf(seV1, Type{}), special: &special{names: delta.names}, sendAll: true, mustReply: true}
			if _, _, err := full.planDelta(s, nil, PartBytes); err != nil {
				t.Fatal(err)
			}
			if _, ok, err := delta.planDelta(s, nil, PartBytes); err != nil {
				t.Fatal(err)
			} else if !ok && owed {
				t.Fatal("what is owed is not sent")
			}
			for n, d := range full.sentDigests {
				if delta.sentDigests[n] != d {
					t.Fatalf("round %d: the delta client has another %s", round, n)
				}
			}
			was := sotw.sent
			_, sent := sotw.planSotW(s, snapshot.Full, func(int) {})
			is := snapshot.Digest{}
			for n := range sotw.names {
				if r := s.Get(n); r != nil {
					is = is.Plus(r.Digest())
				}
			}
			if sotw.sent != is || sent != (was != is) && !owed {
				t.Fatalf("round %d: sent %v, and the names were as they are: %v", round, sent, was == is)
			}
		}
	}
}

// TestIdleWatchIsSmall: a stream has one of every type, and most never change.
func TestIdleWatchIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Watch{}); size > 128 {
		t.Errorf("a watch has %d bytes", size)
	}
	set := New(true, nil, lookup)
	if _, err := set.Request(&Request{TypeURL: seV1, Versions: map[string]string{"shop/s-000001": "old"}, Subscribe: []string{"*", "shop/s-000002"}}, Limits{1, 2, 100, PartBytes}, time.Now()); err != nil {
		t.Fatal(err)
	}
	of := filled(10)
	answer := func() {
		round, err := set.Plan(func(Type) *snapshot.Snapshot { return of.Current() }, nil)
		for ok := err == nil && round != nil; ok; {
			_, ok = set.Next(round, time.Now())
		}
	}
	w := set.Watch(seV1)
	answer()
	if w.special == nothing {
		t.Error("a watch with a name has forgotten it")
	}
	if _, err := set.Request(&Request{TypeURL: seV1, Nonce: w.text(w.sentNonce), Unsubscribe: []string{"shop/s-000002"}}, Limits{1, 2, 100, PartBytes}, time.Now()); err != nil {
		t.Fatal(err)
	}
	answer()
	if w.special != nothing {
		t.Errorf("a watch of everything keeps %+v", *w.special)
	}
	if !reflect.ValueOf(*nothing).IsZero() {
		t.Errorf("what all watches share was written to: %+v", *nothing)
	}
}

// TestNoncesArePlaces_S15: in the order in which they are sent; another text is none.
func TestNoncesArePlaces_S15(t *testing.T) {
	w := &Watch{Target: targetOf(seV1, Type{}), special: nothing}
	for _, n := range []nonce{1, 2, 70_000, numbered + 1, numbered + 1<<40} {
		if got := w.nonceOf(w.text(n)); got != n {
			t.Errorf("%q is place %d, want %d", w.text(n), got, n)
		}
	}
	for _, text := range []string{"", "0", "007", "+1", "-1", "x", "first/", "first/" + drV1, w.text(1) + "#", w.text(1) + "#1", w.text(1) + "#02", w.text(1) + "#x"} {
		if got := w.nonceOf(text); got != 0 {
			t.Errorf("%q is place %d", text, got)
		}
	}
}
