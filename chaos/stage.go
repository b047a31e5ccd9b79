package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

const (
	// convergence is how long after the last fault every client holds what it is to hold (I2).
	convergence = 10 * time.Second
	// promptness is how long after a change at rest every client has it: the 1 s that
	// it waits at most, and 2 s for the machine.
	promptness = 3 * time.Second
	// patience bounds the time in which a stage must become ready, before any fault.
	patience = 2 * time.Minute
	// flushed is how long after a change it is on disk: a second, and another
	// for the disk.
	flushed = 2 * time.Second
	// diskPatience is how long a relay may take to try a disk again that was full.
	diskPatience = 35 * time.Second
	// stalled is how many clients stop reading at once.
	stalled = 10
	// stormParallel is how many clients of a storm connect at the same time, usually.
	stormParallel = 50
	// stormPatience is how long a client of a storm waits for its answers.
	stormPatience = 20 * time.Second
	// samplePause is how often relays are asked what they use, and podLooks how often clients what they see of Services.
	samplePause = time.Second
	podLooks    = 20 * time.Millisecond
)

// stage is everything that a scenario runs with. What belongs to it is made by newStage and
// ended by close.
type stage struct {
	scenario scenario
	dir      string
	world    *world
	journal  *journal
	reader   *reader
	proxies  *toxiproxy.ApiServer

	upstreams []*upstream // by link, as far as those lead to upstreams
	clusters  []*cluster  // likewise; a scenario has either
	files     *directory
	links     []*link
	relays    []*relay
	clients   []*client
	// witnesses are, by relay, the clients that are connected to it without a link.
	witnesses [][]*client

	ctx       context.Context // ends with the stage, or with the first violation
	stop      context.CancelCauseFunc
	running   sync.WaitGroup // clients, and what looks on
	passing   sync.WaitGroup // storms, and clients that stall
	responses atomic.Int64
	stormed   atomic.Int64 // clients of storms that were served
	turned    atomic.Int64 // and that were not

	// kills to corrupted belong to the goroutine that does the faults.
	kills               int
	diskFull, diskEnded map[int]time.Time // by relay
	corrupted           map[int]int
	longest             time.Duration // that clients took to converge

	mu   sync.Mutex // guards all below
	peak []sample   // by relay
}

// newStage makes a stage in a directory, with nothing running.
func newStage(ctx context.Context, sc scenario, binary, dir string, j *journal) (*stage, error) {
	ctx, stop := context.WithCancelCause(ctx)
	st := &stage{
		scenario: sc, dir: dir, journal: j, proxies: newProxies(), ctx: ctx, stop: stop,
		diskFull: map[int]time.Time{}, diskEnded: map[int]time.Time{}, corrupted: map[int]int{},
		peak: make([]sample, sc.relays), witnesses: make([][]*client, sc.relays),
	}
	var err error
	st.world = newWorld(sc.sources, sc.keys, cmp.Or(sc.most, 2), j)
	st.reader = &reader{world: st.world}
	// Files of an earlier run would be part of this one.
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	if sc.pods > 0 {
		st.world.pods = newPodWorld(sc.sources[:sc.clusters])
		st.world.pods.within = sc.within(promptness)
	}
	var configs []upstreamConfig
	for n, s := range st.world.sources {
		if s.name == localSource {
			if st.files, err = newDirectory(s, dir); err != nil {
				return nil, err
			}
			configs = append(configs, upstreamConfig{name: s.name, path: st.files.path})
			continue
		}
		if n < sc.clusters {
			path, err := st.addCluster(s)
			if err != nil {
				return nil, st.abandon(err)
			}
			configs = append(configs, upstreamConfig{name: s.name, kubeconfig: path, discovers: sc.pods > 0})
			continue
		}
		c := upstreamConfig{name: s.name, partial: sc.silent && n > 0}
		replicas := 1
		if sc.replicas && n == 0 {
			replicas = 2
		}
		for i := range replicas {
			name := s.name
			if i > 0 {
				name += "-2"
			}
			u := newUpstream(name, s, n%2 == 1, freePort())
			l, err := newLink(st.proxies, "link to "+name, freePort(), u.address)
			if err != nil {
				return nil, st.abandon(err)
			}
			st.upstreams, st.links = append(st.upstreams, u), append(st.links, l)
			c.addresses = append(c.addresses, l.proxy.Listen)
		}
		configs = append(configs, c)
	}
	for n := range sc.relays {
		r, err := newRelay(fmt.Sprintf("relay-%d", n+1), binary, dir)
		if err != nil {
			return nil, st.abandon(err)
		}
		r.state, r.past, r.guard, r.staleness, r.upstreams = sc.state, sc.past, sc.guard, sc.staleness, configs
		if n > 0 {
			// It mirrors the one before.
			l, err := newLink(st.proxies, "link between the relays", freePort(), st.relays[n-1].address)
			if err != nil {
				return nil, st.abandon(err)
			}
			st.links = append(st.links, l)
			r.upstreams = []upstreamConfig{{name: st.relays[n-1].name, addresses: []string{l.proxy.Listen}}}
		}
		if err := r.configure(nil); err != nil {
			return nil, st.abandon(err)
		}
		st.relays = append(st.relays, r)
		st.addClients(n)
	}
	for _, delta := range []bool{false, true} {
		last := len(st.relays) - 1
		c := st.newClient(fmt.Sprintf("far-%s", protocolOf(delta)), last, delta)
		l, err := newLink(st.proxies, "link of "+c.name, freePort(), c.address)
		if err != nil {
			return nil, st.abandon(err)
		}
		c.address = l.proxy.Listen
		st.links, st.clients = append(st.links, l), append(st.clients, c)
	}
	return st, nil
}

