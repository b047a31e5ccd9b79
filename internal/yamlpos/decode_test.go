package yamlpos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// small are limits such as those of the kubeconfig of a found cluster.
var small = Limits{Bytes: 256 << 10, Values: 5_000}

// bombs are texts that are much larger when they are decoded.
var bombs = map[string]string{
	"aliases of aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n" + each(func(i int) string {
		return fmt.Sprintf("%c: &%c [%[3]s]\n", 'b'+i, 'b'+i, strings.Repeat(fmt.Sprintf("*%c ,", 'a'+i), 9))
	})(400),
	"aliases of a long text":    "a: &a " + strings.Repeat("x", 128<<10) + "\nb: [" + strings.Repeat("*a ,", 4_000) + "1]\n",
	"aliases of a long number":  "a: &a !!str " + strings.Repeat("1", 128<<10) + "\nb: [" + strings.Repeat("*a ,", 4_000) + "1]\n",
	"merges of aliases":         "a: &a {" + each(func(i int) string { return fmt.Sprintf("k%d: 1,", i) })(10_000) + "}\nb: [" + strings.Repeat("{<<: *a },", 400) + "1]\n",
	"many documents":            strings.Repeat("a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\nb: &b [*a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b]\n...\n", 60),
	"100,000 brackets":          strings.Repeat("[", 100_000),
	"100,000 dashes":            strings.Repeat("- ", 100_000),
	"100,000 braces":            strings.Repeat("{a: ", 50_000),
	"100,000 empty values":      "[" + strings.Repeat(",", 100_000) + "]",
	"100,000 empty maps":        "[" + strings.Repeat("{},", 80_000) + "]",
	"a long text of many lines": strings.Repeat("a\n", 100_000),
	"an alias of itself":        "a: &a [*a, *a]\n",
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// mostForSmall is what a text within small may have allocated, in bytes.
const mostForSmall = 32 << 20

// valuesOf counts decoded values, and 64 bytes of a text as one.
func valuesOf(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for k, one := range v {
			n += 1 + len(k)/textUnit + valuesOf(one)
		}
	case []any:
		for _, one := range v {
			n += valuesOf(one)
		}
	case string:
		n = len(v) / textUnit
	}
	return n + 1
}

func TestATextIsDecodedWithinItsLimits(t *testing.T) {
	for name, text := range bombs {
		var values []any
		var err error
		used := allocated(func() { values, err = Decode([]byte(text), small) })
		if used > mostForSmall {
			t.Errorf("%s: %d bytes had %d MiB allocated", name, len(text), used>>20)
		}
		if refused := name != "an alias of itself"; (err != nil) != refused || valuesOf(values) > small.Values {
			t.Errorf("%s: %d values, %.200v", name, valuesOf(values), err)
		}
	}
	for name, shape := range costly {
		for n := small.Bytes; n > 10; n = n * 3 / 4 {
			var err error
			text := shape(n)
			if used := allocated(func() { _, err = Decode([]byte(text), small) }); used > mostForSmall {
				t.Errorf("%s: %d bytes had %d MiB allocated, %.100v", name, len(text), used>>20, err)
			}
			if err == nil {
				break
			}
		}
	}
}

