package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// gap is the pause between single changes: longer than anybody's debounce.
	gap = 300 * time.Millisecond
	// rest is how long a contender is left alone before the single changes, and before its memory
	// counts as settled, and age how long after the first sync that is at least: the same for slow and fast ones.
	rest = 4 * time.Second
	age  = 20 * time.Second
	// patience is how long the clients may take to hold everything.
	patience = 3 * time.Minute
	// slowChanges is how many single changes are timed of slow contenders.
	slowChanges = 5
	// restartChanges is how many resources change while a contender is down.
	restartChanges = 10
)

// result is what one contender did in one run of one scenario.
type result struct {
	Scenario  string `json:"scenario"`
	Contender string `json:"contender"`
	Run       int    `json:"run"`
	// Seconds is how long the run took, everything included.
	Seconds float64 `json:"seconds,omitempty"`
	// Error tells why figures are missing, or which are wrong.
	Error string `json:"error,omitempty"`

	ResourceBytes int `json:"resourceBytes"` // mean, as an element of a SotW response

	// From the start of the process to the first and the last client that holds all.
	SyncFirstMS float64 `json:"syncFirstMs"`
	SyncLastMS  float64 `json:"syncLastMs"`
	SyncBytes   float64 `json:"syncBytes"` // a client
	SyncCPUMS   float64 `json:"syncCpuMs"`
	// SyncOwnCPUMS is what the bench used meanwhile: the clients, and the control planes.
	SyncOwnCPUMS float64 `json:"syncOwnCpuMs,omitempty"`
	SyncMessages float64 `json:"syncMessages,omitempty"` // a client
	LargestBytes float64 `json:"largestBytes,omitempty"` // of all messages to any client until all hold all

	Changes        int     `json:"changes"`
	MedianMS       float64 `json:"medianMs"` // from the change to a client
	P99MS          float64 `json:"p99Ms"`
	MaxMS          float64 `json:"maxMs"`
	CPUPerChangeMS float64 `json:"cpuPerChangeMs"`
	OwnPerChangeMS float64 `json:"ownPerChangeMs,omitempty"` // CPU time of the bench
	BytesPerChange float64 `json:"bytesPerChange"`           // a client

	RSSMiB  float64 `json:"rssMib"`
	PeakMiB float64 `json:"peakMib"`

	Burst         int     `json:"burst,omitempty"`
	BurstMS       float64 `json:"burstMs,omitempty"` // from the first change to the last client that holds all
	BurstCPUMS    float64 `json:"burstCpuMs,omitempty"`
	BurstBytes    float64 `json:"burstBytes,omitempty"`    // a client
	BurstMessages float64 `json:"burstMessages,omitempty"` // a client

	Restarted   bool    `json:"restarted,omitempty"`
	ResumeMS    float64 `json:"resumeMs,omitempty"`    // from the new process' start to the last client's first response
	ResumeBytes float64 `json:"resumeBytes,omitempty"` // a client

	Stall *stallResult `json:"stall,omitempty"`
	Rates []rateResult `json:"rates,omitempty"`
	Disk  *diskResult  `json:"disk,omitempty"`

	Kubernetes *kubernetesResult `json:"kubernetes,omitempty"`
	Sink       *sinkResult       `json:"sink,omitempty"`
}

// bench is one contender at one scenario.
type bench struct {
	scenario  scenario
	contender contender
	dir       string
	listen    string
	admin     string // of a contender that has one
	profiles  string // directory for the relay's profiles; empty: none
	clusters  *clusters

	world   *world
	process *process
	clients []*client
	cancel  context.CancelFunc
	running sync.WaitGroup
	result  result
}

// measure runs a contender through a scenario.
func measure(s scenario, c contender, run int, profiles string, clusters *clusters) (r result) {
	b := &bench{scenario: s, contender: c, profiles: profiles, clusters: clusters, result: result{Scenario: s.Name, Contender: c.name, Run: run}}
	began := time.Now()
	defer func() {
		b.close()
		r = b.result
		r.Seconds = math.Round(time.Since(began).Seconds())
	}()
	if err := errors.Join(b.open(), b.steps()); err != nil {
		b.result.Error = err.Error()
	}
	return b.result
}

