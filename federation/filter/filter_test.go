package filter

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-multierror"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// item is what the tests make resources of.
type item struct {
	kind                mirror.Kind
	namespace, name     string
	labels, annotations map[string]string
	source              string
	created             time.Time
	body                proto.Message
}

func (i item) build(t testing.TB) *mirror.Resource {
	t.Helper()
	body, err := anypb.New(i.body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{
		Key:    mirror.Key{Kind: i.kind, Namespace: i.namespace, Name: i.name},
		Labels: i.labels, Annotations: i.annotations, CreateTime: i.created, Source: i.source, Body: body,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func filterItem() item {
	return item{
		kind: federation.ServiceEntry, namespace: "team-a", name: "db", source: "east",
		labels:      map[string]string{"tier": "prod", "istio.io/rev": "stable"},
		annotations: map[string]string{"owner": "a-team"},
		body: &networking.ServiceEntry{
			Hosts:      []string{"db.example", "db.internal"},
			Ports:      []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "TLS"}},
			Resolution: networking.ServiceEntry_STATIC,
			Endpoints: []*networking.WorkloadEntry{
				{Address: "192.0.2.1", Labels: map[string]string{"zone": "a"}, Weight: 3},
				{Address: "192.0.2.2", Ports: map[string]uint32{"https": 8443}},
			},
		},
	}
}

func meshConfig(t testing.TB) *mirror.Resource {
	return item{kind: mirror.MeshConfig, name: mirror.MeshConfigName, source: "east", body: &mesh.MeshConfig{RootNamespace: "istio-system"}}.build(t)
}

func TestEachRuleKeepsOut(t *testing.T) {
	gateway := item{kind: mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}, namespace: "kube-system", name: "gw", body: &networking.Gateway{}}
	tested := map[Reason]bool{}
	for _, test := range []struct {
		name     string
		rules    Rules
		item     item
		want     Reason
		sentence string
	}{
		{"no rules", Rules{}, filterItem(), ReasonNone, ""},
		{"plural", Rules{Kinds: []string{"serviceentries"}}, filterItem(), ReasonNone, ""},
		{"short name in capitals", Rules{Kinds: []string{"vs", "SE"}}, filterItem(), ReasonNone, ""},
		{"group/Kind", Rules{Kinds: []string{"networking.istio.io/serviceentry"}}, filterItem(), ReasonNone, ""},
		{"another kind", Rules{Kinds: []string{"se", "vs"}}, gateway, ReasonKind, `kind networking.istio.io/Gateway is not one of "se", "vs"`},
		{"unknown kinds are allowed", Rules{Kinds: []string{"example.com/Widget"}}, gateway, ReasonKind, `kind networking.istio.io/Gateway is not one of "example.com/Widget"`},
		{"a word for two kinds means both", Rules{Kinds: []string{"gateways"}}, gateway, ReasonNone, ""},
		{"included by name", Rules{Namespaces: Globs{Include: []string{"team-a"}}}, filterItem(), ReasonNone, ""},
		{"included by pattern", Rules{Namespaces: Globs{Include: []string{"x", "t??m-*"}}}, filterItem(), ReasonNone, ""},
		{"not included", Rules{Namespaces: Globs{Include: []string{"team-b", "kube-*"}}}, filterItem(), ReasonNamespace, `namespace "team-a" is not included by "team-b", "kube-*"`},
		{"excluded", Rules{Namespaces: Globs{Exclude: []string{"kube-*"}}}, gateway, ReasonNamespace, `namespace "kube-system" is excluded by "kube-*"`},
		{"excluded before included", Rules{Namespaces: Globs{Include: []string{"*"}, Exclude: []string{"team-a"}}}, filterItem(), ReasonNamespace, `namespace "team-a" is excluded by "team-a"`},
		{"selector", Rules{Selector: "tier in (prod, test),!old"}, filterItem(), ReasonNone, ""},
		{"selector with another value", Rules{Selector: "tier=dev"}, filterItem(), ReasonSelector, `label tier="prod" does not match "tier=dev"`},
		{"selector without the label", Rules{Selector: "tier=prod,app"}, filterItem(), ReasonSelector, `there is no label app, which does not match "app"`},
		{"C11 own revision", Rules{Revision: "stable"}, filterItem(), ReasonNone, ""},
		{"C11 another revision", Rules{Revision: "canary"}, filterItem(), ReasonRevision, `revision "stable" is not "canary"`},
		{"C11 no revision", Rules{Revision: "canary"}, gateway, ReasonNone, ""},
		{"expression", Rules{Expression: `labels.tier == "prod"`}, filterItem(), ReasonNone, ""},
		{"kind of no profile", Rules{Profile: ProfileServices}, gateway, ReasonProfile, `kind networking.istio.io/Gateway is not in profile services`},
		{"host", Rules{Hosts: Hosts{Include: []string{"*.example"}}}, filterItem(), ReasonHosts, `it claims host "db.internal", which hosts.include does not cover: "*.example"`},
		{"false expression", Rules{Expression: `labels.tier == "dev"`}, filterItem(), ReasonExpression, "the expression is false"},
		{"failing expression", Rules{Expression: `labels.app == "dev"`}, filterItem(), ReasonExpressionError, "the expression failed: no such key: app"},
	} {
		tested[test.want] = true
		t.Run(test.name, func(t *testing.T) {
			f, err := New(test.rules)
			if err != nil {
				t.Fatal(err)
			}
			r := test.item.build(t)
			got := f.Check(r)
			if got.Reason != test.want || got.Sentence() != test.sentence || got.Passes() != (test.want == ReasonNone) {
				t.Errorf("%q, %q\nwant %q, %q", got.Reason, got.Sentence(), test.want, test.sentence)
			}
			if got, want := f.PassesNamespace(r.Kind(), r.Namespace()), test.want != ReasonNamespace; test.want != ReasonKind && test.want != ReasonProfile && got != want {
				t.Errorf("PassesNamespace: %v, want %v", got, want)
			}
		})
	}
	for _, reason := range Reasons() {
		if !tested[reason] && reason != ReasonRoot { // the intake has that one
			t.Errorf("no row of this test leaves a resource out with the reason %q", reason)
		}
	}
}