func TestTheErrorsOfALimitTellTheLineAndTheCure(t *testing.T) {
	plain := small
	plain.Plain = true
	for text, want := range map[string]string{
		strings.Repeat(" ", small.Bytes+1): "it is larger than 256 KiB",
		"a: \xff":                          "it is not UTF-8 text",
		strings.Repeat("[", 2000):          "it is nested deeper than 1000",
		strings.Repeat("a: b\n", 5000):     "it is too large: it has more than 10000 keys, values and marks",
		"a: &a b\nc: [*a, *a]":             "it has an anchor (&), an alias (*) or a tag (!) on line 1: write the value itself, or quote it",
		"a: b\nc: *a":                      "it has an anchor (&), an alias (*) or a tag (!) on line 2: write the value itself, or quote it",
		"a: b\n\nc: !!binary aGk=":         "it has an anchor (&), an alias (*) or a tag (!) on line 3: write the value itself, or quote it",
		"a: 1\nb: [\n":                     "line 2: it is not YAML: sequence end token ']' not found",
		"a: 1\na: 2\n":                     `line 2: it is not YAML: mapping key "a" already defined at [1:1]`,
	} {
		values, err := Decode([]byte(text), plain)
		if values != nil || err == nil || err.Error() != want {
			t.Errorf("%.30q: %v, %v\nwant %s", text, values, err, want)
		}
		var syntax *SyntaxError
		if errors.As(err, &syntax) != strings.Contains(want, "is not YAML") {
			t.Errorf("%.30q: %#v", text, err)
		}
	}
	for text, want := range map[string][]any{
		"\ufeffa: 'b & *c !d'":     {map[string]any{"a": "b & *c !d"}},
		"{\"a\": \"\\u0026x\"}":    {map[string]any{"a": "&x"}},
		"---\n# nothing\n":         nil,
		"a: b\n---\n- c\n":         {map[string]any{"a": "b"}, []any{"c"}},
		"a: b&c\nd: e*f\ng: h!i\n": {map[string]any{"a": "b&c", "d": "e*f", "g": "h!i"}},
	} {
		if values, err := Decode([]byte(text), plain); err != nil || !reflect.DeepEqual(values, want) {
			t.Errorf("%q: %v, %v", text, values, err)
		}
	}
}

func TestAPlainTextIsWithinItsLimits(t *testing.T) {
	for text, want := range map[string]bool{
		"a: b\nc: [d, 'e']\n": true, "": true, "a: !!str b": true,
		"a: &a b": false, "a: *a": false, "# & and *": false, "a: b\u2028c: &a d": false, "&\x00a\x00": false,
		strings.Repeat("a: b\n", 5000): false, strings.Repeat("[", 20_000): false, strings.Repeat(" ", small.Bytes+1): false,
	} {
		if Plain([]byte(text), small) != want {
			t.Errorf("%.40q is plain: %v", text, !want)
		}
	}
}

func TestTheValuesOfAJSONTextAreCounted(t *testing.T) {
	for text, want := range map[string]int{
		`1`: 1, `[1]`: 2, `{"a":1,"b":[2,3]}`: 5, `"[{,"`: 1, `{"a\"[[":",,\\"}`: 2, `[{},[]]`: 5, // an empty one counts twice
	} {
		if CheckJSON([]byte(text), want) != nil || CheckJSON([]byte(text), want-1) == nil {
			t.Errorf("%s has not %d values", text, want)
		}
	}
	large := []byte(`{` + strings.Repeat(`"aaaa":"",`, 800_000) + `"a":""}`)
	if used := allocated(func() { _ = CheckJSON(large, 1000) }); used > 64<<10 {
		t.Errorf("%d bytes are allocated to count", used)
	}
}

