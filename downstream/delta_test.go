package downstream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

func TestChangesAloneAreSent_S18(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"), se("shop", "b", "b.example"))
	d := r.delta()
	d.send(subscribeDelta(seV1))
	first := d.next()
	for len(first.Resources) < 2 {
		first = d.next()
	}
	for _, res := range first.Resources {
		if res.Version == "" || res.Name == "" || res.Ttl != nil {
			t.Errorf("resource %q has version %q, ttl %v", res.Name, res.Version, res.Ttl)
		}
		if m := decode(t, res.Resource); m.Metadata.Name != res.Name || m.Metadata.Version != res.Version {
			t.Errorf("resource %q version %q holds %v", res.Name, res.Version, m.Metadata)
		}
	}
	r.put(se("shop", "c", "c.example"))
	if got := deltaNames(d.next()); got != "shop/c" {
		t.Errorf("an addition brings %q", got)
	}
	r.put(se("shop", "a", "new.example"))
	if got := deltaNames(d.next()); got != "shop/a" {
		t.Errorf("an update brings %q", got)
	}
	r.remove(se("shop", "b", ""))
	if got := deltaNames(d.next()); got != "-shop/b" {
		t.Errorf("a removal brings %q", got)
	}
}

func TestMeshConfigHasAFixedName_S18(t *testing.T) {
	r := startRelay(t, true)
	d := r.delta()
	d.send(subscribeDelta(meshURL))
	d.next()
	r.put(build(mirror.MeshConfig, "", mirror.MeshConfigName, meshConfig("x")))
	resp := d.next()
	if deltaNames(resp) != "mesh" || resp.Resources[0].Version == "" || resp.Resources[0].Resource.TypeUrl != "type.googleapis.com/istio.mesh.v1alpha1.MeshConfig" {
		t.Errorf("MeshConfig came as %v", resp)
	}
}

