package breakage_test

import (
	"testing"

	"meshrelay/internal/breakage"
)

// With one of the tags it fails, as is right for a relay that nobody should use.
func TestNothingIsBrokenInANormalBuild(t *testing.T) {
	for name, broken := range map[string]bool{"I1": breakage.I1, "I2": breakage.I2, "I3": breakage.I3, "I4": breakage.I4} {
		if broken {
			t.Errorf("%s is broken", name)
		}
	}
}
