package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// localSource is the source that is a directory of files.
const localSource = "local"

// scenario is a kind of trouble: what there is, and which faults happen to it.
type scenario struct {
	name, about string
	sources     []string // the first is like an istiod, the second like a relay
	clusters    int      // so many of the first are API servers
	pods        int      // changes of pods a second that these make, at random times; 0: they have no Services
	keys        int
	most        int  // sources that have the same key; 0: two
	relays      int  // two: the second mirrors the first
	state       bool // relays keep their state on disk
	past        int  // bytes of the past that they keep of each source; 0: what is usual
	replicas    bool // the first source has two servers
	silent      bool // servers are silent from the start, and all but the first are partial
	guard       string
	staleness   string

	rate           int   // changes a second, at random times
	rates          []int // steady ones, which share the round; instead of rate
	probes         int   // changes one by one after a round, each with a bound of its own
	round          time.Duration
	faultsPerRound int
	faults         []string // one that is named more often happens more often
	storm          int      // clients
	atOnce         int      // of those, that connect at the same time; 0: stormParallel

	orders   []string // of persons, of which each round has ordersPerRound; likewise
	promotes int      // of 100 rounds have a promotion
	losses   []string // of a site: each other round ends with one of them

	slow int // how many times longer than usual a busy machine may take; 0: once
}

// within returns how long something may take that usually takes no longer than a time.
func (sc scenario) within(usual time.Duration) time.Duration {
	return usual * time.Duration(max(1, sc.slow))
}

// links returns how many links there are, servers how many upstreams that are no files.
func (sc scenario) links() int { return sc.servers() + sc.relays - 1 + 2 }
func (sc scenario) servers() int {
	n := 0
	for _, s := range sc.sources {
		if s != localSource {
			n++
		}
	}
	if sc.replicas {
		n++
	}
	return n
}

var (
	threeSources = []string{"east", "west", localSource}
	onLinks      = []string{"latency", "slicer", "limit_data", "reset_peer", "timeout", "bandwidth", "cut"}
	hundred      = numbered("up", 100)
	onServers    = []string{"flap", "crash", "unavailable", "denied", "empty", "withhold", "lie", "lie", "lie"}
)

