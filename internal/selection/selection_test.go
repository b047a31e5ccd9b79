package selection

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	// A type URL stands for itself, and joins what a word brings.
	got = parse(t, "x", "networking.istio.io/v1alpha3/ServiceEntry").Kinds()[0].TypeURLs
	if d := cmp.Diff(want[2:], got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	got = parse(t, "x", "example.com/v2/Widget,example.com/v1/Widget").Kinds()[0].TypeURLs
	if d := cmp.Diff([]string{"example.com/v2/Widget", "example.com/v1/Widget"}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestAllIsEveryKind(t *testing.T) {
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

func TestNamespacesAndNamesSelect(t *testing.T) {
	se := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
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
		if got := s.Matches(kind, tc.key); got != tc.want {
			t.Errorf("%q in %q: %v is %v", tc.args, tc.namespace, tc.key, got)
		}
	}
}

func TestMissingNamesAreErrorsInKubectlsWords(t *testing.T) {
	s := parse(t, "a", "se,gateways", "x", "y")
	istioGateway := mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}
	k8sGateway := mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "Gateway"}
	errs := s.Missing([]mirror.Key{
		{Kind: istioGateway, Namespace: "a", Name: "x"},
		{Kind: k8sGateway, Namespace: "a", Name: "y"},
		{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "a", Name: "x"},
	})
	if len(errs) != 1 || errs[0].Error() != `Error from server (NotFound): serviceentries.networking.istio.io "y" not found` {
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
