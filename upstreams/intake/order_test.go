package intake

import (
	"slices"
	"testing"

	"meshrelay/federation"
	"meshrelay/mirror"
)

var partKeys = []mirror.Key{
	{Kind: federation.ServiceEntry, Namespace: "shop", Name: "a"},
	{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}, Namespace: "shop", Name: "a"},
	{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}, Namespace: "team", Name: "a"},
}

func TestPartsPickByKindAndNamespace(t *testing.T) {
	for text, want := range map[string][]string{
		"virtualservice/shop":                   {"VirtualService shop/a"},
		"vs/*":                                  {"VirtualService shop/a", "VirtualService team/a"},
		"*/shop":                                {"ServiceEntry shop/a", "VirtualService shop/a"},
		"networking.istio.io/ServiceEntry/shop": {"ServiceEntry shop/a"},
		"se/nowhere":                            nil,
	} {
		part, err := ParsePart(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, key := range partKeys {
			if (Order{Only: []Part{part}}).picks(key) {
				got = append(got, key.Kind.Kind+" "+key.FullName())
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s picks %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"", "vs", "nothing/shop"} {
		if _, err := ParsePart(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
