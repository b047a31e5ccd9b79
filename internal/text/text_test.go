package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAbbreviateBoundsTextAndTellsItsLength(t *testing.T) {
	short := strings.Repeat("a", maxQuoted)
	if got := Abbreviate(short); got != short {
		t.Errorf("a short text became %q", got)
	}
	long := strings.Repeat("a", maxQuoted-1) + strings.Repeat("é", 200) // a character lies on the bound
	got := Abbreviate(long)
	if want := strings.Repeat("a", maxQuoted-1) + "… (655 bytes)"; got != want || !utf8.ValidString(got) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAWordOfAShellStaysOneWord(t *testing.T) {
	for in, want := range map[string]string{
		"": "''", "shop/db-1.a": "shop/db-1.a", "router~10.0.0.1": "router~10.0.0.1", "~root": "'~root'", "=ls": "'=ls'",
		"a b": "'a b'", "$(id)": "'$(id)'", "it's": `'it'\''s'`, "a;b": "'a;b'", "*": "'*'",
	} {
		if got := Word(in); got != want {
			t.Errorf("%q became %s, want %s", in, got, want)
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	for want, all := range map[string][]string{"": nil, `"a"`: {"a"}, `"a", "b\n"`: {"a", "b\n"}, `"a", "long…", and 2 more`: {"a", "longer", "c", "d"}} {
		if got := List(all, 2, 4); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