// scenarios are those that the suite consists of.
func scenarios() []scenario {
	usual := scenario{
		sources: threeSources, keys: 600, relays: 1,
		rate: 60, round: 10 * time.Second, faultsPerRound: 8, storm: 100,
	}
	with := func(name, about string, change func(sc *scenario)) scenario {
		sc := usual
		sc.name, sc.about = name, about
		change(&sc)
		return sc
	}
	return []scenario{
		with("links", "bad networks between a relay, its upstreams and its clients", func(sc *scenario) {
			sc.faults = onLinks
		}),
		with("upstreams", "upstreams that flap, lie, refuse, and restart empty", func(sc *scenario) {
			sc.faults = append([]string{"broken-file"}, onServers...)
		}),
		with("clients", "clients that come in storms, stop reading, and reject everything", func(sc *scenario) {
			sc.faults, sc.storm = []string{"storm", "storm", "stall", "nack"}, 150
		}),
		with("restarts", "a relay with its state on disk that is killed, ended, and has its disk full or its state spoilt", func(sc *scenario) {
			sc.state, sc.storm = true, 30
			sc.faults = []string{"kill", "kill", "kill-alone", "kill-alone", "terminate", "disk-full", "corrupt", "cut", "crash", "empty", "storm"}
		}),
		with("reload", "upstreams in another order, and config files that are broken", func(sc *scenario) {
			sc.faults, sc.storm = []string{"reorder", "reorder", "bad-config", "flap", "storm"}, 30
		}),
		with("failover", "an upstream with two servers, of which one may lag behind", func(sc *scenario) {
			sc.replicas = true
			sc.faults = []string{"lag", "lag", "cut", "crash", "crash", "flap", "unavailable", "denied", "withhold", "timeout", "lie"}
		}),
		with("guard", "upstreams that lose most of what they have, for good", func(sc *scenario) {
			sc.guard = fmt.Sprintf("holdFor: %v", guardHold)
			sc.faults, sc.storm, sc.faultsPerRound = []string{"mass-delete", "mass-delete", "storm"}, 30, 4
		}),
		with("stale", "resources that expire while their upstream is out of contact, and are lost there", func(sc *scenario) {
			sc.staleness = fmt.Sprintf("{staleAfter: 2s, expireAfter: %v}", expireAfter)
			sc.guard = "percent: 100"
			sc.faults, sc.storm, sc.faultsPerRound = []string{"expire", "expire", "storm", "nack"}, 30, 4
		}),
		with("chain", "two relays, one of which mirrors the other, and most of the above", func(sc *scenario) {
			sc.relays, sc.state, sc.faultsPerRound = 2, true, 12
			sc.faults = append(append([]string{"storm", "nack", "kill", "kill", "terminate", "disk-full"}, onLinks...), onServers...)
		}),
		with("kubernetes", "API servers that crash, come back empty or as others, refuse, hang, and send what can not be decoded", func(sc *scenario) {
			sc.clusters, sc.pods, sc.state, sc.storm, sc.faultsPerRound = 2, 8, true, 30, 10
			sc.faults = append([]string{"api-other", "api-empty", "kill", "storm", "cut", "timeout", "limit_data", "reset_peer"}, slices.Sorted(maps.Keys(clusterFaults()))...)
		}),
		with("pods", "pods that come and go in API servers, some of whose watches end", func(sc *scenario) {
			sc.clusters, sc.pods, sc.keys, sc.rate, sc.state, sc.storm, sc.faultsPerRound = 2, 12, 200, 20, true, 30, 4
			sc.faults = []string{"api-crash", "api-end", "api-empty", "cut", "kill", "storm"}
		}),
		with("silence", "upstreams that are silent about some types, at first, for a while, or as long as a stream lasts", func(sc *scenario) {
			sc.sources, sc.silent, sc.state, sc.round, sc.storm = []string{"east", "west", "north", localSource}, true, true, 24*time.Second, 30
			sc.guard = "percent: 100" // off: it would hide what goes by silence
			sc.faults = []string{"silence", "silence", "silence", "late", "late", "late", "kill", "kill", "cut", "storm"}
		}),
		with("rates", "upstreams that change 1, 10, 100 and 1,000 resources a second, and then rest", func(sc *scenario) {
			sc.state, sc.rates, sc.round, sc.probes, sc.storm = true, []int{1, 10, 100, 1000}, 16*time.Second, 5, 30
			sc.faults = []string{"cut", "cut", "flap", "crash", "stall", "bandwidth", "bandwidth", "kill", "storm"}
		}),
		with("many", "a hundred upstreams that have the same names, some of which die, come back empty, or leave the config and return", func(sc *scenario) {
			sc.sources, sc.keys, sc.most, sc.probes, sc.faultsPerRound, sc.storm = hundred, 800, 5, 5, 40, 30
			sc.faults = []string{"crash", "crash", "flap", "unavailable", "empty", "empty", "withhold", "cut", "lie", "leave", "leave", "outage", "storm"}
		}),
	}
}

// numbered returns so many names.
func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%02d", prefix, i))
	}
	return names
}

// proofScenario is short, and has something of each kind that breaks a relay which does not
// keep its promises.
func proofScenario() scenario {
	return scenario{
		name: "proof", about: "what a broken relay does not stand",
		sources: threeSources, keys: 400, relays: 1, rate: 100, round: 6 * time.Second, faultsPerRound: 8,
		faults: []string{"flap", "cut", "crash", "storm", "storm"}, storm: 40,
	}
}

// clusterProof is short, and has what an API server does that is not to be believed.
func clusterProof() scenario {
	return scenario{
		name: "cluster-proof", about: "what a relay does not stand that believes any API server",
		sources: threeSources, clusters: 2, keys: 400, relays: 1, rate: 60, round: 8 * time.Second, faultsPerRound: 6,
		faults: []string{"api-other", "api-empty", "api-spoil", "storm"}, storm: 20,
	}
}

