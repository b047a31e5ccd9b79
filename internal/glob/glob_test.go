package glob

import (
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
