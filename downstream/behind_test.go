package downstream

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// answers returns how many answers have a latency in the metrics.
func answers(t *testing.T, reg *prometheus.Registry) uint64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "relay_downstream_ack_latency_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatal("no latency")
	return 0
}

// TestAClientThatOwesAnACKForLongIsBehind: also one that has rejected, until it acknowledges. Commands of the
// relay do not count.
func TestAClientThatOwesAnACKForLongIsBehind(t *testing.T) {
	r := startRelay(t, true)
	behind := func(after time.Duration) int { return r.server.behind(time.Now().Add(after)) }
	wants := func(what string, n int) {
		t.Helper()
		r.eventually(t, what, func() bool { return behind(behindAfter+time.Minute) == n })
	}
	r.put(se("shop", "a", "a.example"))
	first, second, tool := r.sotw(), r.delta(), r.sotw()
	first.send(subscribe(seV1))
	second.send(subscribeDelta(seV1))
	asks := subscribe(seV1)
	asks.Node.Id = "waypoint~127.0.0.1~" + ToolName + ".istio-system~x"
	tool.send(asks)
	resp, delta := first.next(), second.next()
	tool.next()
	if n := behind(0); n != 0 {
		t.Errorf("%d clients are behind at once", n)
	}
	wants("both owe an ACK", 2)
	if n := answers(t, r.reg); n != 0 {
		t.Errorf("%d latencies without an answer", n)
	}
	first.send(ack(resp))
	wants("one owes an ACK", 1)
	reject := subscribeDelta(seV1)
	reject.Node, reject.ResponseNonce, reject.ErrorDetail = nil, delta.Nonce, &statuspb.Status{Message: "no"}
	second.send(reject)
	r.eventually(t, "an ACK and a NACK have a latency", func() bool { return answers(t, r.reg) == 2 })
	wants("who rejects is behind", 1)
	r.put(se("shop", "a", "b.example"))
	first.send(ack(first.next()))
	accept := subscribeDelta(seV1)
	accept.Node, accept.ResponseNonce = nil, second.next().Nonce
	second.send(accept)
	wants("all have acknowledged", 0)
}
