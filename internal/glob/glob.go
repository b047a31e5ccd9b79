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
		case p < len(pattern) && (pattern[p] == name[n] || pattern[p] == '?'):
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
