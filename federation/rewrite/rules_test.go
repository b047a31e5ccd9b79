package rewrite

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-multierror"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mesh "istio.io/api/mesh/v1alpha1"

	"meshrelay/federation"
	"meshrelay/mirror"
)

func TestIdentityRulesReturnTheSameResource(t *testing.T) {
	rules := map[string]Rules{
		"zero":                             {},
		"namespaces":                       {Namespaces: map[string]string{"team-a": "team-a"}},
		"hosts":                            {Hosts: map[string]string{"cluster.local": "cluster.local"}},
		"other namespace":                  {Namespaces: map[string]string{"nobody": "somebody"}},
		"other host":                       {Hosts: map[string]string{"nobody.example": "somebody.example"}},
		"same exportTo":                    {ExportTo: []string{"."}},
		"same labels":                      {Labels: Edit{Set: map[string]string{"app": "db"}, Remove: []string{"absent", "ab*"}}},
		"same label that would be removed": {Labels: Edit{Set: map[string]string{"app": "db"}, Remove: []string{"app", "a*"}}},
		"same stamp":                       {Endpoints: Endpoints{Network: "n", Locality: "r/z", Cluster: "c"}},
	}
	spec := rewriteSpec(t, rewriteKind("se"), "team-a/db", `{"hosts": ["db.team-a.svc.cluster.local"], "exportTo": ["."], "endpoints": [{"address": "1.2.3.4", "network": "n", "locality": "r/z", "labels": {"topology.istio.io/cluster": "c"}}]}`)
	spec.Labels = map[string]string{"app": "db"}
	in := newRewriteResource(t, spec)
	for name, r := range rules {
		if out := mustRewrite(t, mustRewriter(t, r), in); out != in {
			t.Errorf("%s: a new resource", name)
		}
	}
}

func TestRulesThatChangeNothingCostNothing(t *testing.T) {
	in := newRewriteResource(t, rewriteSpec(t, rewriteKind("se"), "team-a/db", `{"hosts": ["db.corp.example"]}`))
	for name, limit := range map[string]struct {
		rules  Rules
		allocs float64
	}{
		"none":                 {Rules{}, 0},
		"none for this kind":   {Rules{Namespaces: map[string]string{"team-a": "team-a"}}, 0},
		"none for these hosts": {Rules{Hosts: map[string]string{"nobody.example": "somebody.example"}}, 6},
	} {
		w := mustRewriter(t, limit.rules)
		if got := testing.AllocsPerRun(100, func() { _, _ = w.Rewrite(in) }); got > limit.allocs {
			t.Errorf("%s: %v allocations, want at most %v", name, got, limit.allocs)
		}
	}
}

func TestBodiesThatNoRuleTouchesPassByteByByte(t *testing.T) {
	w := mustRewriter(t, Rules{NamePrefix: "e-", Labels: Edit{Set: map[string]string{"from": "east"}}})
	spec := rewriteSpec(t, rewriteKind("dr"), "team-a/db", `{"host": "db"}`)
	// An order of fields that no encoder would choose, which decoding would not survive.
	spec.Body.Value = append(protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), "."), spec.Body.Value...)
	in := newRewriteResource(t, spec)
	if w.planOf(in.Kind()) != nil {
		t.Fatal("DestinationRules name no configs, and yet are touched")
	}
	if w.planOf(rewriteKind("vs")) == nil {
		t.Fatal("VirtualServices name Gateways, and yet are not touched")
	}
	out := mustRewrite(t, w, in)
	if !bytes.Equal(out.Body().GetValue(), in.Body().GetValue()) {
		t.Error("the body has changed")
	}
	if out.Key().Name != "e-db" || out.Metadata().Labels["from"] != "east" {
		t.Errorf("got %s %v", out.Key(), out.Metadata().Labels)
	}
}

func TestOriginAndUnknownFieldsSurvive(t *testing.T) {
	w := mustRewriter(t, everything)
	spec := rewriteSpec(t, rewriteKind("se"), "team-a/db", `{"hosts": ["db.corp.example"], "endpoints": [{"address": "vm.corp.example"}]}`)
	unknown := protowire.AppendString(protowire.AppendTag(nil, 1999, protowire.BytesType), "later")
	spec.Body.Value = append(spec.Body.Value, unknown...)
	spec.Annotations = map[string]string{"a": "b"}
	in := newRewriteResource(t, spec)
	before := bytes.Clone(in.DeltaEntry())
	out := mustRewrite(t, w, in)
	if !bytes.Equal(before, in.DeltaEntry()) {
		t.Error("the resource that went in has changed")
	}
	if !bytes.Contains(out.Body().GetValue(), unknown) {
		t.Error("the unknown field is lost")
	}
	got := out.Spec()
	if got.Source != "east" || got.Cluster != "east-1" || got.SourceVersion != "42" || !got.CreateTime.Equal(spec.CreateTime) || !maps.Equal(got.Annotations, spec.Annotations) {
		t.Errorf("got %+v", got)
	}
	if again := mustRewrite(t, w, in); !again.Equal(out) || !bytes.Equal(again.DeltaEntry(), out.DeltaEntry()) {
		t.Error("a second run gave another result")
	}
}

