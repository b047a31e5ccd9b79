package downstream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"meshrelay/mirror"
)

func TestFirstRequestNeedsANodeWithID_S1(t *testing.T) {
	r := startRelay(t, true)
	s := r.sotw()
	s.send(&discoveryv3.DiscoveryRequest{TypeUrl: seV1})
	wantCode(t, s.end(), codes.InvalidArgument)

	d := r.delta()
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1})
	wantCode(t, d.end(), codes.InvalidArgument)
}

func TestHealthRequestsAheadOfTheFirstAreSkipped_S1(t *testing.T) {
	r := startRelay(t, true)
	s := r.sotw()
	s.send(&discoveryv3.DiscoveryRequest{TypeUrl: healthType})
	s.send(subscribe(seV1))
	if got := s.next().TypeUrl; got != seV1 {
		t.Errorf("answered %q", got)
	}
}

func TestRepeatedNodesAreTolerated_S1(t *testing.T) {
	r := startRelay(t, true)
	s := r.sotw()
	for _, url := range []string{seV1, drV1, vsV1} {
		s.send(subscribe(url))
		resp := s.next()
		a := ack(resp)
		a.Node = node()
		s.send(a)
	}
	if n := len(r.server.Clients()); n != 1 {
		t.Errorf("%d clients, want 1", n)
	}
}

func TestFirstRequestIsInitialWhateverItsNonce_S2(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	s := r.sotw()
	req := subscribe(seV1)
	req.ResponseNonce = time.Now().String() // as istiod's client sends it
	s.send(req)
	if got := names(t, s.next()); got != "shop/a" {
		t.Errorf("got %q", got)
	}
}

func TestEveryTypeIsAnswered_S3(t *testing.T) {
	r := startRelay(t, true)
	s, d := r.sotw(), r.delta()
	urls := []string{"example.com/v1/Widget", "not a type url", "type.googleapis.com/envoy.config.cluster.v3.Cluster"}
	for _, info := range mirror.Kinds() {
		urls = append(urls, info.TypeURLs()...)
	}
	for _, url := range urls {
		s.send(subscribe(url))
		if resp := s.next(); resp.TypeUrl != url || len(resp.Resources) != 0 || resp.Nonce == "" {
			t.Errorf("SotW %s: answered %v", url, resp)
		}
		d.send(subscribeDelta(url))
		if resp := d.next(); resp.TypeUrl != url || len(resp.Resources) != 0 || resp.Nonce == "" {
			t.Errorf("delta %s: answered %v", url, resp)
		}
	}
}

func TestClientsAreHeldUntilSourcesSync_S4(t *testing.T) {
	r := startRelay(t, false)
	r.put(se("shop", "a", "a.example"))
	s, d := r.sotw(), r.delta()
	s.send(subscribe(seV1))
	d.send(subscribeDelta(seV1))
	r.eventually(t, "both clients are held", func() bool {
		c := r.server.Clients()
		return len(c) == 2 && c[0].Held && c[1].Held && len(c[0].Types) == 1 && len(c[1].Types) == 1
	})
	r.put(se("shop", "b", "b.example"))
	r.store.SetSynced()
	// The first answer is the complete one: nothing premature came before.
	if got := names(t, s.next()); got != "shop/a shop/b" {
		t.Errorf("SotW: %q", got)
	}
	if got := deltaNames(d.next()); got != "shop/a shop/b" {
		t.Errorf("delta: %q", got)
	}
}

func TestHoldingIsBounded_S4(t *testing.T) {
	enough := make(chan struct{})
	r := startRelay(t, false, func(_ *Config, d *Deps) {
		d.Await = func(context.Context) error { <-enough; return nil } // whatever has synced
	})
	r.put(se("shop", "a", "a.example"))
	s := r.sotw()
	s.send(subscribe(seV1))
	r.eventually(t, "the client is held, and the source's content merged", func() bool {
		c := r.server.Clients()
		return len(c) == 1 && c[0].Held && len(c[0].Types) == 1 && r.server.views.resources.Get(se("shop", "a", "").Key()) != nil
	})
	close(enough)
	if got := names(t, s.next()); got != "shop/a" {
		t.Errorf("got %q", got)
	}
	// The source that was late is served as it comes.
	r.put(se("shop", "b", "b.example"))
	if got := names(t, s.next()); got != "shop/a shop/b" {
		t.Errorf("got %q", got)
	}
}