func (b *bench) open() (err error) {
	if b.dir, err = os.MkdirTemp("", "bench-"+b.contender.name+"-"); err != nil {
		return err
	}
	if b.scenario.Kubernetes {
		b.world, err = b.clusters.world(b.scenario, b.contender)
	} else {
		b.world, err = newWorld(b.scenario, b.contender)
	}
	if err != nil {
		return err
	}
	if b.scenario.Sink {
		if b.world.target, err = newCluster(b.clusters.binaries); err != nil {
			return err
		}
	}
	if b.scenario.Stall > 0 || len(b.scenario.Gaps) > 0 {
		b.world.issued = make([][]time.Time, b.scenario.Configs)
	}
	b.result.ResourceBytes = b.world.size()
	if b.listen, err = freePort(); err != nil {
		return err
	}
	if b.admin, err = freePort(); err != nil {
		return err
	}
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(context.Background())
	for i := range b.scenario.Clients {
		c, err := newClient(i, b.scenario.Delta, b.world, b.listen)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, c)
	}
	start, server := b.launch, time.Duration(0)
	switch {
	case b.scenario.Pods > 0 && !b.contender.mute:
		b.world.cluster.settle()
		server = b.world.cluster.server.cpu()
	case b.scenario.Kubernetes:
		start = b.list
	case b.scenario.Sink:
		start = b.fillSink
	}
	g, own := b.world.aim(len(b.clients), 0, time.Now()), ownCPU()
	if err := start(); err != nil || b.contender.mute {
		return err
	}
	g.began(b.process.began)
	if err := b.process.listening(b.listen, patience); err != nil {
		return err
	}
	seconds := 3
	if b.scenario.Pods > 0 {
		seconds = 12 // its clients wait for the first list
	}
	defer b.profile("sync", fmt.Sprintf("profile?seconds=%d", seconds))()
	for _, c := range b.clients {
		b.running.Go(func() { c.run(ctx) })
	}
	took, err := b.wait(g)
	if err != nil {
		return fmt.Errorf("first sync: %w", err)
	}
	b.result.SyncFirstMS, b.result.SyncLastMS = ms(slices.Min(took)), ms(slices.Max(took))
	b.result.SyncCPUMS, b.result.SyncOwnCPUMS = ms(b.process.cpu()), ms(ownCPU()-own)
	if b.scenario.Pods > 0 {
		b.listedServices(server)
	}
	b.result.SyncBytes, b.result.SyncMessages = b.received()
	for _, c := range b.clients {
		b.result.LargestBytes = max(b.result.LargestBytes, float64(c.largest.Load()))
	}
	return nil
}

func (b *bench) launch() error {
	cmd, err := b.contender.start(b.dir, b.listen, b.admin, b.world, b.contender.takesDelta(b.scenario))
	if err != nil {
		return err
	}
	b.process, err = launch(cmd, b.dir)
	return err
}

// disconnect ends the clients.
func (b *bench) disconnect() {
	if b.cancel != nil {
		b.cancel()
	}
	for _, c := range b.clients {
		_ = c.conn.Close()
	}
	b.running.Wait()
	for _, c := range b.clients {
		c.drop()
	}
}

func (b *bench) close() {
	b.disconnect()
	if b.process != nil {
		b.process.stop()
	}
	if b.world != nil {
		b.world.close()
	}
	_ = os.RemoveAll(b.dir)
}

// wait waits for the clients to reach a goal.
func (b *bench) wait(g *goal) ([]time.Duration, error) {
	took, err := g.wait(patience)
	if err == nil {
		return took, nil
	}
	for _, c := range b.clients {
		c.mu.Lock()
		broken := c.err
		c.mu.Unlock()
		if broken != nil {
			err = fmt.Errorf("%w; client %d: %w", err, c.id, broken)
			break
		}
	}
	return nil, errors.Join(err, b.process.alive())
}

// received returns what a client was sent so far, in the mean.
func (b *bench) received() (bytes, messages float64) {
	for _, c := range b.clients {
		bytes += float64(c.bytes.Load())
		messages += float64(c.messages.Load())
	}
	n := float64(len(b.clients))
	return bytes / n, messages / n
}

func (b *bench) digest() {
	for _, c := range b.clients {
		c.digest()
	}
}

func (b *bench) check() error {
	for _, c := range b.clients {
		if err := c.check(); err != nil {
			return fmt.Errorf("what is served is wrong: %w", err)
		}
	}
	return nil
}

func (b *bench) steps() error {
	if b.process == nil || b.result.SyncLastMS == 0 {
		return nil // it has failed, or serves nobody
	}
	synced := time.Now()
	b.digest()
	time.Sleep(time.Second)
	if b.scenario.Stall > 0 {
		return errors.Join(b.stall(), b.check())
	}
	if b.scenario.Sink {
		return errors.Join(b.sinkChanges(), b.check(), b.restartSink())
	}
	if b.scenario.Starts > 0 {
		err := b.check()
		b.disconnect() // or they would come to the relay that is started again
		return errors.Join(err, b.disk())
	}
	if b.scenario.Changes > 0 {
		time.Sleep(b.scenario.calm(b.contender))
		if err := b.singles(); err != nil {
			return fmt.Errorf("single changes: %w", err)
		}
		b.digest()
	}
	if b.scenario.Changes > 0 || b.scenario.Settle {
		b.settle(synced)
	}
	if b.scenario.Burst > 0 {
		if err := b.burst(); err != nil {
			return fmt.Errorf("burst: %w", err)
		}
	}
	if b.contender.omits {
		return b.check()
	}
	if len(b.scenario.Gaps) > 0 && b.contender.slow == 0 {
		if err := b.rates(); err != nil {
			return err
		}
	}
	if b.scenario.Kubernetes && b.scenario.Rate > 0 && b.contender.slow == 0 {
		if err := b.statuses(); err != nil {
			return err
		}
	}
	if b.scenario.Relist {
		if err := b.relist(); err != nil {
			return fmt.Errorf("list of the same: %w", err)
		}
	}
	if !b.scenario.Settle {
		_, peak := b.process.memory()
		b.result.PeakMiB = mib(peak)
	}
	if err := b.check(); err != nil {
		return err
	}
	if b.scenario.Restart && b.contender.product {
		if err := b.restart(); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
		return b.check()
	}
	return nil
}