func TestResumeSendsOnlyWhatDiffers_S18(t *testing.T) {
	r := startRelay(t, true)
	a, b, c := se("shop", "a", "a.example"), se("shop", "b", "b.example"), se("shop", "c", "c.example")
	r.put(a, b, c)
	for _, tc := range []struct {
		name string
		held map[string]string
		want string
	}{
		{"all the same", map[string]string{"shop/a": a.Version(), "shop/b": b.Version(), "shop/c": c.Version()}, ""},
		{"one is old", map[string]string{"shop/a": a.Version(), "shop/b": "old", "shop/c": c.Version()}, "shop/b"},
		{"one is missing", map[string]string{"shop/a": a.Version(), "shop/c": c.Version()}, "shop/b"},
		{"one vanished", map[string]string{"shop/a": a.Version(), "shop/b": b.Version(), "shop/c": c.Version(), "shop/d": "x"}, "-shop/d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eventually(t, "all are served", func() bool {
				r.server.views.mu.Lock()
				defer r.server.views.mu.Unlock()
				return r.server.views.base.snapshot(kindSE).count == 3
			})
			d := r.delta()
			req := subscribeDelta(seV1)
			req.InitialResourceVersions = tc.held
			d.send(req)
			if got := deltaNames(d.next()); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSubscriptionsOfTheDeltaSpecification_S17(t *testing.T) {
	type req = discoveryv3.DeltaDiscoveryRequest
	for _, tc := range []struct {
		name  string
		steps []*req
		want  []string // what each step brings; "-" for nothing
	}{
		{"no names is a wildcard", []*req{{}}, []string{"shop/a shop/b"}},
		{"* is a wildcard", []*req{{ResourceNamesSubscribe: []string{"*"}}}, []string{"shop/a shop/b"}},
		{"names are names, and what is missing is said to be", []*req{
			{ResourceNamesSubscribe: []string{"shop/a", "shop/x"}},
		}, []string{"shop/a -shop/x"}},
		{"what is subscribed again is sent again", []*req{
			{ResourceNamesSubscribe: []string{"shop/a"}}, {ResourceNamesSubscribe: []string{"shop/a"}},
		}, []string{"shop/a", "shop/a"}},
		{"* again sends everything again", []*req{
			{}, {ResourceNamesSubscribe: []string{"*"}},
		}, []string{"shop/a shop/b", "shop/a shop/b"}},
		{"unsubscribing * keeps what is named", []*req{
			{ResourceNamesSubscribe: []string{"*", "shop/a"}}, {ResourceNamesUnsubscribe: []string{"*"}},
		}, []string{"shop/a shop/b", "-"}},
		{"unsubscribing what the wildcard covers sends it again", []*req{
			{ResourceNamesSubscribe: []string{"*", "shop/a"}}, {ResourceNamesUnsubscribe: []string{"shop/a"}},
		}, []string{"shop/a shop/b", "shop/a"}},
		{"or says that it is gone", []*req{
			{ResourceNamesSubscribe: []string{"*"}}, {ResourceNamesUnsubscribe: []string{"shop/x"}},
		}, []string{"shop/a shop/b", "-shop/x"}},
		{"* subscribed and unsubscribed at once is nothing", []*req{
			{ResourceNamesSubscribe: []string{"*"}, ResourceNamesUnsubscribe: []string{"*"}},
		}, []string{""}},
		{"a stale nonce does not hinder a change", []*req{
			{ResourceNamesSubscribe: []string{"shop/a"}}, {ResourceNamesSubscribe: []string{"shop/b"}, ResponseNonce: "999"},
		}, []string{"shop/a", "shop/b"}},
		{"a NACK is not answered", []*req{
			{}, {ResponseNonce: "1", ErrorDetail: &rpcstatus.Status{Message: "no"}},
		}, []string{"shop/a shop/b", "-"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startRelay(t, true)
			r.put(se("shop", "a", "a.example"), se("shop", "b", "b.example"))
			eventually(t, "all are served", func() bool {
				r.server.views.mu.Lock()
				defer r.server.views.mu.Unlock()
				return r.server.views.base.snapshot(kindSE).count == 2
			})
			d := r.delta()
			for i, step := range tc.steps {
				step.TypeUrl = seV1
				step.Node = node()
				d.send(step)
				sentinel := &req{Node: node(), TypeUrl: fmt.Sprintf("example.com/v1/Sentinel%d", i)}
				d.send(sentinel)
				var parts []string
				got := "-"
				for {
					resp := d.next()
					// The second sentinel is sent when the first was answered, and so is answered
					// in a later round: all that the step brings has come by then.
					if resp.TypeUrl == sentinel.TypeUrl {
						d.send(&req{TypeUrl: sentinel.TypeUrl + "b"})
					}
					if resp.TypeUrl == sentinel.TypeUrl+"b" {
						break
					}
					if resp.TypeUrl == seV1 { // additions and removals come as one response each
						parts = append(parts, deltaNames(resp))
						got = strings.Join(parts, " ")
					}
				}
				if got != tc.want[i] {
					t.Errorf("step %d brings %q, want %q", i, got, tc.want[i])
				}
			}
		})
	}
}

func TestSlowDeltaCursorIsServedFromTheLogThePagesOrNotAtAll(t *testing.T) {
	c := newCollection()
	w := &watch{typeURL: seV1, wildcard: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
	holds := map[string]string{}
	sync := func() {
		t.Helper()
		st, ok, err := w.planDelta(c.current.Load(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			applyDifference(holds, st.diff)
		}
	}
	put := func(i int, host string) update {
		res := se("shop", fmt.Sprintf("s-%06d", i), host)
		return update{res.FullName(), res}
	}
	for i := range 100 {
		c.apply([]update{put(i, "first.example")}, time.Now())
	}
	sync()
	// More changes than the log holds, with removals among them.
	for i := range 3 * logLen {
		if i%10 == 0 {
			c.apply([]update{{name: fmt.Sprintf("shop/s-%06d", i/10%100)}}, time.Now())
		} else {
			c.apply([]update{put(i%50+100, fmt.Sprintf("h%d.example", i))}, time.Now())
		}
	}
	s := c.current.Load()
	if s.logFrom <= w.cursor || s.removedFrom > w.cursor {
		t.Fatalf("the test does not leave the log: cursor %d, log from %d, removed from %d", w.cursor, s.logFrom, s.removedFrom)
	}
	sync()
	if want := content(s); !maps.Equal(holds, want) {
		t.Errorf("client holds %d, snapshot %d", len(holds), len(want))
	}
	if len(s.log) > 2*logLen || len(s.removed) > 2*removedLen {
		t.Errorf("log %d, removed %d: not bounded", len(s.log), len(s.removed))
	}
}

// TestRemovalsAreRememberedByName: names that come and go for ever are no more to remember
// than the names, and who was away for all of it is still told what has gone.
func TestRemovalsAreRememberedByName(t *testing.T) {
	c := newCollection()
	c.keep = memory{64, 1024}
	const names = 100
	put := func(i int, host string) update {
		res := se("shop", fmt.Sprintf("s-%06d", i), host)
		return update{res.FullName(), res}
	}
	for i := range names {
		c.apply([]update{put(i, "first.example")}, time.Now())
	}
	away := c.current.Load()
	for i := range 50 * names {
		u := put(i%names, "again.example")
		c.apply([]update{{name: u.name}}, time.Now())
		if i < 50*names-names/2 { // the last ones stay away
			c.apply([]update{u}, time.Now())
		}
	}
	s := c.current.Load()
	if most := 2*names + c.keep.removals/64 + 1; len(s.removed) > most {
		t.Errorf("%d removals of %d names are remembered, want %d at most", len(s.removed), names, most)
	}
	d, ok := s.since(away.rev)
	if !ok {
		t.Fatal("who was away is too far behind")
	}
	holds := content(away)
	applyDifference(holds, d)
	if want := content(s); !maps.Equal(holds, want) {
		t.Errorf("who was away holds %d, want %d", len(holds), len(want))
	}
	if got := len(d.removed); got != names/2 {
		t.Errorf("%d names are said to be gone, want %d", got, names/2)
	}
}

// TestDeltaAndSotWArriveAtTheSame_S18 runs random changes against both protocols'
// watches, which look at random moments, and compares what each client holds with
// what there is.
func TestDeltaAndSotWArriveAtTheSame_S18(t *testing.T) {
	m := must(newMetrics(prometheus.NewRegistry()))
	rapid.Check(t, func(t *rapid.T) {
		c := newCollection()
		truth := map[string]*mirror.Resource{}
		delta := &watch{typeURL: seV1, wildcard: true, owed: true, all: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
		sotw := &watch{typeURL: seV1, wildcard: true, owed: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
		named := &watch{typeURL: seV1, owed: true, has: map[string][16]byte{}, names: map[string]struct{}{"shop/s-1": {}, "shop/s-2": {}}}
		deltaHolds, sotwHolds, namedHolds := map[string]string{}, map[string]string{}, map[string]string{}
		look := func(t *rapid.T) {
			s := c.current.Load()
			st, ok, err := delta.planDelta(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				for _, name := range st.diff.removed {
					if _, held := deltaHolds[name]; !held {
						t.Fatalf("%s is said to be gone, and was never sent", name)
					}
				}
				applyDifference(deltaHolds, st.diff)
			}
			if st, ok, err = named.planDelta(s, nil); err != nil {
				t.Fatal(err)
			} else if ok {
				applyDifference(namedHolds, st.diff)
			}
			if st, ok := sotw.planSotW(s, m); ok {
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
				byName := map[string]update{}
				for range rapid.IntRange(1, 8).Draw(t, "updates") {
					name := fmt.Sprintf("s-%d", rapid.IntRange(0, 40).Draw(t, "name"))
					if rapid.Bool().Draw(t, "remove") {
						byName["shop/"+name] = update{name: "shop/" + name}
						delete(truth, "shop/"+name)
						continue
					}
					// Some bodies are large, so that pages split and merge.
					host := strings.Repeat("x", rapid.SampledFrom([]int{1, 10, 9000}).Draw(t, "size")) + fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "content"))
					res := se("shop", name, host)
					byName["shop/"+name] = update{"shop/" + name, res}
					truth["shop/"+name] = res
				}
				c.apply(slices.Collect(maps.Values(byName)), time.Now())
				s := c.current.Load()
				if s.count != len(truth) || len(content(s)) != len(truth) {
					t.Fatalf("%d resources, want %d", s.count, len(truth))
				}
				var sum digest
				size := 0
				for name, res := range truth {
					if got := s.get(name); !got.Equal(res) {
						t.Fatalf("%s is %v", name, got)
					}
					sum = sum.plus(res.Digest())
					size += len(res.Frame())
				}
				if sum != s.digest || size != s.bytes {
					t.Fatalf("digest %v and %d bytes, want %v and %d", s.digest, s.bytes, sum, size)
				}
			},
			"look": look,
		})
		look(t)
	})
}

func content(s *snapshot) map[string]string {
	out := map[string]string{}
	last := ""
	s.each(func(r *mirror.Resource) {
		if r.FullName() <= last {
			panic("names are not sorted: " + last + " " + r.FullName())
		}
		last = r.FullName()
		out[r.FullName()] = r.Version()
	})
	return out
}

func applyDifference(holds map[string]string, d *difference) {
	for _, b := range d.changed {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(b.ReadOnlyData(), m); err != nil {
			panic(err)
		}
		holds[m.Resources[0].Name] = m.Resources[0].Version
	}
	for _, name := range d.removed {
		delete(holds, name)
	}
}

func decodeFrames(st step) map[string]string {
	m := sotwMessage(seV1, st.version, "1", nil, st.buffers, st.bytes)
	resp := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(m.buffers.Materialize(), resp); err != nil {
		panic(err)
	}
	if m.size != m.buffers.Len() {
		panic("size is wrong")
	}
	holds := map[string]string{}
	for _, a := range resp.Resources {
		r, err := mirror.Decode(kindSE, must(proto.Marshal(a)), "east")
		if err != nil {
			panic(err)
		}
		holds[r.FullName()] = r.Version()
	}
	return holds
}

// decodeVersions is decodeFrames for resources of several sources: it goes by the version
// that stands in their metadata.
func decodeVersions(st step) map[string]string {
	resp := &discoveryv3.DiscoveryResponse{}
	if err := proto.Unmarshal(st.buffers[1:].Materialize(), resp); err != nil {
		panic(err)
	}
	holds := map[string]string{}
	for _, a := range resp.Resources {
		m := &mcp.Resource{}
		if err := a.UnmarshalTo(m); err != nil {
			panic(err)
		}
		holds[m.Metadata.Name] = m.Metadata.Version
	}
	return holds
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestEveryACKCounts_S7: of the first response, whose nonce is no number, and of later
// ones, also when several are on their way.
func TestEveryACKCounts_S7(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	d := r.delta()
	d.send(subscribeDelta(seV1))
	ack := func(resp *discoveryv3.DeltaDiscoveryResponse) {
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: resp.Nonce})
	}
	acked := func(n uint64, synced bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d ACKs, synced %v", n, synced), func() bool {
			st := r.server.Clients()[0].Types[0]
			return st.ACKs == n && st.Synced == synced
		})
	}
	first := d.next()
	ack(first)
	acked(1, true)
	r.put(se("shop", "a", "b.example"))
	second := d.next()
	r.put(se("shop", "a", "c.example"))
	third := d.next()
	ack(second)
	acked(2, false)
	ack(third)
	acked(3, true)
	ack(second) // again: it is old
	d.send(subscribeDelta(drV1))
	d.next()
	if st := r.server.Clients()[0].Types; st[len(st)-1].ACKs != 3 && st[0].ACKs != 3 {
		t.Errorf("an old ACK counts: %+v", st)
	}
}

// TestWildcardAskedForAgainBringsWhatHasGone_S17: also what went after the client was brought
// up to date for the last time.
func TestWildcardAskedForAgainBringsWhatHasGone_S17(t *testing.T) {
	c := filled(3)
	ws := newWatches()
	ws.limits = must(Limits{MaxTypesPerClient: 1}.complete())
	if _, err := ws.requestDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1}, time.Now()); err != nil {
		t.Fatal(err)
	}
	w := ws.byType[seV1]
	if _, ok, err := w.planDelta(c.current.Load(), nil); !ok || err != nil {
		t.Fatal(ok, err)
	}
	w.nonce = "1"
	again := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResourceNamesSubscribe: []string{wildcardName}}
	if _, err := ws.requestDelta(again, time.Now()); err != nil {
		t.Fatal(err)
	}
	c.apply([]update{{name: "shop/s-000001"}}, time.Now())
	st, ok, err := w.planDelta(c.current.Load(), nil)
	if !ok || err != nil || len(st.diff.changed) != 2 || !slices.Equal(st.diff.removed, []string{"shop/s-000001"}) {
		t.Errorf("%d resources and %v are sent, %v, %v", len(st.diff.changed), st.diff.removed, ok, err)
	}
}
