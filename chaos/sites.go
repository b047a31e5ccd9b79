package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
)

const (
	siteRelays  = 3
	siteClients = 50
	// clockAhead are the seconds by which the clocks of the relays are ahead, one after the other. The last is that of
	// another site.
	clockAhead1, clockAhead2, clockAheadOther = 300, 150, 600
	// quietAgrees is how long after a quiet moment replicas agree, and adminPoll how old what they tell of it may be (S3).
	quietAgrees, adminPoll = 5 * time.Second, 5 * time.Second
	// handover is how long a sink needs until another process writes, after the writer was killed or had no contact.
	handover = 19 * time.Second
	// foreignKeys are objects of somebody else that have the names of resources: they are there first.
	foreignKeys = 6
	// otherSite is the provenance of a relay of another site.
	otherSite = "other-site"
	// pruned is how many resources a source deletes at once.
	pruned = 15
)

// sitesScenario has a cluster that relays write into.
func sitesScenario() scenario {
	return scenario{
		name: "sites", about: "three relays that agree and write into a cluster, whose API server and etcd pause and die, while persons give orders and promote",
		// A sink deletes when nothing was gone for 2 s: more changes would hold that up.
		sources: []string{"east", "west"}, keys: 200, most: 2, relays: siteRelays, state: true, rate: 4, round: 14 * time.Second, faultsPerRound: 9,
		faults: []string{
			"api-pause", "api-kill", "api-slow", "api-cut", "etcd-pause", "etcd-kill", "kill", "kill", "kill-disk", "prune", "prune", "empty", "half", "gone", "wipe", "other",
			"edit", "edit", "edit", "delete", "strip", "replace",
		},
		orders:   []string{"freeze", "freeze", "unfreeze", "unfreeze", "release", "release", "rollback", "burst", "burst", "sink release"},
		promotes: 60, losses: []string{"restore", "lease"},
	}
}

// siteFault is what happens at a time of a round. kind is a fault, an order of a person, change or promote.
type siteFault struct {
	at, lasts time.Duration
	kind      string
	dice      [4]int
	ends      bool
}

// ordersPerRound is how many orders of persons a round has, if there are any.
const ordersPerRound = 10

// sitesProof is short, and has one round with the faults and orders that one broken relay does not stand.
func sitesProof(promotes int, faults, orders []string, losses ...string) scenario {
	sc := sitesScenario()
	sc.promotes, sc.losses, sc.faults, sc.orders, sc.rate = promotes, losses, faults, orders, 1
	if promotes > 0 || len(losses) > 0 {
		sc.rate = 15 // so that there is something to write
	}
	if len(faults) == 0 {
		sc.faultsPerRound = 0
	}
	return sc
}

// siteRound returns what happens in a round, by time. It depends on the dice alone.
func siteRound(r *rand.Rand, sc scenario) (out []siteFault) {
	busy := map[string]time.Duration{}
	add := func(kind string, least, most time.Duration) *siteFault {
		f := siteFault{kind: kind, lasts: least + time.Duration(r.Int64N(int64(most-least)+1))}
		for i := range f.dice {
			f.dice[i] = r.IntN(1 << 20)
		}
		f.at = time.Duration(r.Int64N(int64(sc.round - f.lasts)))
		out = append(out, f)
		return &out[len(out)-1]
	}
	for range sc.faultsPerRound {
		kind := sc.faults[r.IntN(len(sc.faults))]
		least, most := 300*time.Millisecond, 4*time.Second
		target, _, _ := strings.Cut(kind, "-")
		switch kind {
		case "empty", "half", "gone":
			least, most, target = 2*time.Second, 7*time.Second, "upstreams"
		case "wipe":
			least, most, target = 10*time.Second, 12*time.Second, "upstreams"
		case "other":
			least, most = 5*time.Second, 10*time.Second
		}
		f := add(kind, least, most)
		if f.at = max(f.at, busy[target]); f.at+f.lasts > sc.round {
			out = out[:len(out)-1]
			continue
		}
		busy[target] = f.at + f.lasts + settleTime
		end := *f
		end.at, end.ends = f.at+f.lasts, true
		out = append(out, end)
	}
	for range min(ordersPerRound, ordersPerRound*len(sc.orders)) {
		add(sc.orders[r.IntN(len(sc.orders))], 0, 0)
	}
	for range int(float64(sc.rate) * sc.round.Seconds()) {
		add("change", 0, 0)
	}
	if r.IntN(100) < sc.promotes {
		add("promote", 0, 0).at = time.Duration(r.Int64N(int64(2 * time.Second)))
	} else if len(sc.losses) > 0 {
		add(sc.losses[r.IntN(len(sc.losses))], 0, 0).at = time.Duration(r.Int64N(int64(2 * time.Second)))
	}
	slices.SortStableFunc(out, func(a, b siteFault) int { return int(a.at - b.at) })
	return out
}

