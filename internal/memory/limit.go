// Package memory sets the limits of the Go runtime, and tells how much of them is in use.
//
// The package must not depend on the users of the memory.
package memory

import (
	"os"
	"runtime/debug"
	"runtime/metrics"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// gcPercent is GOGC: the garbage that may be there before it is collected, in percent of what is held.
const gcPercent = 20

// SetLimit sets the memory limit of the process to 90 % of the control group's limit, unless
// GOMEMLIMIT is set. It returns the limit in bytes, or math.MaxInt64 if there is none.
func SetLimit() int64 {
	_, _ = memlimit.Set(memlimit.WithRatio(0.9)) // without a control group there is no limit
	return debug.SetMemoryLimit(-1)
}

// Tune is SetLimit, and sets GOGC, too, unless the environment does.
func Tune() int64 {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return SetLimit()
}

// InUse returns the memory in use and the runtime's memory limit, in bytes.
//
// Garbage and free spans count against the limit, although a collection frees them. So the memory in
// use is 1.1 times the memory left after a collection, but at most the memory that counts.
func InUse() (inUse, limit uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	of := func(i int) uint64 { return samples[i].Value.Uint64() }
	counted := subFloor(of(0), of(1))
	left := subFloor(subFloor(counted, of(2)), subFloor(of(3), of(4)))
	return min(counted, left+left/10), uint64(debug.SetMemoryLimit(-1))
}

// subFloor returns a-b, or 0 if b is larger: metrics are not read at the same instant.
func subFloor(a, b uint64) uint64 { return a - min(a, b) }
