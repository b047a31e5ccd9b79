package downstream

import (
	"strings"
	"testing"

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
