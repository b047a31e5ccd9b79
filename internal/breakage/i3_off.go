//go:build !break_i3

package breakage

// I3 breaks the invariant I3 of the chaos suite.
const I3 = false
