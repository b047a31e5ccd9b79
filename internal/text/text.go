// Package text bounds text from outside before it goes into an error, a reason or a log. It must
// not know what the text means.
package text

import (
	"fmt"
	"strings"
)

// maxQuoted is how many bytes Abbreviate keeps.
const maxQuoted = 256

// Abbreviate returns s, or its beginning and its length in bytes if s is long.
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
