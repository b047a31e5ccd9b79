package memory

import (
	"runtime/debug"
	"testing"
)

func TestGOGCTakesPrecedence(t *testing.T) {
	was, limit := debug.SetGCPercent(80), debug.SetMemoryLimit(-1)
	defer func() { debug.SetGCPercent(was); debug.SetMemoryLimit(limit) }()
	for given, want := range map[string]int{"150": 80, "": gcPercent} {
		t.Setenv("GOGC", given)
		debug.SetGCPercent(80) // as the runtime has read it
		Tune()
		if percent := debug.SetGCPercent(80); percent != want {
			t.Errorf("with GOGC=%q in the environment it is %d, want %d", given, percent, want)
		}
	}
}
