// Package collecting reads the metrics of collectors in tests, as slowly as a registry may. It knows no collector.
package collecting

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/internal/testing/await"
)

// Unlocked fails the test when a collector holds a lock while it waits to send a metric: when use, which needs that
// lock, does not return between two metrics. A registry receives the metrics of all collectors in turn, and asks
// some for their values as it receives; so a collector that sends under a lock stops the relay for good.
func Unlocked(t *testing.T, c prometheus.Collector, use func()) {
	t.Helper()
	metrics := make(chan prometheus.Metric)
	go func() {
		defer close(metrics)
		c.Collect(metrics)
	}()
	for range metrics {
		await.Return(t, fmt.Sprintf("%T holds no lock while it sends a metric", c), use)
	}
}
