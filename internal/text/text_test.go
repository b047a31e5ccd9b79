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
