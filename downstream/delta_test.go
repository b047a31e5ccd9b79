package downstream

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"meshrelay/downstream/snapshot"
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
			r.eventually(t, "all are served", func() bool {
				r.server.views.mu.Lock()
				defer r.server.views.mu.Unlock()
				return r.server.views.base.snapshot(typeSE).Count == 3
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
		{"names are names, and missing ones are reported", []*req{
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
		{"or reports that it is gone", []*req{
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
			r.eventually(t, "all are served", func() bool {
				r.server.views.mu.Lock()
				defer r.server.views.mu.Unlock()
				return r.server.views.base.snapshot(typeSE).Count == 2
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
		r.eventually(t, fmt.Sprintf("%d ACKs, synced %v", n, synced), func() bool {
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
