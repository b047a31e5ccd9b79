package main

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// diskResult is how long a relay takes to serve what it has on disk, with all upstreams down.
type diskResult struct {
	Starts int `json:"starts"`
	// From the start of the process until a delta client holds all; the median of the starts.
	MedianMS float64 `json:"medianMs"`
	MinMS    float64 `json:"minMs"`
	MaxMS    float64 `json:"maxMs"`
	// CPUMS is what the relay used until then, and ClientCPUMS what the client did, on the same CPUs.
	CPUMS       float64 `json:"cpuMs"`
	ClientCPUMS float64 `json:"clientCpuMs"`
	StateMiB    float64 `json:"stateMib"` // on disk
	PeakMiB     float64 `json:"peakMib"`
	Messages    float64 `json:"messages"`
}

var diskFigures = []func(*diskResult) *float64{
	func(r *diskResult) *float64 { return &r.MedianMS },
	func(r *diskResult) *float64 { return &r.MinMS },
	func(r *diskResult) *float64 { return &r.MaxMS },
	func(r *diskResult) *float64 { return &r.CPUMS },
	func(r *diskResult) *float64 { return &r.ClientCPUMS },
	func(r *diskResult) *float64 { return &r.StateMiB },
	func(r *diskResult) *float64 { return &r.PeakMiB },
	func(r *diskResult) *float64 { return &r.Messages },
}

// disk ends the relay, which has synced, and all upstreams, and starts it several times.
func (b *bench) disk() error {
	b.process.stop() // it writes what it has
	b.world.close()
	b.clients[0].drop()
	size, err := sizeOf(b.stateDir())
	if err != nil {
		return err
	}
	var starts []diskResult
	for n := range b.scenario.Starts {
		r, err := b.startFromDisk(n + 1)
		if err != nil {
			return fmt.Errorf("start %d of %d: %w", n+1, b.scenario.Starts, err)
		}
		starts = append(starts, r)
	}
	all := &diskResult{Starts: len(starts)}
	mediansOf(all, starts, diskFigures, func(r *diskResult) *diskResult { return r })
	byTime := func(x, y diskResult) int { return int(x.MedianMS*1000) - int(y.MedianMS*1000) }
	all.MinMS, all.MaxMS = slices.MinFunc(starts, byTime).MedianMS, slices.MaxFunc(starts, byTime).MedianMS
	all.StateMiB = mib(size)
	b.result.Disk = all
	return nil
}

// startFromDisk starts the relay once, with a client that connects as soon as it listens.
func (b *bench) startFromDisk(id int) (r diskResult, err error) {
	c, err := newClient(id, b.scenario.Delta, b.world, b.listen)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() {
		cancel()
		_ = c.conn.Close()
		running.Wait()
		c.drop()
		b.process.stop()
	}()
	g := b.world.aim(id+1, 0, time.Now())
	g.remaining = 1
	own := ownCPU()
	if err := b.launch(); err != nil {
		return r, err
	}
	g.since = b.process.began
	if err := b.process.listening(b.listen, patience); err != nil {
		return r, err
	}
	running.Go(func() { c.run(ctx) })
	took, err := b.wait(g)
	if err != nil {
		return r, err
	}
	r.MedianMS, r.CPUMS, r.ClientCPUMS = ms(took[id]), ms(b.process.cpu()), ms(ownCPU()-own)
	_, peak := b.process.memory()
	r.PeakMiB, r.Messages = mib(peak), float64(c.messages.Load())
	return r, c.check()
}

// stateDir is where a relay that keeps state has it.
func (b *bench) stateDir() string { return filepath.Join(b.dir, stateName) }

const stateName = "state"

// sizeOf returns the size of the files in a directory.
func sizeOf(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}

// ownCPU returns the processor time that this process has used.
func ownCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
