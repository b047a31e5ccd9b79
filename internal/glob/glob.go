// Package glob matches names against patterns in which * stands for any text and ? for any
// character. Path separators and brackets have no special meaning.
package glob

import "strings"

// Match reports whether name matches pattern. After a mismatch it only goes back to the last star,
// so its time is at most proportional to the product of the lengths.
func Match(pattern, name string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
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
func Covers(pattern, other string) bool {
	p := spread(pattern)
	// covers[j] reports whether p[i:] covers other[j:].
	covers, next := make([]bool, len(other)+1), make([]bool, len(other)+1)
	covers[len(other)] = true // for i = len(p)
	for i := len(p) - 1; i >= 0; i-- {
		covers, next = next, covers
		for j := len(other); j >= 0; j-- {
			switch {
			case p[i] == '*':
				covers[j] = next[j] || j < len(other) && covers[j+1]
			case j == len(other) || other[j] == '*':
				covers[j] = false
			default:
				covers[j] = (p[i] == '?' || p[i] == other[j]) && next[j+1]
			}
		}
	}
	return covers[0]
}

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