func TestPushesDoNotWaitForACKs_S6(t *testing.T) {
	r := startRelay(t, true)
	s := r.sotw()
	s.send(subscribe(meshURL))
	s.next()
	for i := range 3 {
		r.put(build(mirror.MeshConfig, "", mirror.MeshConfigName, meshConfig(fmt.Sprint(i))))
		if resp := s.next(); len(resp.Resources) != 1 || resp.Resources[0].TypeUrl != "type.googleapis.com/istio.mesh.v1alpha1.MeshConfig" {
			t.Fatalf("push %d: %v", i, resp)
		}
	}
	if st := r.server.Clients()[0].Types[0]; !st.Synced || st.ACKs != 0 {
		t.Errorf("a MeshConfig counts as synced once sent, it is never acknowledged: %+v", st)
	}
}

// TestRequestsAreClassified_S7 sends one request after another on one stream. A
// sentinel type after each shows whether it was answered.
func TestRequestsAreClassified_S7(t *testing.T) {
	nack := func(resp *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
		req := ack(resp)
		req.ErrorDetail = &rpcstatus.Status{Message: "hosts are missing"}
		return req
	}
	for _, tc := range []struct {
		name    string
		request func(first *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest
		answer  string // "-" for none
	}{
		{"matching nonce is an ACK", ack, "-"},
		{"error_detail is a NACK, which is not answered", nack, "-"},
		{"empty nonce asks again", func(*discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
			return &discoveryv3.DiscoveryRequest{TypeUrl: seV1}
		}, "shop/a shop/b"},
		{"other nonce is stale", func(f *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
			req := ack(f)
			req.ResponseNonce = "999"
			req.ResourceNames = []string{"shop/a"}
			return req
		}, "-"},
		{"matching nonce with other names is answered", func(f *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
			req := ack(f)
			req.ResourceNames = []string{"shop/b"}
			return req
		}, "shop/b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startRelay(t, true)
			r.put(se("shop", "a", "a.example"), se("shop", "b", "b.example"))
			s := r.sotw()
			s.send(subscribe(seV1))
			first := s.next()
			s.send(tc.request(first))
			got := "-"
			// Two sentinels: the second is sent when the first was answered, so that an
			// answer in the same round as the first is seen in any case.
			for _, sentinel := range []string{vsV1, drV1} {
				s.send(subscribe(sentinel))
				for {
					resp := s.next()
					if resp.TypeUrl == sentinel {
						break
					}
					got = names(t, resp)
				}
			}
			if got != tc.answer {
				t.Errorf("answered %q, want %q", got, tc.answer)
			}
		})
	}
}

func TestReceiptIsRecordedPerType_S7(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	s := r.sotw()
	s.send(subscribe(seV1))
	resp := s.next()
	status := func() TypeStatus { return r.server.Clients()[0].Types[0] }
	if status().Synced {
		t.Error("synced before the ACK")
	}
	s.send(ack(resp))
	r.eventually(t, "ACK is recorded", func() bool { return status().ACKs == 1 && status().Synced })
	r.put(se("shop", "b", "b.example"))
	resp = s.next()
	req := ack(resp)
	req.ErrorDetail = &rpcstatus.Status{Message: strings.Repeat("bad ", 1000)}
	s.send(req)
	r.eventually(t, "NACK is recorded", func() bool { return status().NACKs == 1 })
	if st := status(); st.Synced || len(st.LastNACK) > 1100 {
		t.Errorf("after a NACK: synced %v, text of %d bytes", st.Synced, len(st.LastNACK))
	}
}

