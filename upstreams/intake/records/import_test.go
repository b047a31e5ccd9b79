package records

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/mirror"
)

// imports returns the rules of u, for a source called east.
func imports(t *testing.T, u config.Upstream, p config.Provenance) *Rules {
	t.Helper()
	u.Name, u.ClusterID = "east", "east-1"
	if u.Services.Mode == "" {
		u.Services.Mode = config.ServicesOmit
	}
	if p == (config.Provenance{}) {
		p = config.Provenance{Relay: "hub"}
	}
	im, err := NewRules(u, p, u.Source == nil)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// aFile is the section of an upstream that is a file.
type aFile struct{ config.Source }

// given is a ServiceEntry as the source has it.
func given(t *testing.T, name string, annotations map[string]string) *mirror.Resource {
	t.Helper()
	body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{"db.shop.svc.cluster.local"}})
	if err != nil {
		t.Fatal(err)
	}
	namespace, name, _ := strings.Cut(name, "/")
	r, err := mirror.New(mirror.Spec{
		Key:    mirror.Key{Kind: federation.ServiceEntry, Namespace: namespace, Name: name},
		Source: "east", SourceVersion: "42", Annotations: annotations, Body: body,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEachRuleLeavesOutForItsReason(t *testing.T) {
	path := func(relays string) map[string]string {
		return map[string]string{mirror.ProvenanceAnnotation: "east via " + relays}
	}
	for _, tc := range []struct {
		name   string
		u      config.Upstream
		r      *mirror.Resource
		reason string
		detail string
	}{
		{"no rules", config.Upstream{}, given(t, "shop/db", nil), "", ""},
		{"it has been here", config.Upstream{}, given(t, "shop/db", path("a,hub,b")), "loop", "(hub)"},
		{"it has been elsewhere", config.Upstream{}, given(t, "shop/db", path("a,b")), "", ""},
		{"it has been far", config.Upstream{}, given(t, "shop/db", path("a,b,c,d,e,f,g,h")), "hops", "8 relays"},
		{"a file may hold what was here", config.Upstream{Source: aFile{}}, given(t, "shop/db", path("a,hub,b")), "", ""},
		{"a file has no services", config.Upstream{Source: aFile{}}, given(t, "shop/synthetic-db", nil), "", ""},
		{"service", config.Upstream{}, given(t, "shop/synthetic-db", nil), "generated", "services.mode"},
		{"kind", config.Upstream{Import: config.Import{Kinds: []string{"vs"}}}, given(t, "shop/db", nil), "kind", `"vs"`},
		{"namespace", config.Upstream{Import: config.Import{Namespaces: config.Globs{Exclude: []string{"sh*"}}}}, given(t, "shop/db", nil), "namespace", `"sh*"`},
		{"selector", config.Upstream{Import: config.Import{Selector: "tier"}}, given(t, "shop/db", nil), "selector", "tier"},
		{"expression", config.Upstream{Import: config.Import{Expression: "spec.hosts[0] == 'x'"}}, given(t, "shop/db", nil), "expression", "false"},
		{"expression that fails", config.Upstream{Import: config.Import{Expression: "spec.hosts[7] == 'x'"}}, given(t, "shop/db", nil), "expression-error", "failed"},
		{"rules see what the source has", config.Upstream{
			Import:  config.Import{Namespaces: config.Globs{Include: []string{"shop"}}},
			Rewrite: config.Rewrite{Namespaces: map[string]string{"shop": "store"}}}, given(t, "shop/db", nil), "", ""},
		{"another namespace lands here", config.Upstream{Rewrite: config.Rewrite{Namespaces: map[string]string{"store": "shop"}}}, given(t, "shop/db", nil), "collision", `"store"`},
		{"another one lands where the prefix would put it", config.Upstream{Rewrite: config.Rewrite{NamespacePrefix: "e-", Namespaces: map[string]string{"store": "e-shop"}}}, given(t, "shop/db", nil), "collision", `"store"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reason, detail := "", ""
			if why := imports(t, tc.u, config.Provenance{}).check(tc.r, mirror.Way{Path: tc.r.Provenance().Path}, true, nil); why != imported {
				reason, detail = why.Value().reason, why.Value().detail
			}
			if reason != tc.reason || !strings.Contains(detail, tc.detail) || (detail == "") != (reason == "") {
				t.Errorf("%q: %q, want %q: …%s…", reason, detail, tc.reason, tc.detail)
			}
		})
	}
}

func TestProvenanceIsThatOfTheFirstRelay(t *testing.T) {
	first := imports(t, config.Upstream{}, config.Provenance{})
	stamped := given(t, "shop/db", nil).Stamped(first.stamp)
	r, _, err := first.reshape(stamped, nil, false)
	if err != nil || r != stamped {
		t.Fatalf("reshaped %v, %v", r, err)
	}
	want := mirror.Provenance{Source: "east", Cluster: "east-1", SourceVersion: "42", Path: []string{"hub"}}
	if p := r.Provenance(); p.Source != want.Source || p.Cluster != want.Cluster || p.SourceVersion != want.SourceVersion || !slices.Equal(p.Path, want.Path) || r.Cluster() != "east-1" {
		t.Errorf("%+v of cluster %s", p, r.Cluster())
	}
	second, err := NewRules(config.Upstream{Name: "near", ClusterID: "near", Services: config.Services{Mode: config.ServicesOmit}}, config.Provenance{Relay: "far"}, true)
	if err != nil {
		t.Fatal(err)
	}
	if r, _, err = second.reshape(r.Stamped(second.relayStamp), nil, true); err != nil {
		t.Fatal(err)
	}
	want.Path = []string{"hub", "far"}
	if p := r.Provenance(); p.Source != "east" || p.SourceVersion != "42" || !slices.Equal(p.Path, want.Path) || r.Cluster() != "east-1" {
		t.Errorf("behind a second relay: %+v of cluster %s", p, r.Cluster())
	}
}

func TestWhatARelayBringsIsNotLeftOutAsGenerated_C9(t *testing.T) {
	r := given(t, "istio-system/front-istio-autogenerated-k8s-ingress-shop", nil)
	for _, tc := range []struct {
		generated string
		relay     bool
		reason    string
	}{{"drop", false, "generated"}, {"keep", false, ""}, {"drop", true, ""}} {
		reason := ""
		if why := imports(t, config.Upstream{Generated: tc.generated}, config.Provenance{}).check(r, mirror.Way{}, tc.relay, nil); why != imported {
			reason = why.Value().reason
		}
		if reason != tc.reason {
			t.Errorf("generated: %s, from a relay: %v: left out as %q, want %q", tc.generated, tc.relay, reason, tc.reason)
		}
	}
}

// TestNoProfileButAllLetsInTheRootNamespace, nor does rewrite move anything there.
func TestNoProfileButAllLetsInTheRootNamespace(t *testing.T) {
	services := filter.Rules{Profile: filter.ProfileServices}
	mine := filter.Rules{Profile: filter.ProfileServices, RootNamespace: "mine"}
	for _, tc := range []struct {
		rules           filter.Rules
		rewrite         config.Rewrite
		root, namespace string
		out             bool
	}{
		{filter.Rules{}, config.Rewrite{}, "", "istio-system", false},
		{filter.Rules{Profile: filter.ProfileAll}, config.Rewrite{}, "", "istio-system", false},
		{services, config.Rewrite{}, "", "shop", false},
		{services, config.Rewrite{}, "", "istio-system", true},
		{services, config.Rewrite{}, "root", "istio-system", false},
		{services, config.Rewrite{}, "root", "root", true},
		{services, config.Rewrite{}, "root,istio-system", "istio-system", true},
		{mine, config.Rewrite{}, "root", "root", false},
		{mine, config.Rewrite{}, "root", "mine", true},
		{mine, config.Rewrite{NamespacePrefix: "istio-"}, "", "system", true},
		{services, config.Rewrite{NamespacePrefix: "istio-"}, "", "system", true},
		{services, config.Rewrite{NamespacePrefix: "istio-"}, "", "shop", false},
		{services, config.Rewrite{Namespaces: map[string]string{"a": "istio-system"}}, "", "a", true},
		{services, config.Rewrite{Namespaces: map[string]string{"istio-system": "a"}}, "", "istio-system", true},
		{filter.Rules{}, config.Rewrite{NamespacePrefix: "istio-"}, "", "system", true},
		{filter.Rules{}, config.Rewrite{NamespacePrefix: "istio-"}, "istio-shop", "shop", true},
		{filter.Rules{}, config.Rewrite{Namespaces: map[string]string{"a": "istio-system"}}, "", "a", false},
	} {
		rules := imports(t, config.Upstream{Import: tc.rules, Rewrite: tc.rewrite}, config.Provenance{}).withRoot(tc.root)
		if why := rules.checkRoot(mirror.Key{Kind: federation.ServiceEntry, Namespace: tc.namespace, Name: "a"}); (why != imported) != tc.out {
			t.Errorf("%+v: %v", tc, why != imported)
		}
	}
}
