package selection

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/mirror"
)

func parse(t *testing.T, namespace string, args ...string) *Selection {
	t.Helper()
	s, err := Parse(args, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func names(kinds []Kind) (out []string) {
	for _, k := range kinds {
		out = append(out, k.Name())
	}
	return out
}

func TestKindsAreNamedAsKubectlHasThem(t *testing.T) {
	se := []string{"serviceentry.networking.istio.io"}
	both := []string{"gateway.networking.istio.io", "gateway.gateway.networking.k8s.io"}
	for word, want := range map[string][]string{
		"se": se, "SE": se, "serviceentry": se, "ServiceEntries": se, "serviceentries.networking.istio.io": se,
		"se,vs":                       {"serviceentry.networking.istio.io", "virtualservice.networking.istio.io"},
		"vs,se,vs":                    {"virtualservice.networking.istio.io", "serviceentry.networking.istio.io"},
		"gateways":                    both,
		"gw":                          both[:1],
		"gtw":                         both[1:],
		"gateway.networking.istio.io": both[:1],
		"meshconfig":                  {"meshconfig"},
		"example.com/v1/Widget":       {"widget.example.com"},
	} {
		if d := cmp.Diff(want, names(parse(t, "x", word).Kinds())); d != "" {
			t.Errorf("%s: -want +got:\n%s", word, d)
		}
	}
}

func TestEverySpellingIsAskedFor_C1(t *testing.T) {
	got := parse(t, "x", "se").Kinds()[0].TypeURLs
	want := []string{"networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1beta1/ServiceEntry", "networking.istio.io/v1alpha3/ServiceEntry"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// A type URL selects itself, and is united with the type URLs of a word.
	got = parse(t, "x", "networking.istio.io/v1alpha3/ServiceEntry").Kinds()[0].TypeURLs
	if d := cmp.Diff(want[2:], got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	got = parse(t, "x", "example.com/v2/Widget,example.com/v1/Widget").Kinds()[0].TypeURLs
	if d := cmp.Diff([]string{"example.com/v2/Widget", "example.com/v1/Widget"}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestTheWordAllSelectsEveryKind(t *testing.T) {
	if got, want := len(parse(t, "", "all").Kinds()), len(mirror.Kinds()); got != want {
		t.Errorf("%d kinds, want %d", got, want)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	for _, tc := range []struct {
		args      []string
		namespace string
		want      string
	}{
		{nil, "x", "missing kind"},
		{[]string{"servcieentry"}, "x", `unknown kind "servcieentry": did you mean serviceentry?`},
		{[]string{"zzzzzzzzz"}, "x", "as group/version/Kind, for example"},
		{[]string{strings.Repeat("serviceentry", 50)}, "x", "unknown kind"},
		{[]string{"se,"}, "x", "a kind is missing"},
		{[]string{"se/"}, "x", "want KIND/NAME"},
		{[]string{"se/a", "b"}, "x", "not both"},
		{[]string{"se", "a"}, "", "across all namespaces"},
		{[]string{"all", "a"}, "x", "takes no name"},
		{[]string{"a/b/c/d"}, "x", "want group/version/Kind"},
	} {
		_, err := Parse(tc.args, tc.namespace)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Parse(%q): %v, want %q", tc.args, err, tc.want)
		}
	}
}

var serviceEntry = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

func TestNamespacesAndNamesSelect(t *testing.T) {
	se := serviceEntry
	gc := mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "GatewayClass"}
	for _, tc := range []struct {
		args      string
		namespace string
		key       mirror.Key
		want      bool
	}{
		{"se", "a", mirror.Key{Kind: se, Namespace: "a", Name: "x"}, true},
		{"se", "a", mirror.Key{Kind: se, Namespace: "b", Name: "x"}, false},
		{"se", "", mirror.Key{Kind: se, Namespace: "b", Name: "x"}, true},
		{"se x", "a", mirror.Key{Kind: se, Namespace: "a", Name: "x"}, true},
		{"se x", "a", mirror.Key{Kind: se, Namespace: "a", Name: "y"}, false},
		{"se/x", "a", mirror.Key{Kind: se, Namespace: "a", Name: "y"}, false},
		{"se x y", "a", mirror.Key{Kind: se, Namespace: "a", Name: "y"}, true},
		{"gc", "a", mirror.Key{Kind: gc, Name: "x"}, true},
		{"all", "a", mirror.Key{Kind: gc, Name: "x"}, false},
		{"all", "", mirror.Key{Kind: gc, Name: "x"}, true},
	} {
		s := parse(t, tc.namespace, strings.Fields(tc.args)...)
		var kind Kind
		for _, k := range s.Kinds() {
			if k.Kind == tc.key.Kind {
				kind = k
			}
		}
		if got := s.Matches(kind, resource(t, tc.key, nil)); got != tc.want {
			t.Errorf("%q in %q: %v is %v", tc.args, tc.namespace, tc.key, got)
		}
	}
}

// resource returns a resource with labels and an empty body.
func resource(t *testing.T, key mirror.Key, labels map[string]string) *mirror.Resource {
	t.Helper()
	body := "google.protobuf.Struct"
	if key.Kind.Group == "networking.istio.io" {
		body = "istio.networking.v1alpha3." + key.Kind.Kind
	}
	r, err := mirror.New(mirror.Spec{Key: key, Source: "s", Labels: labels, Body: &anypb.Any{TypeUrl: "type.googleapis.com/" + body}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLabelsSelectAsKubectlsDo(t *testing.T) {
	shop := resource(t, mirror.Key{Kind: serviceEntry, Namespace: "a", Name: "x"}, map[string]string{"team": "shop", "tier": "test"})
	for selector, want := range map[string]bool{
		"": true, "team=shop": true, "team": true, "team!=shop": false, "team in (bank)": false, "!owner": true, "team=shop,tier!=test": false,
	} {
		s := parse(t, "a", "se")
		if err := s.WithLabels(selector); err != nil {
			t.Errorf("%s: %v", selector, err)
		}
		if got := len(s.Find([]*mirror.Resource{shop}).Keys) == 1; got != want {
			t.Errorf("-l %s selects it: %v", selector, got)
		}
	}
	if err := parse(t, "a", "se").WithLabels("team in"); err == nil {
		t.Error("half a selector is taken")
	}
	if err := parse(t, "a", "se", "x").WithLabels("team=shop"); err == nil || !strings.Contains(err.Error(), "use one of them") {
		t.Errorf("a name and a selector: %v", err)
	}
}

func TestMissingNamesAreErrorsInKubectlsWords(t *testing.T) {
	s := parse(t, "a", "se,gateways", "x", "y")
	found := func(kind mirror.Kind, namespace, name string) *mirror.Resource {
		return resource(t, mirror.Key{Kind: kind, Namespace: namespace, Name: name}, nil)
	}
	errs := s.Missing(s.Find([]*mirror.Resource{
		found(mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}, "a", "x"),
		found(mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "Gateway"}, "a", "y"),
		found(serviceEntry, "a", "x"),
	}))
	if len(errs) != 1 || errs[0].Error() != `Error from server (NotFound): serviceentries.networking.istio.io "y" not found` {
		t.Errorf("errors: %v", errs)
	}
}

func TestGetNamesOtherNamespacesThatHaveResources(t *testing.T) {
	elsewhere := []*mirror.Resource{
		resource(t, mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}, nil),
		resource(t, mirror.Key{Kind: serviceEntry, Namespace: "bank", Name: "ledger"}, nil),
	}
	s := parse(t, "default", "se")
	if got := s.Nothing(s.Find(elsewhere)); got != "No resources found in default namespace. In other namespaces: 2; list them with -A." {
		t.Error(got)
	}
	if got := s.Nothing(s.Find(nil)); got != "No resources found in default namespace." {
		t.Error(got)
	}
	s = parse(t, "default", "se", "db")
	errs := s.Missing(s.Find(elsewhere))
	if len(errs) != 1 || errs[0].Error() != "Error from server (NotFound): serviceentries.networking.istio.io \"db\" not found\n  shop/db exists: use -n shop" {
		t.Errorf("errors: %v", errs)
	}
}

func TestEveryWordForCompletionMeansOneKind(t *testing.T) {
	words := Words()
	if len(words) != len(mirror.Kinds())+1 {
		t.Errorf("%d words", len(words))
	}
	for _, w := range words {
		if w == "all" {
			continue
		}
		if got := parse(t, "x", w).Kinds(); len(got) != 1 {
			t.Errorf("%s: %v", w, names(got))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"se", "se/x", "se,vs", "a/b/c", "gateways.networking.istio.io", "all"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, word string) {
		if s, err := Parse([]string{word}, "x"); err == nil && len(s.Kinds()) == 0 {
			t.Errorf("Parse(%q) selects nothing", word)
		}
	})
}
