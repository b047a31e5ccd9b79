// Package visible escapes characters that control a terminal or hide text: control characters, and
// characters that change the direction of text or have no width.
//
// The package must not depend on the reader of the text.
package visible

import (
	"fmt"
	"io"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// steers reports whether a character needs an escape. Newlines and tabs need none.
func steers(r rune) bool {
	return r != '\n' && r != '\t' && r >= 0 && (r < ' ' || r >= 0x7f && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp))
}

// plain reports whether certainly no character needs an escape. That is the usual case.
func plain(b []byte) bool {
	for _, c := range b {
		if c >= 0x7f || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// YAML returns a text as a double-quoted YAML string.
func YAML(b []byte) []byte {
	return replace(b, func(out []byte, r rune) []byte {
		if r > 0xffff {
			return fmt.Appendf(out, `\U%08x`, r)
		}
		return fmt.Appendf(out, `\u%04x`, r)
	})
}

// escape appends an escape of JSON.
func escape(out []byte, r rune) []byte {
	if high, low := utf16.EncodeRune(r); r > 0xffff {
		return fmt.Appendf(out, `\u%04x\u%04x`, high, low)
	}
	return fmt.Appendf(out, `\u%04x`, r)
}

// replace returns b with escapes. Bytes that are not UTF-8 become \x and two digits.
func replace(b []byte, escape func([]byte, rune) []byte) []byte {
	if plain(b) {
		return b
	}
	out := make([]byte, 0, len(b)+16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, b[0])
		case steers(r):
			out = escape(out, r)
		default:
			out = append(out, b[:n]...)
		}
		b = b[n:]
	}
	return out
}

// Writer writes text with JSON escapes, so JSON text keeps its value. Several writes may bring the
// pieces of one character. Close writes an unfinished one. Any goroutine may call its methods.
type Writer struct {
	w io.Writer

	mu   sync.Mutex // guards rest and the order of writes
	rest []byte     // the beginning of a character
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write implements io.Writer.
func (t *Writer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := b
	if len(t.rest) > 0 {
		all = append(t.rest, b...)
		t.rest = nil
	}
	whole := len(all)
	for i := 1; i < utf8.UTFMax && i <= len(all); i++ {
		if c := all[len(all)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(all[len(all)-i:]) {
				whole -= i
				t.rest = append([]byte(nil), all[whole:]...)
			}
			break
		}
	}
	if _, err := t.w.Write(replace(all[:whole], escape)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close writes the bytes of an unfinished character.
func (t *Writer) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := t.w.Write(replace(t.rest, escape))
	t.rest = nil
	return err
}
