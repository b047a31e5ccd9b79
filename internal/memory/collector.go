// Package memory keeps the process small: it tunes the garbage collector, and reports a lack of
// memory for more clients.
//
// The package must not know the use of the memory.
package memory

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// startPercent is GOGC until the upstreams have synced. A start makes little garbage.
	startPercent = 150
	// runPercent is GOGC from then on. It keeps the heap small: pushing makes little garbage,
	// so that collections cost next to nothing.
	runPercent = 50
	// quietTime is the time without a collection after which the relay counts as quiet.
	quietTime = 10 * time.Second
)

// Collector keeps the resident set below the limit of the container, and makes it small again
// after a start or a storm of clients, when nothing else starts a collection for minutes.
// GOMEMLIMIT and GOGC take precedence.
type Collector struct {
	log    *slog.Logger
	tune   bool
	onDisk int64 // bytes that the start restores
}

// NewCollector sets the memory limit and GOGC of this process.
func NewCollector(log *slog.Logger) *Collector {
	c := &Collector{log: log, tune: os.Getenv("GOGC") == ""}
	log.Debug("memory limit", "bytes", SetLimit())
	if c.tune {
		debug.SetGCPercent(startPercent)
	}
	return c
}

// SetLimit makes the memory limit of the control group that of the process, unless GOMEMLIMIT
// is set. It returns the limit in bytes, math.MaxInt64 for none.
func SetLimit() int64 {
	_, _ = memlimit.Set(memlimit.WithRatio(0.9)) //nolint:errcheck // without a control group there is no limit
	return debug.SetMemoryLimit(-1)
}

// Run collects garbage when the relay becomes quiet, until ctx ends. started is closed at the
// end of the start.
func (c *Collector) Run(ctx context.Context, started <-chan struct{}) error {
	if !c.tune {
		<-ctx.Done()
		return nil
	}
	c.awaitRestore(ctx, started)
	select {
	case <-started:
	case <-ctx.Done():
		return nil
	}
	debug.SetGCPercent(runPercent)
	tick := time.NewTicker(quietTime)
	defer tick.Stop()
	last, ours := collections(), int64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// Once after the relay has become quiet: a busy one collects anyway.
		now := collections()
		if now == last && now != ours {
			debug.FreeOSMemory()
			now = collections()
			ours = now
			c.log.Debug("memory returned to the system", "collections", now)
		}
		last = now
	}
}

// collections returns the number of garbage collections.
func collections() int64 {
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	return stats.NumGC
}