// podsProof is short, and has pods that come and go while hardly anything else happens.
func podsProof() scenario {
	return scenario{
		name: "pods-proof", about: "what a relay does not stand that sends clients to pods that are gone",
		sources: threeSources, clusters: 2, pods: 30, keys: 100, relays: 1, rate: 10, round: 6 * time.Second, faultsPerRound: 4,
		faults: []string{"api-end", "storm", "storm"}, storm: 20,
	}
}

// hugeScenario has responses of 100 MB.
func hugeScenario() scenario {
	return scenario{
		name: "huge", about: "upstreams that send responses of 100 MB",
		sources: threeSources, keys: 600, relays: 1, rate: 1, round: 15 * time.Second, faultsPerRound: 3, faults: []string{"huge"},
	}
}

// stormScenario has storms of a thousand clients that connect at the same time.
func stormScenario() scenario {
	return scenario{
		name: "storms", about: "storms of 1,000 clients at once, while upstreams flap",
		sources: threeSources, keys: 600, relays: 1, rate: 20, round: 30 * time.Second, faultsPerRound: 6,
		faults: []string{"storm", "storm", "flap"}, storm: 1000, atOnce: 1000,
	}
}

// result is what a run of a scenario came to.
type result struct {
	scenario  string
	rounds    int
	changes   int
	responses int64
	kills     int
	storms    int64 // clients of storms that were served
	turned    int64 // and that were not
	longest   time.Duration
	peak      sample
	pods      int           // changes of pods
	unreached time.Duration // the longest that a client had other pods than an API server in contact
}

// run plays rounds of a scenario for a while, at least one.
func (sc scenario) run(ctx context.Context, seed uint64, lasts time.Duration, binary, dir string, j *journal) (res result, err error) {
	res.scenario = sc.name
	st, err := newStage(ctx, sc, binary, filepath.Join(dir, sc.name), j)
	if err != nil {
		return res, err
	}
	defer func() { st.close(); st.fill(&res) }()
	began := time.Now()
	plan := newSchedule(seed, sc, len(sc.sources), st.world.holders)
	j.say("scenario %s: %s", sc.name, sc.about)
	if sc.silent {
		st.beSilent(plan.rand.Uint64())
	}
	if err := st.start(plan.first()); err != nil {
		return res, err
	}
	if sc.state {
		if err := sleep(st.ctx, flushed); err != nil {
			return res, err
		}
	}
	before, err := st.usage()
	if err != nil {
		return res, err
	}
	for res.rounds == 0 || time.Since(began)+sc.round < lasts {
		res.rounds++
		steps := plan.round()
		j.say("scenario %s, round %d%s", sc.name, res.rounds, plan.pace())
		if err := st.play(steps, sc.round); err != nil {
			return res, err
		}
		if err := st.settle("the last fault", sc.within(convergence+allowance(steps))); err != nil {
			return res, err
		}
		for range sc.probes {
			if err := st.probe(plan); err != nil {
				return res, err
			}
		}
		for n := range st.relays {
			aside, err := st.setAside(n)
			if err != nil {
				return res, err
			}
			if len(aside) > st.corrupted[n] {
				return res, &violation{alive, st.relays[n].name, -1, fmt.Sprintf("it has set aside its state, which nobody has spoilt: %v", aside)}
			}
		}
	}
	return res, st.returns(before)
}

// fill fills in what a stage has counted. It is called when nothing runs any more.
func (st *stage) fill(res *result) {
	res.changes, res.responses, res.kills, res.longest = st.world.changes, st.responses.Load(), st.kills, st.longest
	if p := st.world.pods; p != nil {
		res.pods, res.unreached = p.changes, p.longest
	}
	res.storms, res.turned = st.stormed.Load(), st.turned.Load()
	for _, p := range st.peak {
		res.peak.goroutines, res.peak.fds = max(res.peak.goroutines, p.goroutines), max(res.peak.fds, p.fds)
		res.peak.rss = max(res.peak.rss, p.rss)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