func TestProvenanceIsNotRemoved(t *testing.T) {
	in := newRewriteResource(t, rewriteSpec(t, rewriteKind("se"), "team-a/db", `{}`)).Stamped(&mirror.Stamp{Source: "east", Cluster: "east-1", Relay: "hub"})
	want := in.Metadata().Annotations
	out := mustRewrite(t, mustRewriter(t, Rules{Annotations: Edit{Remove: []string{"*"}}}), in)
	if got := out.Metadata().Annotations; len(got) == 0 || !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestUnknownKindsKeepTheirBody(t *testing.T) {
	w := mustRewriter(t, everything)
	s, _ := structpb.NewStruct(map[string]any{"namespace": "team-a", "host": "x.corp.example"})
	body, _ := anypb.New(s)
	in := newRewriteResource(t, mirror.Spec{Key: mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Thing"}, Namespace: "team-a", Name: "x"}, Body: body})
	out := mustRewrite(t, w, in)
	if out.FullName() != "alpha/e-x" || !bytes.Equal(out.Body().GetValue(), in.Body().GetValue()) {
		t.Errorf("got %s", out.Key())
	}
}

func TestMeshConfigIsNeverTouched(t *testing.T) {
	rules := everything
	rules.Labels = Edit{Set: map[string]string{"a": "b"}}
	w := mustRewriter(t, rules)
	body, _ := anypb.New(&mesh.MeshConfig{RootNamespace: "team-a"})
	in := newRewriteResource(t, mirror.Spec{Key: mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}, Body: body})
	if mustRewrite(t, w, in) != in || w.Key(in.Key()) != in.Key() || w.planOf(mirror.MeshConfig) != nil {
		t.Error("a MeshConfig was touched")
	}
}

func TestClusterScopedResourcesGetNoNamespace(t *testing.T) {
	w := mustRewriter(t, everything)
	k := mirror.Key{Kind: mirror.Kind{Group: "example.com", Kind: "Thing"}, Name: "x"}
	if got := w.Key(k); got.FullName() != "/e-x" {
		t.Errorf("got %s", got)
	}
	k.Kind = gatewayClass
	if got := w.Key(k); got != k {
		t.Errorf("got %s", got)
	}
}

func TestNamesThatGrowTooLongAreErrors(t *testing.T) {
	long := strings.Repeat("n", 60)
	w := mustRewriter(t, Rules{NamespacePrefix: "east-", NamePrefix: "east-", Hosts: map[string]string{"a": "aaaaaaaaaa.a"}})
	tests := []struct{ kind, full, body, want string }{
		{"se", long + "/x", `{}`, "metadata.namespace"},
		{"se", "a/" + strings.Repeat("n", 250), `{}`, "metadata.name"},
		{"se", "a/x", `{"exportTo": ["` + long + `"]}`, "istio.networking.v1alpha3.ServiceEntry.export_to"},
		{"vs", "a/x", `{"http": [{"route": [{"destination": {"host": "r.` + long + `.svc.cluster.local"}}]}]}`, "istio.networking.v1alpha3.Destination.host"},
		{"se", "a/x", `{"hosts": ["` + strings.Repeat("n.", 124) + `a"]}`, "istio.networking.v1alpha3.ServiceEntry.hosts"},
		{"httproute", "a/x", `{"parentRefs": [{"name": "g", "namespace": "` + long + `"}]}`, "parentRefs[]"},
	}
	for _, tt := range tests {
		in := newRewriteResource(t, rewriteSpec(t, rewriteKind(tt.kind), tt.full, tt.body))
		_, err := w.Rewrite(in)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), in.Key().String()) {
			t.Errorf("%s: got %v, want one that names %s and the key", tt.kind, err, tt.want)
		}
	}
	spec := rewriteSpec(t, rewriteKind("se"), "a/x", `{}`)
	spec.Labels = map[string]string{"istio.io/use-waypoint-namespace": long}
	if _, err := w.Rewrite(newRewriteResource(t, spec)); err == nil || !strings.Contains(err.Error(), "istio.io/use-waypoint-namespace") {
		t.Errorf("got %v, want one that names the label", err)
	}
}

