package printer

import "strconv"

// Count returns a number of things: "1 resource", "2 resources". thing is the name of one, of
// which the plural ends in s.
func Count(n int, thing string) string {
	return strconv.Itoa(n) + " " + thing + Agree(n, "", "s")
}

// Agree returns that form of a word which goes with a number.
func Agree(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
