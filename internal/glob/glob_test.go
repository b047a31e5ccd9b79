package glob

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestPatternsMatchNames(t *testing.T) {
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "", true},
		{"*", "any", true},
		{"a*", "a", true},
		{"a*", "ba", false},
		{"*a", "ba", true},
		{"*a*b*", "xxaxxbxx", true},
		{"*a*b*", "xxbxxaxx", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"?", "", false},
		{"a**b", "ab", true},
		{"*ab", "aab", true},
		{strings.Repeat("*a", 100) + "b", strings.Repeat("a", 250), false},
	} {
		if got := Match(test.pattern, test.name); got != test.want {
			t.Errorf("%q on %q: %v", test.pattern, test.name, got)
		}
	}
}

// names calls f with each text of at most longest letters of a, b and c.
func names(longest int, f func(string)) {
	f("")
	if longest > 0 {
		names(longest-1, func(s string) { f(s + "a"); f(s + "b"); f(s + "c") })
	}
}

// TestCoversIsInclusion: of what two random patterns match, over all short names. No pattern has the letter c,
// which stands for all others.
func TestCoversIsInclusion(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pattern := func() string {
		var out strings.Builder
		for range r.IntN(5) {
			out.WriteByte("ab*?"[r.IntN(4)])
		}
		return out.String()
	}
	var all []string
	seen := map[string]bool{}
	names(6, func(s string) {
		if !seen[s] {
			seen[s] = true
			all = append(all, s)
		}
	})
	covering := 0
	for range 5000 {
		p, o := pattern(), pattern()
		want := true
		for _, name := range all {
			if Match(o, name) && !Match(p, name) {
				want = false
				break
			}
		}
		if want {
			covering++
		}
		if got := Covers(p, o); got != want {
			t.Fatalf("%q covers %q: %v", p, o, got)
		}
	}
	if covering < 200 {
		t.Errorf("only %d pairs cover", covering)
	}
}
