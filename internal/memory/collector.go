// Package memory keeps the process small: it tunes the garbage collector, and reports a lack of
// memory for more clients.
//
// The package must not know the use of the memory.
package memory

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// Until the upstreams have synced, garbage may be startGarbage bytes less one part in heldPart of
	// what is held, within leastPercent and mostPercent of that. Most of what a start reads stays, so
	// that a collection of a small heap finds next to nothing. A large heap is collected often all the
	// same: else garbage of a start, which never comes again, would decide how much memory the process
	// needs.
	startGarbage = 96 << 20
	heldPart     = 8
	leastPercent = 12
	mostPercent  = 150
	// stackGarbage is how much garbage there may be for each byte of stacks, within startGarbage: a
	// collection looks through all stacks, and hundreds of upstreams have thousands.
	stackGarbage = 4
	// runPercent is GOGC from then on. It keeps the heap small: pushing makes little garbage,
	// so that collections cost next to nothing.
	runPercent = 50
	// adjustInterval is the time between two looks at the heap during the start.
	adjustInterval = 50 * time.Millisecond
	// A relay counts as quiet that has not collected for quietTime, and has allocated less meanwhile
	// than quietBytes or one part in quietPart of what it holds: the next collection is long in coming.
	quietTime  = 2 * time.Second
	quietBytes = 1 << 20
	quietPart  = 20
	// quietAgain is the least time between two such collections. Between them there was work, which has
	// left one part in growPart and growBytes more at least: what changes now and then leave behind,
	// the usual collections take.
	quietAgain = 10 * time.Second
	growPart   = 10
	growBytes  = 16 << 20
	// manyStacks is from how many bytes of stacks on a collection of ours is two: each halves a stack at
	// most, and pools keep their buffers for one.
	manyStacks = 16 << 20
)

// startPercent returns GOGC for a start, by the bytes that the last collection has left.
func startPercent(held, stacks uint64) int {
	held = max(held, 1)
	most := max(mostPercent, stackGarbage*stacks*100/held)
	garbage := startGarbage - min(held/heldPart, startGarbage)
	return int(min(max(garbage*100/held, leastPercent), most)) //nolint:gosec // far less
}

// Collector keeps the resident set below the limit of the container, and makes it small again
// after a start or a storm of clients, when nothing else starts a collection for minutes. It gives
// back the pages of the program file that only the start needed, too.
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
		debug.SetGCPercent(mostPercent)
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
	if !followStart(ctx, started) {
		return nil
	}
	debug.SetGCPercent(runPercent)
	c.forgetProgram()
	tick := time.NewTicker(quietTime)
	defer tick.Stop()
	last, before := collections(), allocatedBytes()
	worked := true                     // since the last collection of ours
	at, kept := time.Time{}, uint64(0) // when that was, and what was resident after it
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, allocated := collections(), allocatedBytes()
		works := allocated-before >= max(quietBytes, heldBytes()/quietPart)
		worked = worked || works
		grown := residentBytes() >= kept+kept/growPart+growBytes
		if worked && !works && now == last && (at.IsZero() || grown && time.Since(at) >= quietAgain) {
			if stackBytes() >= manyStacks {
				runtime.GC()
			}
			debug.FreeOSMemory()
			c.forgetProgram()
			now = collections()
			worked, at, kept = false, time.Now(), residentBytes()
			c.log.Debug("memory returned to the system", "collections", now)
		}
		last, before = now, allocated
	}
}

func (c *Collector) forgetProgram() {
	if err := forgetProgram(); err != nil {
		c.log.Debug("pages of the program stay resident", "err", err)
	}
}

// followStart sets GOGC to startPercent until started is closed, and reports whether ctx still runs.
func followStart(ctx context.Context, started <-chan struct{}) bool {
	tick := time.NewTicker(adjustInterval)
	defer tick.Stop()
	for percent := mostPercent; ; {
		select {
		case <-started:
			return true
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if next := startPercent(heldBytes(), stackBytes()); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
	}
}

// heldBytes returns what the last collection has left.
func heldBytes() uint64 { return metric("/gc/heap/live:bytes") }

// stackBytes returns what the stacks of goroutines take.
func stackBytes() uint64 { return metric("/memory/classes/heap/stacks:bytes") }

// allocatedBytes returns what was allocated in all.
func allocatedBytes() uint64 { return metric("/gc/heap/allocs:bytes") }

// residentBytes returns what the runtime has from the system: the resident set but for the pages of the
// program file.
func residentBytes() uint64 {
	return metric("/memory/classes/total:bytes") - metric("/memory/classes/heap/released:bytes")
}

func metric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// collections returns the number of garbage collections.
func collections() int64 {
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	return stats.NumGC
}
