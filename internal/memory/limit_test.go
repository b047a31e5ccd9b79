package memory

import (
	"runtime"
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

// held is what tests of memory hold on to.
var held [][]byte

func TestGarbageIsNotInUse(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing is collected but by us
	runtime.GC()
	before, _ := InUse()
	for range 64 {
		held = append(held, make([]byte, 1<<20))
	}
	held = nil
	garbage, _ := InUse()
	if garbage > before+16<<20 {
		t.Errorf("with 64 MiB of garbage %d MiB more count as in use", (garbage-before)>>20)
	}
	for range 64 {
		held = append(held, make([]byte, 1<<20))
	}
	runtime.GC()
	used, limit := InUse()
	if used < before+64<<20 {
		t.Errorf("with 64 MiB more held only %d MiB more are in use", int64(used-before)>>20)
	}
	if limit == 0 {
		t.Error("no limit is math.MaxInt64")
	}
	held = nil
}
