package text

import "testing"

func TestNamesThatKubernetesRefusesAreQuoted(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "shop/db-1.v2": "shop/db-1.v2", "/class": "/class",
		"public/consumers:cn.example.Service::.DEFAULT-GROUP.public": "'public/consumers:cn.example.Service::.DEFAULT-GROUP.public'",
		"a b": "'a b'", "it's": `'it'\''s'`, "$(id)": "'$(id)'", "größe": "'größe'", "Upper": "'Upper'", "a_b": "'a_b'",
	} {
		if got := Name(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
