package downstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// TestNamesAreBounded: by number and by bytes, of one stream, of one peer, and of all.
func TestNamesAreBounded(t *testing.T) {
	few := []string{"n/0", "n/1", "n/2", "n/3", "n/4"}
	long := []string{"n/" + strings.Repeat("x", 400), "n/" + strings.Repeat("y", 400), "n/" + strings.Repeat("z", 400)}
	for _, tc := range []struct {
		name   string
		limits Limits
		limit  string
		names  []string
		one    bool // a stream by itself is over the limit
	}{
		{"a stream's", Limits{MaxNamesPerClient: 8}, "more than 8 resource names", few, true},
		{"a stream's bytes", Limits{MaxNameBytesPerClient: 2000}, "more than 2000 bytes", long, true},
		{"a peer's", Limits{MaxNamesPerPeer: 12}, "12 resource names of 127.0.0.1", few, false},
		{"a peer's bytes", Limits{MaxNameBytesPerPeer: 3000}, "3000 bytes of resource names of 127.0.0.1", long, false},
		{"all", Limits{MaxNames: 12}, "12 resource names of all", few, false},
		{"all bytes", Limits{MaxNameBytes: 3000}, "3000 bytes of resource names of all", long, false},
	} {
		for _, protocol := range []string{protocolSotW, protocolDelta} {
			t.Run(tc.name+" "+protocol, func(t *testing.T) {
				r := startRelay(t, true, func(c *Config, _ *Deps) { c.Limits = tc.limits })
				r.put(se("n", "0", "0"))
				ask := func() (send func(typeURL string, answered bool), end func() error, cancel func()) {
					if protocol == protocolSotW {
						s := r.sotw()
						s.send(subscribe(meshURL))
						s.next()
						return func(typeURL string, answered bool) {
							s.send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: tc.names})
							for answered && s.next().TypeUrl != typeURL { // a change of another type may come first
							}
						}, s.end, s.cancel
					}
					s := r.delta()
					s.send(subscribeDelta(meshURL))
					s.next()
					return func(typeURL string, answered bool) {
						s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: tc.names})
						for answered && s.next().TypeUrl != typeURL {
						}
					}, s.end, s.cancel
				}
				one, end, cancel := ask()
				one(seV1, true)
				if !tc.one {
					one(drV1, true)
					one, end, _ = ask()
				}
				one(vsV1, false)
				got := end()
				wantCode(t, got, codes.ResourceExhausted)
				if !strings.Contains(got.Error(), tc.limit) {
					t.Errorf("the client is told %q, want %s", got, tc.limit)
				}
				wantRefused(t, r, refusal.Names, 1)
				cancel()
				r.eventually(t, "what ended streams had is free", func() bool {
					r.server.usage.mu.Lock()
					defer r.server.usage.mu.Unlock()
					return r.server.usage.kept == (subscription.Usage{})
				})
			})
		}
	}
}

// TestNamesThatAreDroppedAreFree: and asked for twice, a name counts once.
func TestNamesThatAreDroppedAreFree(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxNamesPerClient, c.MaxNameBytesPerClient = 2, 6 })
	d, s := r.deltaBy("a", meshURL), r.sotw()
	s.send(subscribe(meshURL))
	for range 3 {
		for _, names := range [][]string{{"n/0", "n/1"}, {"n/1", "n/1"}, {"n/2", "*"}} {
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResourceNamesSubscribe: names})
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResourceNamesUnsubscribe: names})
			s.send(&discoveryv3.DiscoveryRequest{TypeUrl: seV1, ResourceNames: names})
		}
	}
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1})
	s.send(&discoveryv3.DiscoveryRequest{TypeUrl: drV1})
	for d.next().TypeUrl != drV1 {
	}
	for s.next().TypeUrl != drV1 {
	}
}

// TestNamesThatNoResourceCanHaveAreRefused: they would only be kept.
func TestNamesThatNoResourceCanHaveAreRefused(t *testing.T) {
	r := startRelay(t, true)
	d := r.deltaBy("a", meshURL)
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResourceNamesSubscribe: []string{strings.Repeat("n", subscription.MaxName)}})
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResourceNamesSubscribe: []string{strings.Repeat("n", subscription.MaxName+1)}})
	wantCode(t, d.end(), codes.InvalidArgument)
	wantRefused(t, r, refusal.Names, 1)
}

