// Package memory sets the limits of the Go runtime, and reports a lack of memory for more clients.
//
// The package must not depend on the users of the memory.
package memory

import (
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// gcPercent is GOGC: the garbage that may be there before it is collected, in percent of what is held.
const gcPercent = 50

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