func TestElementsAreExactAnys_S8(t *testing.T) {
	r := startRelay(t, true)
	a := se("shop", "a", "a.example")
	r.put(a)
	s := r.sotw()
	s.send(subscribe(seV1))
	resp := s.next()
	if resp.TypeUrl != seV1 {
		t.Errorf("response is a %q", resp.TypeUrl)
	}
	if got := resp.Resources[0].TypeUrl; got != "type.googleapis.com/istio.mcp.v1alpha1.Resource" {
		t.Errorf("element is a %q", got)
	}
	m := decode(t, resp.Resources[0])
	if m.Metadata.Version != a.Version() || m.Body.TypeUrl != "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry" {
		t.Errorf("resource is %v", m)
	}
}

func TestAResponseIsTheCompleteType_S9(t *testing.T) {
	r := startRelay(t, true)
	want := map[string]bool{}
	var all []*mirror.Resource
	for i := range 3000 { // several pages
		res := se("shop", fmt.Sprintf("s-%04d", i), fmt.Sprintf("s%d.example", i))
		want[res.FullName()] = true
		all = append(all, res)
	}
	r.put(all...)
	s := r.sotw()
	s.send(subscribe(seV1))
	resp := s.next()
	for len(resp.Resources) < len(want) {
		resp = s.next()
	}
	check := func() {
		t.Helper()
		got := map[string]bool{}
		for _, name := range strings.Fields(names(t, resp)) {
			if got[name] || !want[name] {
				t.Fatalf("%s came twice or was not asked for", name)
			}
			got[name] = true
		}
		if len(got) != len(want) {
			t.Fatalf("%d names, want %d", len(got), len(want))
		}
	}
	check()
	for i := 0; i < 3000; i += 3 {
		res := se("shop", fmt.Sprintf("s-%04d", i), "")
		delete(want, res.FullName())
		r.remove(res)
	}
	for len(resp.Resources) != len(want) {
		resp = s.next()
	}
	check()
}

func TestOneResourceUnderAllItsVersions_S13(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"), se("shop", "b", "b.example"))
	s := r.sotw()
	var first string
	for _, url := range []string{seV1, seV1beta1, seV1alpha3} {
		s.send(subscribe(url))
		resp := s.next()
		got := fmt.Sprint(resp.Resources)
		if first == "" {
			first = got
		}
		if resp.TypeUrl != url || got != first {
			t.Errorf("%s differs", url)
		}
	}
}

func TestClientsSeeTheirRevision_S14(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "all", "a.example"),
		se("shop", "blue", "b.example", "istio.io/rev", "blue"),
		se("shop", "green", "g.example", "istio.io/rev", "green"))
	for revision, want := range map[string]string{
		"": "shop/all shop/blue shop/green", "blue": "shop/all shop/blue", "green": "shop/all shop/green", "red": "shop/all",
	} {
		s := r.sotw()
		req := subscribe(seV1)
		req.Node = node("ISTIO_REVISION", revision)
		s.send(req)
		resp := s.next()
		for len(resp.Resources) < len(strings.Fields(want)) {
			resp = s.next()
		}
		if got := names(t, resp); got != want {
			t.Errorf("revision %q sees %q, want %q", revision, got, want)
		}
	}
}

func TestNamespaceIsTakenFromTheID_S14(t *testing.T) {
	r := startRelay(t, true)
	s := r.sotw()
	s.send(subscribe(seV1))
	s.next()
	if got := r.server.Clients()[0].Namespace; got != "istio-system" {
		t.Errorf("namespace %q", got)
	}
}

func TestTouchWithoutChangeIsNoPush_S15(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	s := r.sotw()
	s.send(subscribe(seV1))
	first := s.next()
	r.put(se("shop", "a", "a.example")) // the same content
	r.put(se("shop", "b", "b.example"))
	second := s.next()
	if got := names(t, second); got != "shop/a shop/b" {
		t.Errorf("the touch was pushed: %q", got)
	}
	if first.Nonce == second.Nonce || first.VersionInfo == second.VersionInfo {
		t.Errorf("nonces %q %q, versions %q %q", first.Nonce, second.Nonce, first.VersionInfo, second.VersionInfo)
	}
	r.remove(se("shop", "b", "b.example"))
	if third := s.next(); third.VersionInfo != first.VersionInfo {
		t.Errorf("the same content is version %q once and %q then", first.VersionInfo, third.VersionInfo)
	}
}