// addCluster adds the API server of a source, and returns the path of its kubeconfig.
func (st *stage) addCluster(s *source) (kubeconfig string, err error) {
	c, err := newCluster(s.name, s, freePort(), st.dir)
	if err != nil {
		return "", err
	}
	l, err := newLink(st.proxies, "link to "+s.name, freePort(), c.address)
	if err != nil {
		return "", err
	}
	st.clusters, st.links = append(st.clusters, c), append(st.links, l)
	c.front = l.proxy.Listen
	c.renew()
	return c.kubeconfig, c.writeKubeconfig()
}

// abandon closes what has been made of a stage, and returns err.
func (st *stage) abandon(err error) error {
	st.close()
	return err
}

func protocolOf(delta bool) string {
	if delta {
		return "delta"
	}
	return "sotw"
}

func (st *stage) newClient(name string, relay int, delta bool) *client {
	version := len(st.clients) // the oldest spelling, the second-oldest, …
	return newClient(name, st.relays[relay].address, delta, version%3, st.world, st.reader, &st.responses, func(v *violation) { st.stop(v) })
}

func (st *stage) addClients(relay int) {
	for _, delta := range []bool{false, true} {
		c := st.newClient(fmt.Sprintf("near-%s-%d", protocolOf(delta), relay+1), relay, delta)
		st.clients = append(st.clients, c)
		st.witnesses[relay] = append(st.witnesses[relay], c)
	}
}

// replicas are the upstreams of the first source.
func (st *stage) replicas() []*upstream { return st.upstreams[:2] }

// start runs everything, and returns when all clients hold what they are to hold.
func (st *stage) start(first []change) error {
	for _, c := range first {
		if err := st.change(c); err != nil {
			return err
		}
	}
	for _, u := range st.upstreams {
		if err := u.start(); err != nil {
			return err
		}
	}
	for _, c := range st.clusters {
		if err := c.start(); err != nil {
			return err
		}
	}
	for n, r := range st.relays {
		if err := r.start(); err != nil {
			return err
		}
		st.running.Go(func() { st.watch(n) })
	}
	for _, c := range st.clients {
		st.running.Go(func() { c.run(st.ctx) })
	}
	if st.world.pods != nil {
		st.running.Go(st.lookAtPods)
	}
	if st.scenario.silent {
		if err := sleep(st.ctx, firstSilence); err != nil {
			return err
		}
		st.speak()
	}
	return st.settle("the start", patience)
}

// close ends everything.
func (st *stage) close() {
	st.stop(nil)
	for _, r := range st.relays {
		if err := r.signal(syscall.SIGKILL, true); err != nil {
			st.journal.say("%v", err)
		}
	}
	st.passing.Wait()
	st.running.Wait()
	for _, u := range st.upstreams {
		u.stop()
	}
	for _, c := range st.clusters {
		c.stop()
	}
	for _, l := range st.links {
		l.close()
	}
	for _, r := range st.relays {
		r.log.close()
	}
}

