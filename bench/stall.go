package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// stalled is how many clients of a stall scenario stop reading.
const stalled = 2

// stallResult compares the time before some clients stop reading with the time after.
type stallResult struct {
	P99BeforeMS float64 `json:"p99BeforeMs"`
	P99DuringMS float64 `json:"p99DuringMs"`
	// How much larger the resident set is, in the mean of the second half of the time: than
	// before the SotW client came, and than while both read.
	GrownMiB   float64 `json:"grownMib"`
	StalledMiB float64 `json:"stalledMib"`
	// Messages that the stalled clients were sent after they read again, until they held all.
	ResumedMessages float64 `json:"resumedMessages"`
	ResumedMS       float64 `json:"resumedMs"`
}

// stall times a stream of changes: first to delta clients that all read, then while one of
// those does not, nor one SotW client that has come in between and read for a while.
func (b *bench) stall() error {
	sotw, err := newClient(len(b.clients), false, b.world, b.listen)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	defer func() {
		cancel()
		_ = sotw.conn.Close()
		run.Wait()
		sotw.drop()
	}()
	delta := b.clients[0]
	b.traceClients(b.clients[1:])
	churn := func(lasting time.Duration) (p99 time.Duration, rss int64) {
		watching, stopWatching := context.WithCancel(ctx)
		mean := b.sampleMemory(watching)
		b.churn(ctx, int(lasting.Seconds()*float64(b.scenario.Rate)), time.Second/time.Duration(b.scenario.Rate))
		stopWatching()
		return quantile(collect(b.clients[1:]), 0.99), mean()
	}
	r := &stallResult{}
	b.result.Stall = r
	p99, before := churn(b.scenario.Stall)
	r.P99BeforeMS = ms(p99)

	g := b.world.aim(len(b.clients)+1, b.world.changes.Load()+1, time.Now())
	run.Go(func() { sotw.run(ctx) })
	b.world.change(b.world.pick())
	if _, err := b.wait(g); err != nil {
		return fmt.Errorf("sync of the SotW client: %w", err)
	}
	_, reading := churn(b.scenario.Stall / 3)
	resume := make(chan struct{})
	sotw.paused.Store(&resume)
	delta.paused.Store(&resume)
	p99, during := churn(b.scenario.Stall)
	r.P99DuringMS, r.GrownMiB, r.StalledMiB = ms(p99), mib(during-before), mib(during-reading)
	rss, peak := b.process.memory()
	b.result.RSSMiB, b.result.PeakMiB = mib(rss), mib(peak)

	messages := delta.messages.Load() + sotw.messages.Load()
	g = b.world.aim(len(b.clients)+1, b.world.changes.Load()+1, time.Now())
	close(resume)
	sotw.paused.Store(nil)
	delta.paused.Store(nil)
	b.world.change(b.world.pick())
	took, err := b.wait(g)
	if err != nil {
		return err
	}
	r.ResumedMS = ms(max(took[sotw.id], took[delta.id]))
	r.ResumedMessages = float64(delta.messages.Load()+sotw.messages.Load()-messages) / stalled
	return sotw.check()
}

// sampleMemory looks at the contender's resident set until ctx ends. The function that it
// returns waits for that, and returns the mean of the second half.
func (b *bench) sampleMemory(ctx context.Context) (mean func() int64) {
	var samples []int64
	var run sync.WaitGroup
	run.Go(func() {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				rss, _ := b.process.memory()
				samples = append(samples, rss)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() (sum int64) {
		run.Wait()
		half := samples[len(samples)/2:]
		for _, rss := range half {
			sum += rss
		}
		return sum / int64(max(1, len(half)))
	}
}
