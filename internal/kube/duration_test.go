package kube

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"
)

// TestDurationsAreThoseOfKubernetes: people write 15m and 1h30m, and istiods take them.
func TestDurationsAreThoseOfKubernetes(t *testing.T) {
	spec := `{"host":"a","trafficPolicy":{"outlierDetection":{"interval":"1h30m","baseEjectionTime":"0.250s","maxEjectionPercent":10},
"portLevelSettings":[{"connectionPool":{"tcp":{"connectTimeout":"-1.5ms","maxConnections":9007199}}}],"connection_pool":{"tcp":{"connect_timeout":"2m"}}}}`
	rule := &networking.DestinationRule{}
	if err := decodeSpec([]byte(spec), rule); err != nil {
		t.Fatal(err)
	}
	p := rule.TrafficPolicy
	for _, c := range []struct {
		have *durationpb.Duration
		want time.Duration
	}{
		{p.OutlierDetection.Interval, 90 * time.Minute},
		{p.OutlierDetection.BaseEjectionTime, 250 * time.Millisecond},
		{p.PortLevelSettings[0].ConnectionPool.Tcp.ConnectTimeout, -1500 * time.Microsecond},
		{p.ConnectionPool.Tcp.ConnectTimeout, 2 * time.Minute},
	} {
		if c.have.AsDuration() != c.want {
			t.Errorf("%v, want %v", c.have.AsDuration(), c.want)
		}
	}
	for _, wrong := range []string{`"soon"`, `"15"`, `15`, `"15M"`} {
		if err := decodeSpec([]byte(`{"trafficPolicy":{"outlierDetection":{"interval":`+wrong+`,"baseEjectionTime":"1m"}}}`), &networking.DestinationRule{}); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}
