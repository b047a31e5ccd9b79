package downstream

import "testing"

// TestACommandOfTheRelayIsKnownByItsName: the pod of its node ID, and nothing that only looks like it.
func TestACommandOfTheRelayIsKnownByItsName(t *testing.T) {
	for id, want := range map[string]bool{
		"waypoint~127.0.0.1~relay-get.istio-system~istio-system.svc.cluster.local": true,
		"waypoint~127.0.0.1~relay-getter.istio-system~x":                           false,
		"sidecar~10.0.0.1~istiod-7.relay-get.istio-system~x":                       false,
		"relay-get": false,
		"":          false,
	} {
		if got := isTool(id); got != want {
			t.Errorf("%q: %v", id, got)
		}
	}
}
