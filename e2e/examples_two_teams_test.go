package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestExampleTwoTeams runs examples/two-teams with an istiod of each team, which is upstream and client of the relay,
// and one of a third. A team tries to take over a host of the other, and does not.
func TestExampleTwoTeams(t *testing.T) {
	t.Parallel()
	x := newExample(t, "two-teams")
	payments := x.istiodAt("payments", "127.0.0.1:15110", x.address("127.0.0.1:15011"))
	shop := x.istiodAt("shop", "127.0.0.1:15210", x.address("127.0.0.1:15012"))
	x.give(payments, "clusters/payments")
	x.give(shop, "clusters/shop")
	r := x.relay("relay.yaml").start()
	payments.start().ready()
	shop.start().ready()
	r.ready()
	platform := newIstiod(t, "platform", r.xds).start().ready()

	const net = "networking.istio.io/"
	platform.has(net+"ServiceEntry payments/api", "10.1.0.10")
	platform.has(net+"ServiceEntry shop/web", "10.2.0.10")
	payments.has(net+"ServiceEntry shop/web", "10.2.0.10")

	sent := func(address, typeURL string) []string {
		all, err := dial(t, x.address(address)).list(typeURL)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(all))
	}
	for _, tc := range []struct {
		of, address, typeURL string
		want                 []string
	}{
		{"payments", "127.0.0.1:15011", seV1, []string{"shop/web"}},
		{"payments", "127.0.0.1:15011", "networking.istio.io/v1/DestinationRule", nil},
		{"payments", "127.0.0.1:15011", "networking.istio.io/v1/VirtualService", nil},
		{"payments", "127.0.0.1:15011", "security.istio.io/v1/PeerAuthentication", nil},
		{"shop", "127.0.0.1:15012", seV1, []string{"payments/api"}},
		{"shop", "127.0.0.1:15012", "networking.istio.io/v1/DestinationRule", []string{"payments/api"}},
		{"shop", "127.0.0.1:15012", "networking.istio.io/v1/VirtualService", nil},
		{"platform", "127.0.0.1:15010", seV1, []string{"payments/api", "shop-internal/ledger", "shop/web"}},
	} {
		if got := sent(tc.address, tc.typeURL); !slices.Equal(got, tc.want) {
			t.Errorf("%s is sent %s %v, want %v", tc.of, tc.typeURL, got, tc.want)
		}
	}

	t.Run("README", func(t *testing.T) {
		for _, words := range []string{"validate", "explain"} {
			x.shows(t, words)
		}
	})

	t.Run("TheCallsStayWithTheirOwner", func(t *testing.T) {
		for _, i := range []*istiod{payments, platform} {
			for key, config := range i.configs() {
				if strings.Contains(config, "10.66.0.") || strings.Contains(config, "*.") || strings.Contains(config, "DISABLE") {
					t.Errorf("%s has %s: %s", i.name, key, config)
				}
			}
		}
	})
}
