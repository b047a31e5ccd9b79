package relay

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/config"
	"meshrelay/mirror"
)

// listed is a mergedView.
type listed []*mirror.Resource

func (l listed) List(kind mirror.Kind, namespace string) (out []*mirror.Resource) {
	for _, r := range l {
		if r.Kind() == kind && (namespace == "" || r.Namespace() == namespace) {
			out = append(out, r)
		}
	}
	return out
}

// TestPowerfulKindsThatNothingLimitsAreNoted in one line per upstream, and not for upstreams with import
// rules.
func TestPowerfulKindsThatNothingLimitsAreNoted(t *testing.T) {
	var all listed
	add := func(source, group, kind, namespace, name string) {
		info, ok := mirror.LookupKind(mirror.Kind{Group: group, Kind: kind})
		if !ok {
			t.Fatalf("no kind %s", kind)
		}
		body, err := anypb.New(info.NewBody())
		if err != nil {
			t.Fatal(err)
		}
		r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: info.Kind, Namespace: namespace, Name: name}, Source: source, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	for _, source := range []string{"open", "kinds", "namespaces", "profile", "all"} {
		add(source, "networking.istio.io", "EnvoyFilter", "shop", "a")
		add(source, "networking.istio.io", "EnvoyFilter", "shop", "b")
		add(source, "extensions.istio.io", "WasmPlugin", "shop", "a")
		add(source, "security.istio.io", "AuthorizationPolicy", "istio-system", "a")
	}
	add("harmless", "security.istio.io", "AuthorizationPolicy", "shop", "a")
	add("harmless", "networking.istio.io", "ServiceEntry", "istio-system", "a")
	got := powerfulImports([]config.Upstream{
		{Name: "open", Import: config.Import{Revision: "blue"}}, {Name: "kinds", Import: config.Import{Kinds: []string{"se", "envoyfilters"}}},
		{Name: "namespaces", Import: config.Import{Namespaces: config.Globs{Include: []string{"shop"}}}}, {Name: "harmless"},
		{Name: "profile", Import: config.Import{Profile: "routing"}}, {Name: "all", Import: config.Import{Profile: "all"}},
	}, all)
	const these = ": no import rule limits these, which affect every mesh behind this relay: 2 EnvoyFilter, 1 WasmPlugin, 1 AuthorizationPolicy in istio-system; see upstreams[].import.profile"
	if strings.Join(got, "\n") != "upstream open"+these {
		t.Errorf("%q", got)
	}
}
