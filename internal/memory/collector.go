// Package memory keeps the process small: it tunes the garbage collector, and tells when there
// is too little memory left for more clients.
//
// The package must not know what the memory is used for.
package memory

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// startPercent is GOGC until the upstreams have synced. Most of what is read during a
	// start stays, so that looking for garbage more often finds little.
	startPercent = 150
	// runPercent is GOGC from then on. It keeps the heap close to what is held: pushing makes
	// little garbage, so that collecting it often costs next to nothing.
	runPercent = 50
	// quietTime is how long there must have been no collection for the relay to count as
	// quiet.
	quietTime = 10 * time.Second
)

// Collector keeps the resident set close to what the relay holds: below the limit of the
// container, and small again after a start or a storm of clients, when nothing would
// otherwise start a collection for minutes. GOMEMLIMIT and GOGC take precedence.
type Collector struct {
	log  *slog.Logger
	tune bool
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

// Run collects garbage when the relay becomes quiet, until ctx ends. The start is over when
// started is closed.
func (c *Collector) Run(ctx context.Context, started <-chan struct{}) error {
	if !c.tune {
		<-ctx.Done()
		return nil
	}
	select {
	case <-started:
	case <-ctx.Done():
		return nil
	}
	debug.SetGCPercent(runPercent)
	tick := time.NewTicker(quietTime)
	defer tick.Stop()
	last, ours := collections(), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// A relay that has become quiet since the last collection is collected once: nothing
		// else would do it for minutes. A busy one is collected anyway.
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

// collections returns how many garbage collections there have been.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
