package cliview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/events"
	"meshrelay/mirror"
)

func TestEventsAreLines(t *testing.T) {
	r := &events.Resources{}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.Note(events.Removal, mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: name})
	}
	ms := func(n int) time.Time { return testNow.Add(time.Duration(n) * time.Millisecond) }
	all := []events.Event{
		{Time: testNow, Type: events.Held, Upstream: "east", By: events.ByGuard, Text: "4 deletions of 9 resources held", Reason: "4 of 9", Hold: "7f3a", Resources: r, Command: "relay upstreams --held east"},
		{Time: testNow, Type: events.Changed, Upstream: "east", By: events.ByUpstream, Text: "4 removed", Count: 3, Since: ms(-900), Stages: &events.Stages{
			Received: ms(0), Merged: ms(1), Pushed: ms(2), Half: ms(5), Clients: 3, Acknowledged: 2,
		}},
		{Time: testNow, Type: events.NACK, By: events.ByClient, Client: "istiod\x1b[2J", Text: "rejects x"},
		{Time: testNow, Type: events.Ordered, By: events.ByOperator, Operator: &events.Operator{UID: 7}, Text: "reload"},
	}
	var out strings.Builder
	if err := NewEvents(&out, true).Print(all); err != nil {
		t.Fatal(err)
	}
	want := `TIME                       TYPE           UPSTREAM   BY         WHAT
2024-02-03T04:05:06.000Z   held           east       guard      4 deletions of 9 resources held: -se shop/a, -se shop/b, -se shop/c and 1 more (4 of 9) [hold 7f3a]; see relay upstreams --held east
2024-02-03T04:05:06.000Z   changed        east       upstream   4 removed [3 times in 900ms]; merged 1ms, pushed 2ms, half of the clients 5ms, 2 of 3 clients
2024-02-03T04:05:06.000Z   nack           -          client     client istiod?[2J: rejects x
2024-02-03T04:05:06.000Z   ordered        -          uid 7      reload
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestEventsHaveTheShortNamesOfOtherCommands: POD.NAMESPACE of a client, and no slash for an empty namespace. The
// wide format has full IDs.
func TestEventsHaveTheShortNamesOfOtherCommands(t *testing.T) {
	r := &events.Resources{}
	r.Note(events.Addition, mirror.Key{Kind: mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "GatewayClass"}, Name: "shop"})
	const id = "sidecar~10.0.0.1~istiod-7d9.istio-system~istio-system.svc.cluster.local-3"
	all := []events.Event{{Type: events.Connected, By: events.ByClient, Client: id}, {Type: events.Changed, Upstream: "east", Text: "1 added", Resources: r}}
	for wide, want := range map[bool][]string{false: {"  client istiod-7d9.istio-system\n", "1 added: +gc shop\n"}, true: {"  client " + id + "\n"}} {
		var out strings.Builder
		if err := NewEvents(&out, wide).Print(all); err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains(out.String(), line) {
				t.Errorf("wide %v: no %q in\n%s", wide, line, out.String())
			}
		}
	}
}
