package xds

import (
	"slices"
	"testing"

	"meshrelay/config"
	"meshrelay/mirror"
)

func TestKindsThatAreNotImportedAreNotAskedFor(t *testing.T) {
	const mesh, widget = "core/v1alpha1/MeshConfig", "example.com/v1/Widget"
	gateways := []string{"networking.istio.io/v1/Gateway", "networking.istio.io/v1beta1/Gateway", "networking.istio.io/v1alpha3/Gateway"}
	entries := []string{"networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1beta1/ServiceEntry", "networking.istio.io/v1alpha3/ServiceEntry"}
	only := func(u *config.Upstream) { u.Import.Kinds = []string{"gateways.networking.istio.io"} }
	mode := func(mode string) func(*config.Upstream) { return func(u *config.Upstream) { u.Services.Mode = mode } }
	for name, tc := range map[string]struct {
		got, want []string
	}{
		"a MeshConfig is":             {askedFor(false, []string{widget}, only, mode(config.ServicesOmit)), slices.Concat([]string{mesh}, gateways)},
		"of a relay":                  {askedFor(true, []string{widget}, only), []string{mesh, gateways[0]}},
		"services need their entries": {askedFor(false, nil, only, mode(config.ServicesGateway)), slices.Concat([]string{mesh}, entries, gateways)},
		"also where they are found":   {askedFor(false, nil, only, mode(config.ServicesDiscover)), slices.Concat([]string{mesh}, entries, gateways)},
		"a type of the config":        {askedFor(false, []string{widget}, func(u *config.Upstream) { u.Import.Kinds = []string{"example.com/Widget"} }), []string{mesh, widget}},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: asked for %q, want %q", name, tc.got, tc.want)
		}
	}
}

// askedFor returns what a server is asked for under a config.
func askedFor(relay bool, extra []string, change ...func(*config.Upstream)) []string {
	u := config.Upstream{Source: &Config{Types: extra}}
	for _, f := range change {
		f(&u)
	}
	return subscriptions(u)(relay)
}

func TestEveryServedVersionIsAskedFor_C1(t *testing.T) {
	urls := askedFor(false, []string{"example.com/v1/Widget"})
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
	for _, url := range askedFor(true, extra) {
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
