//go:build break_i1

package breakage

// I1 breaks the invariant I1 of the chaos suite.
const I1 = true
