package xds

import (
	"slices"
	"testing"

	"meshrelay/mirror"
)

func TestEveryServedVersionIsAskedFor_C1(t *testing.T) {
	urls := subscriptions(false, []string{"example.com/v1/Widget"})
	if urls[0] != "core/v1alpha1/MeshConfig" {
		t.Errorf("the first is %s", urls[0])
	}
	for _, info := range mirror.Kinds() {
		for _, url := range info.TypeURLs() {
			if !slices.Contains(urls, url) {
				t.Errorf("%s is not asked for", url)
			}
		}
	}
	if !slices.Contains(urls, "example.com/v1/Widget") {
		t.Error("the type from the config is not asked for")
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(urls)))); n != len(urls) {
		t.Errorf("%d types, %d of them different", len(urls), n)
	}
}

func TestARelayIsAskedForOneVersionOfEachKind_C1(t *testing.T) {
	extra := []string{"example.com/v2/Widget", "example.com/v1/Widget", "networking.istio.io/v1alpha3/ServiceEntry"}
	kinds, serviceEntry := map[mirror.Kind]string{}, mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	for _, url := range subscriptions(true, extra) {
		kind, _, err := mirror.ParseTypeURL(url)
		if err != nil {
			t.Fatal(err)
		}
		if have := kinds[kind]; have != "" {
			t.Errorf("both %s and %s are asked for", have, url)
		}
		kinds[kind] = url
	}
	if got := kinds[serviceEntry]; got != "networking.istio.io/v1/ServiceEntry" {
		t.Errorf("ServiceEntries are asked for as %s", got)
	}
	if got := kinds[mirror.Kind{Group: "example.com", Kind: "Widget"}]; got != extra[0] {
		t.Errorf("Widgets are asked for as %s", got)
	}
}
