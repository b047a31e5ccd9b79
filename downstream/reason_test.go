package downstream

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/mirror"
	"meshrelay/push"
)

// TestPushesAreCountedByTheirReasons: a request counts once under each reason that it merges, and under
// none when it changes nothing that is served.
func TestPushesAreCountedByTheirReasons(t *testing.T) {
	merged := newCopies("east")
	r := startRelay(t, true, func(_ *Config, d *Deps) { d.Resources = merged })
	counts := func() map[push.Reason]float64 {
		out := map[push.Reason]float64{}
		for _, why := range push.Reasons() {
			out[why] = testutil.ToFloat64(r.server.metrics.pushRequests.WithLabelValues(string(why)))
		}
		return out
	}
	asks := func(host string, reasons map[push.Reason]int) {
		key := merged.put(se("shop", "a", host))
		r.server.Push(&push.Request{ConfigsUpdated: map[mirror.Key]struct{}{key: {}}, Reason: reasons, Start: time.Now()})
	}
	asks("one.example", map[push.Reason]int{push.ConfigUpdate: 3})
	asks("two.example", map[push.Reason]int{push.ConfigUpdate: 2, push.CopyUpdate: 5})
	asks("two.example", map[push.Reason]int{push.CopyUpdate: 1}) // it is so already
	asks("three.example", map[push.Reason]int{push.ServiceUpdate: 1, push.EndpointUpdate: 4})
	asks("four.example", map[push.Reason]int{push.EndpointUpdate: 1})
	want := map[push.Reason]float64{push.ConfigUpdate: 2, push.CopyUpdate: 1, push.ServiceUpdate: 1, push.EndpointUpdate: 2}
	if got := counts(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
