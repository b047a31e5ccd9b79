// Package memory tunes the garbage collector, and reports a lack of memory for more clients.
//
// The package must not depend on the users of the memory.
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
	// Until the upstreams have synced, the allowed garbage is startGarbage minus 1/heldPart of the
	// live heap, but at least leastPercent and at most mostPercent of the live heap. A start keeps most
	// of its allocations, so a small heap has almost no garbage. A large heap is collected more often,
	// so that garbage of the start does not determine the peak memory of the process.
	startGarbage = 96 << 20
	heldPart     = 8
	leastPercent = 12
	mostPercent  = 150
	// stackGarbage is the garbage allowed for each byte of stacks, at most startGarbage: a collection
	// scans all stacks, and hundreds of upstreams have thousands of goroutines.
	stackGarbage = 4
	// runPercent is GOGC after the start. Pushes allocate little, so collections are rare.
	runPercent = 50
	// adjustInterval is the time between two adjustments of GOGC during the start.
	adjustInterval = 50 * time.Millisecond
	// A relay is quiet if during quietTime it has not collected, and has allocated less than quietBytes
	// or 1/quietPart of the live heap. Its next collection would come late.
	quietTime  = 2 * time.Second
	quietBytes = 1 << 20
	quietPart  = 20
	// quietAgain is the shortest time between two collections of a quiet relay. Between them, memory
	// must grow by 1/growPart and by growBytes.
	quietAgain = 10 * time.Second
	growPart   = 10
	growBytes  = 16 << 20
	// manyStacks is the size of all stacks, in bytes, above which a quiet relay collects twice. A stack
	// shrinks by half at most in one collection, and pools free their buffers only in the second one.
	manyStacks = 16 << 20
)

// startPercent returns GOGC for a start, from the bytes of the live heap and of the stacks.
func startPercent(held, stacks uint64) int {
	held = max(held, 1)
	most := max(mostPercent, stackGarbage*stacks*100/held)
	garbage := startGarbage - min(held/heldPart, startGarbage)
	return int(min(max(garbage*100/held, leastPercent), most)) // far less
}

// Collector sets GOGC and the memory limit of this process. It collects after a start or after many
// clients have connected, when the next collection could be minutes away. The environment variables
// GOGC and GOMEMLIMIT take precedence.
type Collector struct {
	log    *slog.Logger
	tune   bool
	onDisk int64 // bytes of state that the start reads
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

// SetLimit sets the memory limit of the process to 90 % of the control group's limit, unless
// GOMEMLIMIT is set. It returns the limit in bytes, or math.MaxInt64 if there is none.
func SetLimit() int64 {
	_, _ = memlimit.Set(memlimit.WithRatio(0.9)) // without a control group there is no limit
	return debug.SetMemoryLimit(-1)
}

// Run adjusts GOGC until started is closed. Then it collects garbage whenever the relay becomes quiet,
// until ctx ends.
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
	tick := time.NewTicker(quietTime)
	defer tick.Stop()
	last, before := collections(), allocatedBytes()
	worked := true                     // since the last collection of Run
	at, kept := time.Time{}, uint64(0) // the time of that collection, and the resident bytes after it
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
			now = collections()
			worked, at, kept = false, time.Now(), residentBytes()
			c.log.Debug("memory returned to the system", "collections", now)
		}
		last, before = now, allocated
	}
}

// followStart sets GOGC to startPercent until started is closed. It returns false if ctx has ended.
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

// heldBytes returns the size of the live heap after the last collection.
func heldBytes() uint64 { return metric("/gc/heap/live:bytes") }

// stackBytes returns the size of the stacks of goroutines.
func stackBytes() uint64 { return metric("/memory/classes/heap/stacks:bytes") }

// allocatedBytes returns the total of all allocations since the process began.
func allocatedBytes() uint64 { return metric("/gc/heap/allocs:bytes") }

// residentBytes returns the memory of the Go runtime: the resident set without pages of the program file.
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
