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
)

const (
	// gcPercent keeps the heap close to what is held. Pushing makes little garbage, so
	// collecting it that often costs next to nothing.
	gcPercent = 50
	// startBytes is how far the heap may grow before the first collection: most of what is
	// read during a start stays, and looking for garbage in it would be a third of the work.
	startBytes = 64 << 20
	// giveBackEvery is how often memory that nothing needs any more is looked for.
	giveBackEvery = 10 * time.Second
	// giveBackOver is how much of it, in bytes, is worth a collection.
	giveBackOver = 16 << 20
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
	limit, err := memlimit.Set(memlimit.WithRatio(0.9))
	if err != nil {
		log.Debug("no memory limit from the control group", "err", err)
	} else {
		log.Debug("memory limit", "bytes", limit)
	}
	if m.tune {
		debug.SetGCPercent(gcPercent)
		// The runtime's limit counts the ballast, too.
		m.ballast = make([]byte, min(startBytes, debug.SetMemoryLimit(-1)/8))
	}
	return m
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
	tick := time.NewTicker(giveBackEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if unused := unusedMemory(); unused > giveBackOver || first {
			debug.FreeOSMemory()
			m.log.Debug("gave memory back", "unused", unused)
		}
	}
}

// unusedMemory returns how much more memory the heap takes, in bytes, than the collector
// lets it take at its present size.
func unusedMemory() int64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"}, {Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	live := value(3)
	return value(0) + value(1) + value(2) - live - live*gcPercent/100
}