// TestEachFieldHasADecisionWhetherItLimitsContent: a new field fails here until it has one.
func TestEachFieldHasADecisionWhetherItLimitsContent(t *testing.T) {
	decisions := map[string]struct {
		rules  Rules
		limits bool
	}{
		"Profile":       {Rules{Profile: ProfileRouting}, true},
		"RootNamespace": {Rules{RootNamespace: "x"}, false}, // without a profile it does nothing
		"Hosts":         {Rules{Hosts: Hosts{Exclude: []string{"a"}}}, false},
		"RequireVia":    {Rules{RequireVia: []string{"dns:a"}}, false},
		"Domain":        {Rules{Domain: "a"}, false},
		"Kinds":         {Rules{Kinds: []string{"se"}}, true},
		"Namespaces":    {Rules{Namespaces: Globs{Exclude: []string{"kube-*"}}}, true},
		"Selector":      {Rules{Selector: "tier"}, true},
		"Revision":      {Rules{Revision: "stable"}, false},
		"Expression":    {Rules{Expression: "true"}, true},
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Rules]()) {
		d, ok := decisions[field.Name]
		if !ok || reflect.ValueOf(d.rules).FieldByIndex(field.Index).IsZero() {
			t.Errorf("%s: no decision whether it limits what an upstream can bring: add a row here, and if so, the field to Rules.LimitsContent", field.Name)
		}
		if got := d.rules.LimitsContent(); got != d.limits {
			t.Errorf("%s: LimitsContent returns %v", field.Name, got)
		}
	}
}