// sites is everything that the scenario runs with.
type sites struct {
	scenario scenario
	world    *world
	history  *siteHistory
	journal  *journal
	plan     *schedule
	proxies  *toxiproxy.ApiServer
	cluster  *site
	dir      string
	binary   string

	upstreams []*upstream
	relays    []*relay // the last is that of another site
	links     []*link  // from each relay to the API server
	clients   []*siteClient

	ctx       context.Context
	stop      context.CancelCauseFunc
	running   sync.WaitGroup
	passing   sync.WaitGroup // of a round
	responses atomic.Int64
	numbers   atomic.Int64 // of orders, and of changes of objects

	storing  sync.Mutex   // is held while etcd and the API server are ended or started
	relaying sync.Mutex   // is held while relays are ended or started; guards down and kills
	down     map[int]bool // by relay
	kills    int

	mu      sync.Mutex        // guards all below
	acked   map[string]string // what was acknowledged, by reason
	lacking map[int]*lack     // by source
}

// newSites makes everything, with nothing running.
func newSites(ctx context.Context, sc scenario, seed uint64, binary, dir string, j *journal) (s *sites, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	s = &sites{scenario: sc, journal: j, proxies: newProxies(), binary: binary, dir: dir, ctx: ctx, stop: stop, acked: map[string]string{}, down: map[int]bool{}, lacking: map[int]*lack{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	s.world = newWorld(sc.sources, sc.keys, sc.most, j)
	s.history = newSiteHistory(s.world)
	s.plan = newSchedule(seed, sc, len(sc.sources), s.world.holders)
	if s.cluster, err = newSite(dir); err != nil {
		return nil, err
	}
	for n, source := range s.world.sources {
		s.upstreams = append(s.upstreams, newUpstream(source.name, source, n%2 == 1, freePort()))
	}
	for n, ahead := range []int{0, clockAhead1, clockAhead2, clockAheadOther} {
		r, err := newRelay(fmt.Sprintf("relay-%d", n+1), binary, dir)
		if err != nil {
			return nil, err
		}
		r.env = []string{fmt.Sprintf("CHAOS_CLOCK=%d", ahead)}
		l, err := newLink(s.proxies, "link of "+r.name+" to the API server", freePort(), s.cluster.address)
		if err != nil {
			return nil, err
		}
		s.relays, s.links = append(s.relays, r), append(s.links, l)
		kubeconfig := filepath.Join(r.dir, "kubeconfig")
		replicas, provenance := "", otherSite
		if n < siteRelays {
			provenance = "relay"
			replicas = fmt.Sprintf("replicas: {cluster: {kubeconfig: %q}}\n", kubeconfig)
		}
		var upstreams strings.Builder
		for _, u := range s.upstreams {
			fmt.Fprintf(&upstreams, "- {name: %s, xds: {addresses: [%q], plaintext: true}, firstSync: optional, guard: {percent: 50, count: 30, holdFor: forever}}\n", u.name, u.address)
		}
		err = errors.Join(s.cluster.writeKubeconfig(kubeconfig, l.proxy.Listen), r.writeConfig(fmt.Sprintf(`node: {id: %s}
provenance: {relay: %s}
log: {level: debug}
admin: {address: %q}
state: {dir: %s}
downstream: {startupTimeout: 3s, listeners: [{address: %q, plaintext: true}]}
upstreams:
%sviews: [{name: all, default: true}]
sinks:
- name: %s
  view: all
  cluster: {kubeconfig: %q}
  mode: apply
  prune: true
  conflicts: take
  createNamespaces: true
  writesPerSecond: 60
  guard: {percent: 100}
%s`, r.name, provenance, r.admin, r.stateDir(), r.address, upstreams.String(), sinkName, kubeconfig, replicas)))
		if err != nil {
			return nil, err
		}
	}
	for n := range siteClients {
		s.clients = append(s.clients, newSiteClient(fmt.Sprintf("client-%d", n), s.relays[n%siteRelays].address, s.world, &s.responses, func(v *violation) { s.stop(v) }))
	}
	return s, s.cluster.writeKubeconfig(filepath.Join(dir, "person.kubeconfig"), s.cluster.address)
}

func (s *sites) close() {
	s.stop(nil)
	for _, r := range s.relays {
		if err := r.signal(syscall.SIGKILL, true); err != nil {
			s.journal.say("%v", err)
		}
	}
	if s.cluster != nil {
		s.cluster.close()
	}
	s.passing.Wait()
	s.running.Wait()
	for _, u := range s.upstreams {
		u.stop()
	}
	for _, l := range s.links {
		l.close()
	}
	for _, r := range s.relays {
		r.log.close()
	}
}

// runSites plays rounds of the scenario for a while, at least one.
func runSites(ctx context.Context, sc scenario, seed uint64, lasts time.Duration, binary, dir string, j *journal) (res result, err error) {
	res.scenario = sc.name
	began := time.Now()
	s, err := newSites(ctx, sc, seed, binary, filepath.Join(dir, sc.name), j)
	if err != nil {
		return res, err
	}
	defer func() {
		s.close()
		res.changes, res.responses, res.kills = s.world.changes, s.responses.Load(), s.kills
	}()
	h := fnv.New64a()
	h.Write([]byte(sc.name)) // which never fails
	dice := rand.New(rand.NewPCG(seed, h.Sum64()+1))
	j.say("scenario %s: %s", sc.name, sc.about)
	if err := s.start(); err != nil {
		return res, err
	}
	for longest := time.Duration(0); res.rounds == 0 || time.Since(began)+longest < lasts; {
		res.rounds++
		round := time.Now()
		j.say("scenario %s, round %d", sc.name, res.rounds)
		steps := siteRound(dice, sc)
		if err := s.play(steps); err != nil {
			return res, err
		}
		took, err := s.settle()
		if i := slices.IndexFunc(steps, func(f siteFault) bool { return slices.Contains(sc.losses, f.kind) }); err == nil && i >= 0 {
			err = s.lose(steps[i])
		}
		if err != nil {
			return res, err
		}
		res.longest, longest = max(res.longest, took), max(longest, time.Since(round))
	}
	j.say("the sink has written %d and deleted %d objects", s.history.written, s.history.deleted)
	return res, nil
}

// start runs everything, and returns when the cluster has what the view shows.
func (s *sites) start() error {
	if err := s.cluster.start(s.ctx); err != nil {
		return err
	}
	s.running.Go(func() { s.history.follow(s.ctx, s.cluster.etcdURL, func(v *violation) { s.stop(v) }) })
	for _, c := range s.plan.first() {
		if err := s.world.put(c.source, c.key); err != nil {
			return err
		}
	}
	for key := range foreignKeys {
		if err := s.foreign(key); err != nil {
			return err
		}
	}
	for _, u := range s.upstreams {
		if err := u.start(); err != nil {
			return err
		}
	}
	for _, r := range s.relays[:siteRelays] {
		if err := r.start(); err != nil {
			return err
		}
		s.running.Go(func() { s.watch(r) })
	}
	for _, c := range s.clients {
		s.running.Go(func() { c.run(s.ctx) })
	}
	_, err := s.converge("the start", patience, s.scenario.within(handover))
	return err
}

// watch looks whether a relay runs.
func (s *sites) watch(r *relay) {
	ticker := time.NewTicker(samplePause)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		if r.died() {
			s.stop(&violation{alive, r.name, -1, "the process has ended by itself; the end of its log:\n" + r.log.last()})
			return
		}
	}
}

// play does the steps of a round at their times.
func (s *sites) play(steps []siteFault) error {
	began := time.Now()
	for _, f := range steps {
		if err := sleep(s.ctx, time.Until(began.Add(f.at))); err != nil {
			return err
		}
		if err := s.do(f); err != nil {
			return fmt.Errorf("at %v of the round, %s: %w", f.at, f.kind, err)
		}
	}
	return sleep(s.ctx, time.Until(began.Add(s.scenario.round)))
}

// settle ends all faults and looks at what must be so then. It returns how long the cluster took to have what the view
// shows.
func (s *sites) settle() (time.Duration, error) {
	if err := s.heal(); err != nil {
		return 0, err
	}
	s.passing.Wait() // orders, the promotion, and who deletes
	if err := cause(s.ctx, nil); err != nil {
		return 0, err
	}
	s.journal.say("all faults have ended")
	if err := s.agree(); err != nil {
		return 0, err
	}
	if err := s.unfreezeAll(); err != nil {
		return 0, err
	}
	took, err := s.converge("the last fault", s.scenario.within(convergence), s.scenario.within(handover))
	if err != nil {
		return took, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	for reason, what := range s.acked {
		if !s.history.seen[reason] {
			return took, &violation{forgotten, "the orders", -1, fmt.Sprintf("they have never had the order %s (%s), which was acknowledged", what, reason)}
		}
	}
	return took, nil
}