// settle leaves the contender alone for a while, and then looks at its memory.
func (b *bench) settle(synced time.Time) {
	time.Sleep(cmp.Or(b.scenario.Rest, max(rest, time.Until(synced.Add(age)))))
	rss, peak := b.process.memory()
	b.result.RSSMiB, b.result.PeakMiB = mib(rss), mib(peak)
	b.profile("heap", "heap")()
	b.profile("goroutine", "goroutine?debug=1")()
}

// singles makes changes one at a time.
func (b *bench) singles() error {
	n := b.scenario.changesFor(b.contender)
	if b.world.cluster != nil {
		stop, err := b.world.cluster.follow()
		if err != nil {
			return err
		}
		defer stop()
	}
	bytes, _ := b.received()
	cpu, own := b.process.cpu(), ownCPU()
	profiled := b.profile("changes", fmt.Sprintf("profile?seconds=%d", max(1, int(time.Duration(n)*gap/time.Second))))
	defer profiled()
	var all []time.Duration
	for range n {
		g := b.world.aim(len(b.clients), b.world.changes.Load()+1, time.Now())
		g.began(b.world.change(b.world.pick()))
		took, err := b.wait(g)
		if err != nil {
			return err
		}
		all = append(all, took...)
		time.Sleep(gap)
	}
	after, _ := b.received()
	slices.Sort(all)
	b.result.Changes = n
	b.result.MedianMS, b.result.P99MS, b.result.MaxMS = ms(quantile(all, 0.5)), ms(quantile(all, 0.99)), ms(all[len(all)-1])
	b.result.CPUPerChangeMS, b.result.OwnPerChangeMS = ms(b.process.cpu()-cpu)/float64(n), ms(ownCPU()-own)/float64(n)
	b.result.BytesPerChange = (after - bytes) / float64(n)
	return nil
}

// burst makes many changes within a second.
func (b *bench) burst() error {
	defer b.profile("burst", "profile?seconds=2")()
	n := b.scenario.Burst
	bytes, messages := b.received()
	cpu := b.process.cpu()
	g := b.world.aim(len(b.clients), b.world.changes.Load()+int64(n), time.Now())
	b.churn(context.Background(), n, time.Second/time.Duration(n))
	took, err := b.wait(g)
	if err != nil {
		return err
	}
	b.result.Burst, b.result.BurstMS = n, ms(slices.Max(took))
	b.result.BurstCPUMS = ms(b.process.cpu() - cpu)
	bytesAfter, messagesAfter := b.received()
	b.result.BurstBytes, b.result.BurstMessages = bytesAfter-bytes, messagesAfter-messages
	return nil
}

// churn makes n changes, or as many times those that are made together, one after each gap.
func (b *bench) churn(ctx context.Context, n int, gap time.Duration) {
	began := time.Now()
	for i := range n {
		if wait := time.Until(began.Add(time.Duration(i) * gap)); wait > 500*time.Microsecond {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return
		}
		picked := make([]int, max(1, b.scenario.Together))
		for i := range picked {
			picked[i] = b.world.pick()
		}
		b.world.change(picked...)
	}
}

// restart ends the contender and starts it again, and waits until each client has been
// answered on a new stream.
func (b *bench) restart() error {
	b.digest()
	bytes, _ := b.received()
	b.process.stop()
	for _, c := range b.clients {
		c.opened.Store(0)
	}
	// A few resources change meanwhile: the relay must send those, and no others.
	g := b.world.aim(len(b.clients), b.world.changes.Load()+restartChanges, time.Now())
	for range restartChanges {
		b.world.change(b.world.pick())
	}
	if err := b.launch(); err != nil {
		return err
	}
	if _, err := b.wait(g); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		waiting := 0
		for _, c := range b.clients {
			if c.opened.Load() == 0 {
				waiting++
			}
		}
		if waiting == 0 {
			break
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("%d clients were not answered after %v", waiting, patience), b.process.alive())
		}
	}
	b.result.Restarted, b.result.ResumeMS = true, ms(time.Since(b.process.began))
	time.Sleep(time.Second) // for what should not come
	after, _ := b.received()
	b.result.ResumeBytes = after - bytes
	return nil
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
