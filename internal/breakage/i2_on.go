//go:build break_i2

package breakage

// I2 breaks the invariant I2 of the chaos suite.
const I2 = true
