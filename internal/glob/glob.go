// Package glob matches names against patterns in which * stands for any text and ? for any
// character. Path separators and brackets have no special meaning.
package glob

import "strings"

// Match reports whether name matches pattern. After a mismatch it only goes back to the last star,
// so its time is at most proportional to the product of the lengths.
func Match(pattern, name string) bool { return match(pattern, name, false) }

// match is Match. With stars, a * in name stands for any text: only a * of the pattern matches it.
func match(pattern, name string, stars bool) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && (pattern[p] == name[n] || pattern[p] == '?' && (!stars || name[n] != '*')):
			p, n = p+1, n+1
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Covers reports whether pattern matches every name that other matches. It is exact, except that it may
// return false where only the characters that names can have make it true. Its time is proportional to the
// product of the lengths.
func Covers(pattern, other string) bool { return match(spread(pattern), other, true) }

// spread returns a pattern that matches the same names, with a * before and after each ? that is beside a *.
func spread(pattern string) string {
	var out strings.Builder
	for len(pattern) > 0 {
		n := len(pattern) - len(strings.TrimLeft(pattern, "*?"))
		if run := pattern[:n]; strings.Contains(run, "*") {
			out.WriteString("*" + strings.Repeat("?*", strings.Count(run, "?")))
		} else {
			n = max(n, 1)
			out.WriteString(pattern[:n])
		}
		pattern = pattern[n:]
	}
	return out.String()
}