// FuzzCheckJSON compares the number of values with that of the tokens of encoding/json.
func FuzzCheckJSON(f *testing.F) {
	for _, text := range []string{`{"a":[1,{"b":null}],"c":"\"[,"}`, `[[],{},""]`, `"\\"`, strings.Repeat("[", 2000) + strings.Repeat("]", 2000), `{` + strings.Repeat(`"":"",`, 100) + `"a":{}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			_ = CheckJSON(text, 10) // it ends
			return
		}
		want := 0
		var open []int // of each open map and list: its tokens
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			delim, is := token.(json.Delim)
			if is && (delim == ']' || delim == '}') {
				if open[len(open)-1] == 0 {
					want++ // an empty one counts twice
				}
				open = open[:len(open)-1]
				continue
			}
			if want++; len(open) > 0 {
				open[len(open)-1]++
			}
			if is {
				open = append(open, 0)
			}
		}
		want -= keys(text)
		if err := CheckJSON(text, want); err != nil {
			t.Errorf("%q has %d values: %v", text, want, err)
		}
		if CheckJSON(text, want-1) == nil {
			t.Errorf("%q has %d values, and one less is accepted", text, want)
		}
	})
}

// keys counts the keys of all maps of a JSON text.
func keys(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ':' && !quoted:
			n++
		}
	}
	return n
}

// FuzzDecode bounds what is allocated for a text, compares a JSON text with what encoding/json makes of it, and
// what sigs.k8s.io/yaml makes of a text and writes again with the text that it writes. Of texts that nobody
// writes the two YAML libraries make different things: {a:1} is a pair to one of them.
func FuzzDecode(f *testing.F) {
	for _, shape := range costly {
		f.Add(shape(200), true)
	}
	for _, text := range bombs {
		f.Add(text, false)
	}
	for _, text := range []string{"a: >-\n  x\n  y\n\n  z\nb: |+\n  c\n\n", "a: \"x\\\n  y\\u0041\"\nb: 'c''d'", "{\n\t\"a\": [1, 2.5, true, null, \"\\u2028\"]\n}", "a: b\r\nc: |\r\n  d\r\n", "? a\n: b", "a: yes\nb: 0x1f\nc: ~\nd: 1e3"} {
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, plain bool) {
		limits := small
		limits.Plain = plain
		var values []any
		var err error
		if used := allocated(func() { values, err = Decode([]byte(text), limits) }); used > mostForSmall {
			t.Fatalf("%d bytes had %d MiB allocated", len(text), used>>20)
		}
		if err != nil {
			return
		}
		if n := valuesOf(values); n > small.Values {
			t.Fatalf("%d values", n)
		}
		var theirs any
		if plain && len(values) > 0 && json.Unmarshal([]byte(text), &theirs) == nil {
			same(t, text, values[0], theirs)
		}
		theirs = nil
		if yaml.Unmarshal([]byte(text), &theirs) != nil || theirs == nil {
			return
		}
		written, err := yaml.Marshal(theirs)
		if err != nil || bytes.ContainsAny(written, "\u0085\u2028\u2029") { // line breaks in YAML 1.1 only
			return
		}
		if values, err = Decode(written, limits); err == nil && len(values) > 0 {
			same(t, string(written), values[0], theirs)
		}
	})
}

// same fails the test unless a value is that of a library.
func same(t *testing.T, text string, value, theirs any) {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		return // a number that JSON has not
	}
	var ours any
	if err := json.Unmarshal(encoded, &ours); err != nil {
		t.Fatal(err)
	}
	if !alike(ours, theirs) {
		t.Errorf("%q is\n%#v, and of the library\n%#v", text, ours, theirs)
	}
}

// dense returns a key without white space: the libraries read keys of several lines in different ways.
func dense(s string) string { return strings.Join(strings.Fields(s), "") }

// alike compares values. A word may be a text to one and a number, a boolean or null to the other: YAML 1.1
// has more of these.
func alike(ours, theirs any) bool {
	switch a := ours.(type) {
	case map[string]any:
		b, is := theirs.(map[string]any)
		if !is {
			return false
		}
		for k := range b {
			var key any
			if err := yaml.Unmarshal([]byte(k), &key); err != nil || reflect.TypeOf(key) != reflect.TypeFor[string]() {
				return true // the key is no text, or may be none
			}
		}
		densed := map[string]any{}
		for k, v := range b {
			densed[dense(k)] = v
		}
		for k, v := range a {
			if other, is := densed[dense(k)]; !is || !alike(v, other) && len(densed) == len(b) {
				return false
			}
		}
		return len(a) == len(b)
	case []any:
		b, is := theirs.([]any)
		if !is || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !alike(a[i], b[i]) {
				return false
			}
		}
		return true
	case string:
		b, is := theirs.(string)
		return !is && scalar(theirs) || is && a == b
	case float64:
		b, is := theirs.(float64)
		return !is && scalar(theirs) || is && (a == b || math.Abs(a-b) < 1e-9*math.Abs(a))
	}
	return scalar(theirs)
}

func scalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}
