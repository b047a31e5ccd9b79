package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"meshrelay/config"
)

const (
	// gcPercent keeps the heap close to what is held. Pushing makes little garbage, so
	// collecting it that often costs next to nothing.
	gcPercent = 50
	// ballastBytes count as held until the sources have synced. So the heap may grow by half
	// as much before it is collected: most of what is read during a start stays, and looking
	// for garbage in it would be a third of the work.
	ballastBytes = 64 << 20
	// quietTime is how long there must have been no collection for the relay to count as
	// quiet.
	quietTime = 10 * time.Second
)

// memory keeps the resident set close to what the relay holds: below the limit of the
// container, and small again after a start or a storm of clients, when nothing would
// otherwise set off a collection for minutes. GOMEMLIMIT and GOGC take precedence.
type memory struct {
	log  *slog.Logger
	tune bool
	// ballast counts as part of the heap, and so puts off collections. It is never written
	// to, and so takes no memory.
	ballast []byte
}

func newMemory(log *slog.Logger) *memory {
	m := &memory{log: log, tune: os.Getenv("GOGC") == ""}
	limit, err := setMemoryLimit()
	if err != nil {
		log.Debug("no memory limit from the control group", "err", err)
	} else {
		log.Debug("memory limit", "bytes", limit)
	}
	if m.tune {
		debug.SetGCPercent(gcPercent)
		// The runtime's limit counts the ballast, too.
		m.ballast = make([]byte, min(ballastBytes, debug.SetMemoryLimit(-1)/8))
	}
	return m
}

// setMemoryLimit takes the memory limit of the control group over, unless GOMEMLIMIT is set,
// and returns the one that the process now has: math.MaxInt64 without any.
func setMemoryLimit() (int64, error) {
	_, err := memlimit.Set(memlimit.WithRatio(0.9))
	return debug.SetMemoryLimit(-1), err
}

// fitMemory fills in the limits of a config that follow from the memory of this process.
func fitMemory(cfg *config.Config) {
	limit, _ := setMemoryLimit() //nolint:errcheck // without a control group there is no limit
	cfg.FitMemory(limit)
}

// run lasts until ctx ends. The start is over when released is closed.
func (m *memory) run(ctx context.Context, released <-chan struct{}) error {
	if !m.tune {
		<-ctx.Done()
		return nil
	}
	select {
	case <-released:
	case <-ctx.Done():
		return nil
	}
	runtime.KeepAlive(m.ballast)
	m.ballast = nil
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
		// else would for minutes. A busy one is collected anyway.
		now := collections()
		if now == last && now != ours {
			debug.FreeOSMemory()
			now = collections()
			ours = now
			m.log.Debug("gave memory back", "collections", now)
		}
		last = now
	}
}

// collections returns how often garbage has been collected.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