func TestResourcesWithoutANamespacePassNamespaceRules(t *testing.T) {
	f, err := New(Rules{Namespaces: Globs{Include: []string{"team-b"}, Exclude: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	if !f.PassesNamespace(mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "GatewayClass"}, "") {
		t.Error("a GatewayClass is kept out")
	}
	if got := f.Check(meshConfig(t)).Reason; got != ReasonNone {
		t.Errorf("MeshConfig: %q", got)
	}
}

func TestMeshConfigIsSubjectToKindsAndExpressionOnly(t *testing.T) {
	for _, test := range []struct {
		rules Rules
		want  Reason
	}{
		{Rules{Selector: "tier=prod", Revision: "x", Namespaces: Globs{Include: []string{"a"}}}, ReasonNone},
		{Rules{Kinds: []string{"se"}}, ReasonKind},
		{Rules{Kinds: []string{"core/MeshConfig"}}, ReasonNone},
		{Rules{Expression: `kind == "MeshConfig" && name == "mesh" && namespace == "" && group == "" && size(labels) == 0`}, ReasonNone},
		{Rules{Expression: `spec.rootNamespace == "istio-system"`}, ReasonNone},
		{Rules{Expression: `labels.tier == "prod"`}, ReasonExpressionError},
	} {
		f, err := New(test.rules)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Check(meshConfig(t)).Reason; got != test.want {
			t.Errorf("%+v: %q, want %q", test.rules, got, test.want)
		}
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	_, err := New(Rules{
		Kinds:      []string{"se", "servicentry", "a/b/c"},
		Namespaces: Globs{Include: []string{"ok-*", "Bad[a-z]"}, Exclude: []string{""}},
		Selector:   "tier in (a",
		Expression: "labels.tier == \"prod\" &&\n  lables.x == 1",
	})
	var mistakes *multierror.Error
	if !errors.As(err, &mistakes) {
		t.Fatalf("%T is no *multierror.Error", err)
	}
	var got []string
	for _, e := range mistakes.Errors {
		var rule *federation.RuleError
		if !errors.As(e, &rule) {
			t.Fatalf("%T is no *federation.RuleError", e)
		}
		got = append(got, fmt.Sprintf("%s:%d:%d", rule.Field, rule.Line, rule.Column))
	}
	want := []string{"kinds[1]:0:0", "kinds[2]:0:0", "namespaces.include[1]:0:0", "namespaces.exclude[0]:0:0", "selector:0:0", "expression:2:3"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if text := mistakes.Errors[len(got)-1].Error(); text != "expression:2:3: undeclared reference to 'lables' (did you mean 'labels'?)" {
		t.Error(text)
	}
}

func TestFilterIsSafeForConcurrentUse(t *testing.T) {
	f, err := New(Rules{Selector: "tier", Expression: `spec.hosts.exists(h, h.matches("^db\\."))`})
	if err != nil {
		t.Fatal(err)
	}
	r := filterItem().build(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if got := f.Check(r).Reason; got != ReasonNone {
					t.Error(got)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkFilterCheck(b *testing.B) {
	r := filterItem().build(b)
	many := filterItem()
	body := many.body.(*networking.ServiceEntry)
	for len(body.Endpoints) < 2000 {
		body.Endpoints = append(body.Endpoints, body.Endpoints[0])
	}
	large := many.build(b)
	for _, bench := range []struct {
		name  string
		rules Rules
	}{
		{"kind-namespace", Rules{Kinds: []string{"se"}, Namespaces: Globs{Exclude: []string{"kube-*"}}}},
		{"selector", Rules{Selector: "tier=prod"}},
		{"labels", Rules{Expression: `labels.tier == "prod" && !("old" in labels)`}},
		{"spec", Rules{Expression: `spec.hosts.exists(h, h.endsWith(".example"))`}},
		{"spec-2000-endpoints", Rules{Expression: `spec.endpoints.all(e, e.address.startsWith("192.0.2."))`}},
		{"spec-endpoints", Rules{Expression: `spec.endpoints.all(e, e.address.startsWith("192.0.2."))`}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			f, err := New(bench.rules)
			if err != nil {
				b.Fatal(err)
			}
			r := r
			if bench.name == "spec-2000-endpoints" {
				r = large
			}
			b.ReportAllocs()
			for b.Loop() {
				if got := f.Check(r); !got.Passes() {
					b.Fatal(got.Reason, got.Sentence())
				}
			}
		})
	}
}

func TestUnknownKindWithoutANamespacePassesOnlyWhereNoneIsIncluded(t *testing.T) {
	body := &networking.ServiceEntry{}
	widget := item{kind: mirror.Kind{Group: "example.com", Kind: "Widget"}, name: "w", source: "east", body: body}.build(t)
	class := item{kind: mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "GatewayClass"}, name: "c", source: "east", body: &structpb.Struct{}}.build(t)
	for _, test := range []struct {
		namespaces Globs
		widget     Reason
	}{
		{Globs{}, ReasonNone},
		{Globs{Exclude: []string{"kube-*"}}, ReasonNone},
		{Globs{Include: []string{"shop"}}, ReasonNamespace},
		{Globs{Include: []string{"*"}}, ReasonNamespace},
	} {
		f, err := New(Rules{Namespaces: test.namespaces})
		if err != nil {
			t.Fatal(err)
		}
		got := f.Check(widget)
		if got.Reason != test.widget || f.PassesNamespace(widget.Kind(), "") != got.Passes() {
			t.Errorf("%+v: %q", test.namespaces, got.Reason)
		}
		if why := got.Sentence(); test.widget != "" && !strings.Contains(why, "has no namespace") {
			t.Errorf("%+v: %s", test.namespaces, why)
		}
		if got := f.Check(class).Reason; got != ReasonNone {
			t.Errorf("%+v: a GatewayClass: %q", test.namespaces, got)
		}
	}
}
