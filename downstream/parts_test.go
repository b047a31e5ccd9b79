package downstream

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/subscription"
)

// TestClientsWithTheUsualLimitAreSentAllInParts_S18: 10 MB, to a client that kept gRPC's limit and
// loses its stream after the first part.
func TestClientsWithTheUsualLimitAreSentAllInParts_S18(t *testing.T) {
	const n = 9000
	r := startRelay(t, true)
	r.put(many(n, "s-%04d", func(int) string { return strings.Repeat("x", 1000) })...)
	held := map[string]string{}
	for stream := range 2 {
		d := r.delta(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(defaultReceiveLimit)))
		req := subscribeDelta(seV1)
		req.InitialResourceVersions = held
		d.send(req)
		had := len(held)
		for more := true; more; {
			resp := d.next()
			if size := proto.Size(resp); size > subscription.PartBytes+1000 {
				t.Errorf("a part has %d bytes", size)
			}
			for _, res := range resp.Resources {
				if held[res.Name] != "" {
					t.Fatalf("stream %d: %s comes again", stream, res.Name)
				}
				held[res.Name] = res.Version
			}
			more = resp.SystemVersionInfo != "" && stream > 0
		}
		if stream == 0 && (len(held) == 0 || len(held) == n) || stream == 1 && len(held) != n {
			t.Errorf("after stream %d the client has %d, before it %d", stream, len(held), had)
		}
		d.cancel()
	}
}

// TestRelaysThatKnowNoPartsAreSentWholeAnswers_S18: those before parts take the first response of a
// type for all of it.
func TestRelaysThatKnowNoPartsAreSentWholeAnswers_S18(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.partBytes = 1000 })
	r.put(many(20, "s-%02d", func(i int) string { return fmt.Sprintf("%d.example", i) })...)
	for name, tc := range map[string]struct {
		node  *corev3.Node
		whole bool
	}{
		"no relay":                {node(), false},
		"a relay that knows them": {node("RELAY_CLUSTER_ID", "", "RELAY_PARTS", "true"), false},
		"a relay that does not":   {node("RELAY_CLUSTER_ID", "east"), true},
	} {
		t.Run(name, func(t *testing.T) {
			d := r.delta()
			req := subscribeDelta(seV1)
			req.Node = tc.node
			d.send(req)
			responses, resources := 0, 0
			for resources < 20 {
				resources += len(d.next().Resources)
				responses++
			}
			if (responses == 1) != tc.whole {
				t.Errorf("%d resources came in %d responses", resources, responses)
			}
		})
	}
}