func TestWrongRulesAreErrorsThatNameTheField(t *testing.T) {
	tests := []struct {
		rules Rules
		want  string
	}{
		{Rules{Namespaces: map[string]string{"": "a"}}, "namespaces[]"},
		{Rules{Namespaces: map[string]string{"A": "a"}}, "namespaces[A]"},
		{Rules{Namespaces: map[string]string{"a": ""}}, "namespaces[a]"},
		{Rules{NamespacePrefix: "-a"}, "namespacePrefix"},
		{Rules{NamePrefix: "a.b-"}, "namePrefix"},
		{Rules{NamePrefix: "A"}, "namePrefix"},
		{Rules{Labels: Edit{Set: map[string]string{"a b": "c"}}}, "labels.set[a b]"},
		{Rules{Labels: Edit{Set: map[string]string{"a": "c d"}}}, "labels.set[a]"},
		{Rules{Labels: Edit{Remove: []string{"a", ""}}}, "labels.remove[1]"},
		{Rules{Annotations: Edit{Set: map[string]string{"a/b/c": ""}}}, "annotations.set[a/b/c]"},
		{Rules{Annotations: Edit{Remove: []string{"a*b"}}}, "annotations.remove[0]"},
		{Rules{ExportTo: []string{".", "A"}}, "exportTo[1]"},
		{Rules{Hosts: map[string]string{"": "a"}}, "hosts[]"},
		{Rules{Hosts: map[string]string{"a": "*.a"}}, "hosts[a]"},
		{Rules{Domain: "."}, "domain"},
		{Rules{Endpoints: Endpoints{Network: "a b"}}, "endpoints.network"},
		{Rules{Endpoints: Endpoints{Cluster: "a/b"}}, "endpoints.cluster"},
		{Rules{Endpoints: Endpoints{Locality: "a//b"}}, "endpoints.locality"},
		{Rules{Endpoints: Endpoints{Locality: "a/b/c/d"}}, "endpoints.locality"},
	}
	for _, tt := range tests {
		_, err := New(tt.rules)
		var mistake *federation.RuleError
		if !errors.As(err, &mistake) || mistake.Field != tt.want {
			t.Errorf("got %v, want a mistake in %s", err, tt.want)
		}
	}
	var all *multierror.Error
	_, err := New(Rules{NamePrefix: "A", Domain: ".", Endpoints: Endpoints{Network: "a b"}})
	if !errors.As(err, &all) || len(all.Errors) != 3 {
		t.Errorf("got %v, want three mistakes", err)
	}
	if _, err := New(Rules{Annotations: Edit{Set: map[string]string{"istio.io/autoRegistrationGroup": "any text"}}}); err != nil {
		t.Error(err)
	}
}

func TestRewriterIsSafeForConcurrentUse(t *testing.T) {
	w := mustRewriter(t, everything)
	in := newRewriteResource(t, rewriteSpec(t, rewriteKind("se"), "team-a/db", `{"hosts": ["db.corp.example"], "exportTo": ["other"]}`))
	want := mustRewrite(t, w, in)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if out, err := w.Rewrite(in); err != nil || !out.Equal(want) {
					t.Errorf("got %v, %v", out, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A relay keeps one resource of a name, and an istiod takes services of other hosts for other services.
func TestServicesOfOtherHostsHaveOtherNames(t *testing.T) {
	hosts := func(from, to string) map[string]string { return map[string]string{from: to} }
	name := func(kind mirror.Kind, name string, rules Rules) string {
		t.Helper()
		w, err := New(rules)
		if err != nil {
			t.Fatal(err)
		}
		r := newRewriteResource(t, rewriteSpec(t, kind, "shop/"+name, `{}`))
		out, err := w.Rewrite(r)
		if key := w.Key(r.Key()); err != nil || out.Key() != key {
			t.Fatalf("%v: %v, want %s", err, out, key)
		}
		return out.FullName()
	}
	for _, same := range []Rules{
		{}, {Domain: "cluster.local"}, {Hosts: hosts("corp.example", "b.example")}, {Namespaces: map[string]string{"shop": "shop"}},
		{Domain: "cluster.east", Hosts: hosts("cluster.east", "cluster.local")},
	} {
		if got := name(federation.ServiceEntry, "synthetic-web", same); got != "shop/synthetic-web" {
			t.Errorf("%+v: %s", same, got)
		}
	}
	if got := name(federation.ServiceEntry, "synthetic-web", Rules{NamespacePrefix: "east-"}); got != "east-shop/synthetic-web" {
		t.Error(got)
	}
	seen := map[string]bool{}
	for _, other := range []Rules{
		{Domain: "cluster.east"}, {Domain: "cluster.west"}, {Hosts: hosts("cluster.local", "east.example")},
		{Hosts: hosts("svc.cluster.local", "east.example")}, {Domain: "cluster.east", Hosts: hosts("web.shop.svc.cluster.east", "web.example")},
	} {
		got := name(federation.ServiceEntry, "synthetic-web", other)
		if seen[got] || !strings.HasPrefix(got, "shop/synthetic-web-") {
			t.Errorf("%+v: %s", other, got)
		}
		seen[got] = true
		// Of a relay that has given the name, the host is that of before.
		if again := name(federation.ServiceEntry, strings.TrimPrefix(got, "shop/"), Rules{}); again != got {
			t.Errorf("%s is %s behind a relay", got, again)
		}
	}
	east := Rules{Domain: "cluster.east"}
	if a, b := name(federation.ServiceEntry, "synthetic-web", east), name(federation.ServiceEntry, "synthetic-db", east); a[len(a)-9:] != b[len(b)-9:] ||
		name(federation.ServiceEntry, strings.TrimPrefix(a, "shop/"), east) != a {
		t.Errorf("%s and %s end otherwise, or twice", a, b)
	}
	for kind, of := range map[mirror.Kind]string{federation.ServiceEntry: "web", federation.VirtualService: "synthetic-web"} {
		if got := name(kind, of, east); got != "shop/"+of {
			t.Errorf("%s: %s", kind, got)
		}
	}
}
