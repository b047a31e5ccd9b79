package kube

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// toYAML returns any JSON as YAML.
func toYAML(data []byte) ([]byte, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, err
	}
	return compactYAML(compact.Bytes())
}

func TestShape(t *testing.T) {
	in := `{"apiVersion":"networking.istio.io/v1","kind":"ServiceEntry","metadata":{"name":"db","labels":{},"annotations":{"note":"yes","on":"x"}},
	"spec":{"hosts":["db.example.com","*.example.com"],"ports":[{"number":5432,"name":"tcp","target":null},{"number":1.5}],
	"nested":[["a"],[],[{"b":[1]}]],"weight":-1e3,"ok":true,"resolution":"NONE","script":"if x then\n  y: z\n\nend\n","tail":"a\nb","time":"10s","ip":"10.0.0.1","port":"8080","sub":"80-a"}}`
	want, err := os.ReadFile("testdata/shape.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := toYAML([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestBrokenJSONIsAnError(t *testing.T) {
	for _, in := range []string{``, `{`, `{"a"`, `{"a":`, `[1`, `{"a":1} {"b":2}`, `{a:1}`} {
		if out, err := toYAML([]byte(in)); err == nil {
			t.Errorf("toYAML(%q) = %q, want an error", in, out)
		}
	}
}

func TestDeepNestingIsAnError(t *testing.T) {
	deep := make([]byte, 3*maxDepth)
	for i := range deep {
		deep[i] = '['
	}
	if _, err := toYAML(deep); err == nil {
		t.Error("no error")
	}
}

// words are strings that some YAML reader is known to take for something else.
var words = []string{
	"", " ", "~", "y", "N", "yes", "No", "on", "OFF", "true", "False", "null", "Null", ".inf", "-.INF", ".nan", "NaN", "inf",
	"1", "-1", "+1", "0x1f", "0o17", "017", "1e3", "1.5e-3", "e3", "1_000", "12:30:45", "1:2", "2024-01-01", "2024-01-01T00:00:00Z",
	"-", "---", "...", "--- a", "- a", "? a", ": a", "a:", "a: b", "a #b", "#a", "[a]", "{a}", "a, b", "&a", "*a", "!a", "!!str a",
	"%a", "@a", "`a", "'", "\"", "'a'", "\"a\"", "\\", "a\\n", "<<", "=", "|", ">", "|-", ">-\n",
	"a ", " a", "\ta", "a\t", "a\tb", "a\n", "\na", "\n", "\n\n", "a\nb", "a\n\nb", "a\n\n", " a\nb", "a\n b", "a\n b\n", "a\n\n\nb\n\n",
	"a \nb", "a\n \nb", "a\r\nb", "a\n---\nb", "a\n...\nb", "a\n# b", "#a\nb", "- a\n- b", "a: b\nc: d", "\u0085", "\u2028", "\ufeffa", "é", "🙂", "a\x00b", "a\x7fb",
	"10s", "1m30s", "10.0.0.1", "10.0.0.0/8", "::1", "*.example.com", "*", "80", "1.2.3", "0755", "3d", "1e", "0b1", "80-a", "a-1.b", "/a/b", "foo=bar",
}

func TestWordsKeepTheirMeaning(t *testing.T) {
	for _, w := range words {
		roundTrip(t, map[string]any{"v": w, "l": []any{w, []any{w}, map[string]any{"z": w}}, "m": map[string]any{w: "x"}})
	}
}

func TestValuesKeepTheirMeaning(t *testing.T) {
	str := rapid.OneOf(
		rapid.SampledFrom(words),
		rapid.StringOfN(rapid.RuneFrom([]rune("ab1 :#-'\"\n\t\\{}[],&*!|>%@`~?=._0xeE+nY\r/é\u2028")), 0, 10, -1),
		rapid.String(),
	)
	var value *rapid.Generator[any]
	object := func(depth int) *rapid.Generator[any] { return nil }
	value = rapid.OneOf(str.AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil), rapid.Float64Range(-1e6, 1e6).AsAny(), rapid.Int32().AsAny())
	object = func(depth int) *rapid.Generator[any] {
		elem := value
		if depth > 0 {
			elem = rapid.OneOf(value, rapid.Deferred(func() *rapid.Generator[any] { return object(depth - 1) }))
		}
		return rapid.OneOf(rapid.SliceOfN(elem, 0, 4).AsAny(), rapid.MapOfN(str, elem, 0, 4).AsAny())
	}
	rapid.Check(t, func(t *rapid.T) { roundTrip(t, object(3).Draw(t, "value")) })
}

type testingT interface {
	Helper()
	Fatalf(format string, args ...any)
}

// roundTrip checks that a YAML reader sees in the YAML what a JSON reader sees in the
// JSON.
func roundTrip(t testingT, v any) {
	t.Helper()
	in, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	out, err := toYAML(in)
	if err != nil {
		t.Fatalf("toYAML(%s): %v", in, err)
	}
	var got, want any
	if err := yaml.Unmarshal(out, &got); err != nil {
		t.Fatalf("%s became\n%s\nwhich is no YAML: %v", in, out, err)
	}
	if err := json.Unmarshal(in, &want); err != nil {
		t.Fatalf("%v", err)
	}
	if got = floats(got); !reflect.DeepEqual(got, want) {
		t.Fatalf("%s became\n%s\nwhich reads as %#v", in, out, got)
	}
}

// floats makes all numbers float64, as encoding/json has them.
func floats(v any) any {
	switch v := v.(type) {
	case uint64:
		return float64(v)
	case int64:
		return float64(v)
	case int:
		return float64(v)
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = floats(v[k])
		}
	}
	return v
}

func FuzzYAML(f *testing.F) {
	f.Add([]byte(`{"a":[1,"x",{"b":null}],"c":"on"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := toYAML(data)
		if err == nil && len(out) == 0 {
			t.Error("nothing, and no error")
		}
	})
}

// TestWordsThatAreSurelyPlainAreSo holds the short way to the rule, for the words and all pairs of characters.
func TestWordsThatAreSurelyPlainAreSo(t *testing.T) {
	all := slices.Clone(words)
	for a := range 128 {
		for b := range 128 {
			all = append(all, string(rune(a))+string(rune(b)), string(rune(a))+"e"+string(rune(b)), "no"+string(rune(a))+string(rune(b)))
		}
	}
	n := 0
	for _, s := range all {
		rule := plain.MatchString(s) && !notPlain.MatchString(s)
		if sure(s) {
			if n++; !rule {
				t.Errorf("%q is sure", s)
			}
		}
		if got, want := inline(s) == s, rule || plainDomain.MatchString(s); got != want {
			t.Errorf("%q is bare: %v, want %v", s, got, want)
		}
	}
	if n < 1000 {
		t.Errorf("%d words are sure", n)
	}
}
