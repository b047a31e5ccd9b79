//go:build break_i4

package breakage

// I4 breaks the invariant I4 of the chaos suite.
const I4 = true