// watch looks at what a relay uses, and whether it runs.
func (st *stage) watch(n int) {
	r := st.relays[n]
	st.every(samplePause, func() *violation {
		if r.died() {
			return &violation{alive, r.name, -1, "the process has ended by itself; the end of its log:\n" + r.log.last()}
		}
		s, err := r.sample(st.ctx, false)
		if err != nil {
			return nil // it may be down
		}
		st.mu.Lock()
		defer st.mu.Unlock()
		p := &st.peak[n]
		p.goroutines, p.fds, p.rss = max(p.goroutines, s.goroutines), max(p.fds, s.fds), max(p.rss, s.rss)
		return nil
	})
}

// every looks again and again, until the stage ends or look finds a violation, which ends it.
func (st *stage) every(pause time.Duration, look func() *violation) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-st.ctx.Done():
			return
		case <-ticker.C:
		}
		if bad := look(); bad != nil {
			st.stop(bad)
			return
		}
	}
}

// change changes the world.
func (st *stage) change(c change) error {
	if c.deletes {
		st.world.remove(c.source, c.key, 0)
	} else if err := st.world.put(c.source, c.key); err != nil {
		return err
	}
	if c.source < len(st.clusters) {
		return st.clusters[c.source].follow(c.key)
	}
	if st.files != nil && st.files.source.number == c.source {
		return st.files.follow(c.key)
	}
	return nil
}

// play does the steps of a round at their times.
func (st *stage) play(steps []step, length time.Duration) error {
	began := time.Now()
	late := time.NewTimer(0)
	defer late.Stop()
	wait := func(until time.Duration) error {
		late.Reset(time.Until(began.Add(until)))
		select {
		case <-late.C:
			return nil
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		}
	}
	for _, s := range steps {
		if err := wait(s.at); err != nil {
			return err
		}
		var err error
		switch {
		case s.change != nil:
			err = st.change(*s.change)
		case s.pod != nil:
			st.world.pods.change(*s.pod)
		case s.ends:
			err = faultKinds[s.fault.kind].end(st, s.fault)
			st.trouble(s.fault, false)
		default:
			st.trouble(s.fault, true)
			err = faultKinds[s.fault.kind].begin(st, s.fault)
		}
		if err != nil {
			return fmt.Errorf("at %v of the round: %w", s.at, err)
		}
	}
	return wait(length)
}

// trouble notes that a fault begins on API servers, or ends: what is on the way to the clients counts as well.
func (st *stage) trouble(f *fault, begins bool) {
	if st.world.pods == nil {
		return
	}
	var sources []int
	claims := faultKinds[f.kind].claims(st.scenario, f.target)
	for n := range st.clusters {
		if slices.ContainsFunc([]string{upstreamOf(n), linkOf(n), relayOf(0), everything}, func(c string) bool { return slices.Contains(claims, c) }) {
			sources = append(sources, n)
		}
	}
	st.world.pods.trouble(sources, begins)
}

// lookAtPods compares what the clients without a link see of Services with the truth, until the stage ends.
func (st *stage) lookAtPods() {
	st.every(podLooks, func() *violation {
		views := map[string]podView{}
		for _, c := range st.witnesses[0] {
			views[c.name] = c.podView()
		}
		return st.world.pods.look(views)
	})
}

// probe makes one change while nothing else happens, which no client may see late.
func (st *stage) probe(plan *schedule) error {
	var c change
	plan.decide(&c, nil)
	if err := st.change(c); err != nil {
		return err
	}
	return st.settle(fmt.Sprintf("a change of %s at rest", describe(c.key)), st.scenario.within(promptness))
}

// settle waits until every client holds exactly the merge of the sources (I2), and for no longer
// than within after an event.
func (st *stage) settle(after string, within time.Duration) error {
	began := time.Now()
	st.passing.Wait() // storms have a bound of their own
	expected := st.world.expected()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		var bad *violation
		for _, c := range st.clients {
			if bad = c.check(expected); bad == nil {
				bad = st.world.pods.check(c.name, c.podView())
			}
			if bad != nil {
				break
			}
		}
		took := time.Since(began)
		switch {
		case bad == nil:
			st.longest = max(st.longest, took)
			st.world.settled()
			return nil
		case took > within:
			bad.text = fmt.Sprintf("%v after %s %s", took.Round(time.Millisecond), after, bad.text)
			return bad
		}
		select {
		case <-ticker.C:
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		}
	}
}