func TestReconnectWithVersionIsSpared_S15(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	s := r.sotw()
	s.send(subscribe(seV1))
	version := s.next().VersionInfo
	again := r.sotw()
	req := subscribe(seV1)
	req.VersionInfo = version
	again.send(req)
	again.send(subscribe(vsV1))
	if got := again.next().TypeUrl; got != vsV1 {
		t.Errorf("%s was sent to a client that has it", got)
	}
	r.put(se("shop", "b", "b.example"))
	if got := names(t, again.next()); got != "shop/a shop/b" {
		t.Errorf("the next change brings %q", got)
	}
}

// TestSubscriptionsOfTheSpecification_S16 is the example of the xDS specification.
func TestSubscriptionsOfTheSpecification_S16(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"), se("shop", "b", "b.example"))
	s := r.sotw()
	s.send(subscribe(seV1))
	resp := s.next()
	next := func(resourceNames ...string) string {
		t.Helper()
		req := ack(resp)
		req.ResourceNames = resourceNames
		s.send(req)
		resp = s.next()
		return names(t, resp)
	}
	if got := names(t, resp); got != "shop/a shop/b" {
		t.Errorf("no names at first: %q", got)
	}
	if got := next("*", "shop/a"); got != "shop/a shop/b" {
		t.Errorf("* and a name: %q", got)
	}
	if got := next("shop/a"); got != "shop/a" {
		t.Errorf("the name alone: %q", got)
	}
	// No names now is no subscription: changes do not come any more.
	req := ack(resp)
	s.send(req)
	r.eventually(t, "unsubscribed", func() bool { return r.server.Clients()[0].Types[0].ACKs == 3 })
	r.put(se("shop", "a", "new.example"))
	s.send(subscribe(vsV1))
	if got := s.next().TypeUrl; got != vsV1 {
		t.Errorf("%s came after it was unsubscribed", got)
	}
}

func TestReferencedKindsFirstAndRemovalsLast_S20(t *testing.T) {
	order := func(t *testing.T, s *sotwStream, n int) string {
		var out []string
		for range n {
			resp := s.next()
			out = append(out, resp.TypeUrl[strings.LastIndex(resp.TypeUrl, "/")+1:])
		}
		return strings.Join(out, " ")
	}
	r := startRelay(t, true)
	s := r.sotw()
	for _, url := range []string{vsV1, drV1, seV1} { // not the order of sending
		s.send(subscribe(url))
	}
	order(t, s, 3)
	all := []*mirror.Resource{vs("shop", "a", "a.example"), dr("shop", "a", "a.example"), se("shop", "a", "a.example")}
	r.whileClientsWait(func() { r.put(all...) }, func(v *view) bool {
		return v.snapshot(typeSE).Count+v.snapshot(typeDR).Count+v.snapshot(typeVS).Count == 3
	})
	if got := order(t, s, 3); got != "ServiceEntry DestinationRule VirtualService" {
		t.Errorf("additions came as %s", got)
	}
	r.whileClientsWait(func() { r.remove(all[2], all[1], all[0]) }, func(v *view) bool {
		return v.snapshot(typeSE).Count+v.snapshot(typeDR).Count+v.snapshot(typeVS).Count == 0
	})
	if got := order(t, s, 3); got != "VirtualService DestinationRule ServiceEntry" {
		t.Errorf("removals came as %s", got)
	}
}

func TestOnlyRequestedTypesAreSent_S26(t *testing.T) {
	r := startRelay(t, true)
	s := r.sotw()
	s.send(subscribe(vsV1))
	s.next()
	r.put(se("shop", "a", "a.example"))
	r.put(vs("shop", "a", "a.example"))
	if got := s.next().TypeUrl; got != vsV1 {
		t.Errorf("%s was not asked for", got)
	}
}

func TestTypesPerClientAreBounded_S25(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxTypesPerClient = 3 })
	s := r.sotw()
	for i := range 3 {
		s.send(subscribe(fmt.Sprintf("example.com/v1/Kind%d", i)))
		s.next()
	}
	s.send(subscribe("example.com/v1/OneMore"))
	wantCode(t, s.end(), codes.ResourceExhausted)
}
