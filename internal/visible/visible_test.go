package visible

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

const evil = "a\x1b[31m\x07\u009b2J\x7f\r\u202e\u200bé漢\U000e0001\n\tz"

func TestCharactersThatSteerATerminalAreEscaped(t *testing.T) {
	const want = `a\u001b[31m\u0007\u009b2J\u007f\u000d\u202e\u200bé漢\udb40\udc01` + "\n\tz"
	if got := plainText(evil); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := plainText("\x9b2J\xff"); got != `\x9b2J\xff` {
		t.Errorf("bytes that are no UTF-8: %q", got)
	}
	if s := "plain text, é and 漢"; plainText(s) != s {
		t.Errorf("%q is changed", s)
	}
}

// TestAWriterEscapesCharactersThatComeInPieces: however the text is cut.
func TestAWriterEscapesCharactersThatComeInPieces(t *testing.T) {
	for size := 1; size <= len(evil); size++ {
		var b bytes.Buffer
		w := NewWriter(&b)
		for rest := evil; rest != ""; {
			n := min(size, len(rest))
			if m, err := w.Write([]byte(rest[:n])); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil || b.String() != plainText(evil) {
			t.Errorf("in pieces of %d bytes: %q, %v", size, b.String(), err)
		}
	}
	var b bytes.Buffer
	w := NewWriter(&b)
	if _, err := w.Write([]byte("a\xe2\x80")); err != nil || b.String() != "a" {
		t.Errorf("%q, %v", b.String(), err)
	}
	if err := w.Close(); err != nil || b.String() != `a\xe2\x80` {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func FuzzJSONStaysTheSameValue(f *testing.F) {
	f.Add(evil)
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		var b bytes.Buffer
		if err := json.NewEncoder(NewWriter(&b)).Encode(s); err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || back != s {
			t.Fatalf("%q comes back as %q: %v", s, back, err)
		}
		if !utf8.Valid(b.Bytes()) || plainText(b.String()) != b.String() {
			t.Errorf("%q is not visible", b.String())
		}
	})
}

// plainText returns what a Writer makes of a text.
func plainText(s string) string { return string(replace([]byte(s), escape)) }