// allowance is how much longer than others the faults of a round may be felt.
func allowance(steps []step) (longest time.Duration) {
	for _, s := range steps {
		if s.fault != nil {
			longest = max(longest, faultKinds[s.fault.kind].allowance)
		}
	}
	return longest
}

// diskIsFull notes that the disk of a relay is full from now on. The relay may not have tried to
// write since the disk was full before.
func (st *stage) diskIsFull(relay int, now time.Time) {
	if !st.diskIsBad(relay, now) {
		st.diskFull[relay] = now
	}
}

// diskIsBad reports whether a relay's disk is full, or was, and has perhaps not been tried
// since.
func (st *stage) diskIsBad(relay int, now time.Time) bool {
	full, ended := st.diskFull[relay], st.diskEnded[relay]
	return !full.IsZero() && (ended.Before(full) || now.Sub(ended) < diskPatience)
}

// mayForget notes that a relay is killed now, and may lose what it learnt since its last flush.
func (st *stage) mayForget(relay int, now time.Time) {
	since := now.Add(-flushed)
	if st.diskIsBad(relay, now) {
		since = st.diskFull[relay].Add(-flushed)
	}
	var views []*view
	for _, c := range st.witnesses[relay] {
		c.mu.Lock()
		defer c.mu.Unlock()
		views = append(views, c.view)
	}
	st.world.retell(views, since)
}

// reload writes a config and has a relay read it.
func (st *stage) reload(r *relay, order []int) error {
	if err := r.configure(order); err != nil {
		return err
	}
	return r.signal(syscall.SIGHUP, false)
}

// storm connects many clients to a relay at once. Each has seen what a witness has, and
// leaves when it was answered. It returns at once.
func (st *stage) storm(relay, size int) {
	slots := make(chan struct{}, cmp.Or(st.scenario.atOnce, stormParallel))
	for n := range size {
		st.passing.Go(func() {
			select {
			case slots <- struct{}{}:
			case <-st.ctx.Done():
				return
			}
			defer func() { <-slots }()
			st.visit(relay, n)
		})
	}
}

// visit is one client of a storm.
func (st *stage) visit(relay, n int) {
	witness := st.witnesses[relay][0]
	c := newClient(fmt.Sprintf("storm-%d", n), st.relays[relay].address, n%2 == 1, n%3, st.world, st.reader, &st.responses, func(v *violation) { st.stop(v) })
	witness.mu.Lock()
	c.view = witness.view.clone(c.name)
	witness.mu.Unlock()
	ctx, cancel := context.WithTimeout(st.ctx, stormPatience)
	defer cancel()
	if err := c.stream(ctx, func(answered int) bool { return answered == len(kinds) }); err != nil {
		st.turned.Add(1)
		return
	}
	st.stormed.Add(1)
}

// stall connects clients that read nothing for a while. It returns at once.
func (st *stage) stall(relay int, lasts time.Duration) {
	for n := range stalled {
		st.passing.Go(func() {
			ctx, cancel := context.WithTimeout(st.ctx, lasts)
			defer cancel()
			if err := leaveUnread(ctx, st.relays[relay].address, fmt.Sprintf("stalled-%d", n)); err != nil && !errors.Is(err, io.EOF) {
				st.turned.Add(1)
			}
		})
	}
}

// leaveUnread asks for everything in every version and reads none of it until ctx ends.
func leaveUnread(ctx context.Context, address, name string) error {
	conn, err := dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	for i, k := range kinds {
		for j, version := range k.versions {
			req := &discoveryv3.DiscoveryRequest{TypeUrl: k.typeURL(version)}
			if i+j == 0 {
				req.Node = clientNode(name)
			}
			if err := stream.Send(req); err != nil {
				return err
			}
		}
	}
	<-ctx.Done()
	return nil
}

// setAside returns the state files that a relay has found to be corrupt.
func (st *stage) setAside(relay int) ([]string, error) {
	return filepath.Glob(filepath.Join(st.relays[relay].stateDir(), "*.corrupt*"))
}
