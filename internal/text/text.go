// Package text shortens and quotes text from outside for errors, reasons and logs. It must not depend on the
// meaning of the text.
package text

import (
	"fmt"
	"strings"
)

const maxQuoted = 256 // bytes

// Abbreviate returns s, or its first maxQuoted bytes and its length.
func Abbreviate(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return Shorten(s, maxQuoted) + fmt.Sprintf(" (%d bytes)", len(s))
}

// Shorten returns s, or its first limit bytes and an ellipsis.
func Shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// List returns the first most texts in quotes, each of at most limit bytes, and the number of the others.
func List(all []string, most, limit int) string {
	var shown []string
	for _, s := range all[:min(most, len(all))] {
		shown = append(shown, fmt.Sprintf("%q", Shorten(s, limit)))
	}
	if more := len(all) - most; more > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(shown, ", ")
}

// Some returns the first most texts, and the number of the others.
func Some(all []string, most int) string {
	shown := strings.Join(all[:min(most, len(all))], ", ")
	if more := len(all) - most; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return shown
}

// Word returns s as one word of a shell command, in quotes if needed.
func Word(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./~:@=,+", r)
	}
	if s != "" && !strings.ContainsAny(s[:1], "~=") && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return quote(s)
}

// Name returns the name of a resource, with or without its namespace. It is in quotes of a shell if it has
// characters that no name in Kubernetes has.
func Name(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-./") == "" {
		return s
	}
	return quote(s)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