// TestVersionsThatWaitToBeComparedAreBounded: while clients wait for the sources to sync, and
// while one does not read. What was compared is free again.
func TestVersionsThatWaitToBeComparedAreBounded(t *testing.T) {
	r := startRelay(t, false, func(c *Config, _ *Deps) { c.MaxVersionBytes = 4000 })
	hold := func() *deltaStream {
		d := r.delta()
		d.send(subscribeDelta(meshURL))
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, InitialResourceVersions: map[string]string{"shop/a": strings.Repeat("x", 2000)}})
		return d
	}
	first := hold()
	r.eventually(t, "it is counted", func() bool {
		r.server.usage.mu.Lock()
		defer r.server.usage.mu.Unlock()
		return r.server.usage.kept.Versions > 2000
	})
	end := hold().end()
	wantCode(t, end, codes.ResourceExhausted)
	if !strings.Contains(end.Error(), "bytes of resource versions") || strings.Contains(strings.ToLower(end.Error()), "maxrequestbytes") {
		t.Errorf("the client is told %q, and is to come back with what it has", end)
	}
	wantRefused(t, r, refusal.Versions, 1)
	r.store.SetSynced()
	first.next()
	first.next()
	later := hold()
	later.next()
	later.next()
}

// TestAStreamThatHasEndedKeepsNoVersions: the server may refer to it until its connection closes.
func TestAStreamThatHasEndedKeepsNoVersions(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxVersionBytes = 1000 })
	d := r.delta()
	d.send(subscribeDelta(meshURL))
	d.next()
	r.server.mu.Lock()
	c := r.server.conns[0]
	r.server.mu.Unlock()
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, InitialResourceVersions: map[string]string{"shop/a": strings.Repeat("x", 2000)}})
	wantCode(t, d.end(), codes.ResourceExhausted)
	r.eventually(t, "it keeps nothing", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.closed && len(c.subs.Watches()) == 0
	})
}

// TestVersionsThatNoKindHasAreUnknownTypes_S3: so nobody is sent everything under many names.
func TestVersionsThatNoKindHasAreUnknownTypes_S3(t *testing.T) {
	r := startRelay(t, true)
	widget := mirror.Kind{Group: "example.com", Kind: "Widget"}
	r.put(se("shop", "a", "a.example"), build(widget, "shop", "a", meshConfig("x")))
	d, s := r.deltaBy("a", seV1), r.sotw()
	s.send(subscribe(seV1alpha3))
	if n := len(d.next().Resources) + len(s.next().Resources); n != 2 {
		t.Errorf("%d resources in versions that there are", n)
	}
	for i := range 5 {
		url := fmt.Sprintf("networking.istio.io/v%d/ServiceEntry", i+2)
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url})
		s.send(&discoveryv3.DiscoveryRequest{TypeUrl: url})
		delta, sotw := d.next(), s.next()
		if delta.TypeUrl != url || len(delta.Resources) != 0 || sotw.TypeUrl != url || len(sotw.Resources) != 0 {
			t.Errorf("%s: %d resources by delta, %d by SotW", url, len(delta.Resources), len(sotw.Resources))
		}
	}
	served := 0
	for i := range 2 * maxURLs {
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: fmt.Sprintf("example.com/v%d/Widget", i)})
		served += len(d.next().Resources)
	}
	if served != maxURLs {
		t.Errorf("a kind that is not well known is served in %d versions to one stream", served)
	}
}

// TestLeavingManyNamesOfAWildcardBringsEverything: instead of a list without end.
func TestLeavingManyNamesOfAWildcardBringsEverything(t *testing.T) {
	r := startRelay(t, true)
	r.put(many(2*maxResend, "s-%03d", func(int) string { return "x" })...)
	d := r.deltaBy("a", seV1)
	for n := 0; n < 2*maxResend; {
		n += len(d.next().Resources)
	}
	leave := func(n int) []string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("shop/s-%03d", i))
		}
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResourceNamesUnsubscribe: names})
		got := strings.Fields(deltaNames(d.next()))
		slices.Sort(got)
		return got
	}
	if got := leave(maxResend); len(got) != maxResend {
		t.Errorf("%d resources are brought again", len(got))
	}
	if got := leave(maxResend + 1); len(got) != 2*maxResend {
		t.Errorf("%d resources are brought again", len(got))
	}
}
