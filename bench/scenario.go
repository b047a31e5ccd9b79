package main

import (
	"cmp"
	"slices"
	"time"
)

// scenario is one load.
type scenario struct {
	Name      string `json:"name"`
	Configs   int    `json:"configs"`
	Upstreams int    `json:"upstreams"`
	Clients   int    `json:"clients"`
	// Delta is the protocol of the clients and, for the contenders that can, of the
	// upstreams, which then stand for relays.
	Delta bool `json:"delta"`
	// SotWUpstreams makes the upstreams of a delta scenario istiods to every contender but the
	// floor, which can not make deltas of full states.
	SotWUpstreams bool `json:"sotwUpstreams,omitempty"`
	// Elsewhere has each client name a cluster that is no upstream's: what it is sent can not come
	// back to the relay.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Changes is how many single changes are timed; of slow contenders fewer.
	Changes int `json:"changes"`
	// Burst is how many changes are made within a second, after those.
	Burst int `json:"burst"`
	// Restart restarts the contender in the end, and lets delta clients resume.
	Restart bool `json:"restart,omitempty"`
	// Stall, when not zero, is for how long some clients stop reading while Rate changes a
	// second go on; the changes are timed before and during that.
	Stall time.Duration `json:"stall,omitempty"`
	Rate  int           `json:"rate,omitempty"`
	// Gaps, when there are any, are the pauses between the changes of steady rates, which last for
	// Lasting each. Slow contenders are spared them.
	Gaps    []time.Duration `json:"gaps,omitempty"`
	Lasting time.Duration   `json:"lasting,omitempty"`
	// Instances, when not zero, makes each resource a service of a registry with that many. Together is how
	// many changes are made at once in place of one.
	Instances int `json:"instances,omitempty"`
	Together  int `json:"together,omitempty"`
	// Settle lets memory settle before steady rates begin; its peak is taken then, too.
	Settle bool `json:"settle,omitempty"`
	// Rest, when not zero, is how long the contender is left alone before the single changes, and before
	// its memory counts as settled, in place of what is usual: tests need not wait for that.
	Rest time.Duration `json:"rest,omitempty"`
	// Starts, when not zero, is how often the contender is started from what it has on disk, with all
	// upstreams down.
	Starts int `json:"starts,omitempty"`
	// Federated gives two upstreams a copy of most resources.
	Federated bool `json:"federated,omitempty"`
	// Kubernetes has one API server in place of the upstreams. Rate is that of writes of statuses, for
	// Lasting, and Relist has everything listed once more.
	Kubernetes bool `json:"kubernetes,omitempty"`
	Relist     bool `json:"relist,omitempty"`
	// Pods, when not zero, has an API server with Services in place of ServiceEntries, of so many pods each. Changes
	// are those of pods, and statuses those of pods that change nothing else.
	Pods int `json:"pods,omitempty"`
	// Sink has a cluster into which everything is written.
	Sink bool `json:"sink,omitempty"`
	// Only names the contenders that it is for; none means all.
	Only []string `json:"only,omitempty"`
	// Without has the reasons why contenders are left out, by name.
	Without map[string]string `json:"without,omitempty"`
}

// isFor reports whether a contender is run. With rules one is only where it is named: elsewhere
// there is nothing to unite.
func (s scenario) isFor(c contender) bool {
	switch {
	case len(s.Only) > 0:
		return slices.Contains(s.Only, c.name)
	case s.Without[c.name] != "":
		return false
	}
	if s.Kubernetes {
		return c.kubernetes && !c.omits || c.name == "relay" || c.name == "istiod"
	}
	return !c.rules && !c.kubernetes && !c.mute
}

// changesFor is how many single changes of a contender are timed.
func (s scenario) changesFor(c contender) int {
	if c.slow > 0 {
		return min(s.Changes, slowChanges)
	}
	return s.Changes
}

// What estimate reckons with, on two CPUs.
const (
	openAndClose = 2 * time.Second
	aResource    = 25 * time.Microsecond  // until it is made, received, served and checked
	aCopy        = 400 * time.Nanosecond  // of a resource, to one client
	aClient      = 800 * time.Microsecond // until it is connected
	aChange      = 50 * time.Microsecond  // to one client
	anObject     = 800 * time.Microsecond // until an API server has it, or has sent it
	aWrite       = 3 * time.Millisecond   // of an object into a cluster
	aPod         = 700 * time.Microsecond // until a contender has it
	// restartServer is an API server's.
	restartServer = 10 * time.Second
	// calmServer is how long it is left alone before each list.
	calmServer = 4 * time.Second
)

// calm returns how long a contender is left alone before the single changes: what it puts in order after
// a start is no part of a change. Where a change takes long, that does not count.
func (s scenario) calm(c contender) time.Duration {
	if c.slow > 0 {
		return 0
	}
	return cmp.Or(s.Rest, rest-time.Second) // a second has passed since the first sync
}

// lists returns how often the first list of an API server is taken. Its own collections fall on every other
// of 10,000 objects, on few of fewer, and many times on each of more.
func (s scenario) lists() int {
	if s.Configs == 10_000 {
		return 4
	}
	return 1
}

// estimate returns about how long one run of a contender takes.
func (s scenario) estimate(c contender) time.Duration {
	resources, clients := time.Duration(s.Configs), time.Duration(s.Clients)
	slow := resources * clients * c.slow
	change := clients*aChange + slow
	took := openAndClose + resources*aResource + resources*clients*aCopy + clients*aClient + slow
	if s.Kubernetes {
		took += resources*(anObject+time.Duration(s.Pods)*aPod) + time.Duration(s.lists()-1)*(openAndClose+calmServer+resources*anObject/4)
	}
	if s.Sink {
		took += resources * aWrite
	}
	if c.mute {
		return took // nobody can ask it for more
	}
	if s.Changes > 0 || s.Settle {
		singles := time.Duration(s.changesFor(c)) * (gap + change)
		calm := s.calm(c)
		took += calm + singles + cmp.Or(s.Rest, max(rest, age-calm-singles))
	}
	if s.Burst > 0 {
		took += time.Second + 5*change
	}
	if s.Restart && c.product {
		took += openAndClose + clients*aClient
	}
	took += time.Duration(s.Starts) * (openAndClose + resources*aResource/2)
	if s.Stall > 0 {
		took += 2*s.Stall + s.Stall/3
	}
	if s.Kubernetes {
		if c.slow == 0 && s.Rate > 0 {
			took += s.Lasting
		}
		if s.Relist {
			took += restartServer
		}
	}
	if c.slow == 0 {
		took += time.Duration(len(s.Gaps)) * (s.Lasting + cooldown)
	}
	return took
}

// Why contenders are left out. Each was seen by trying.
const (
	behindRates  = "one change costs it more CPU than there is until the next"
	notListening = "with 100,000 resources it does not listen within three minutes"
	largeCluster = "with 100,000 objects it takes ten GiB at its peak"
	manyClients  = "of 5,000 clients a tenth does not hold everything after three minutes"
)

// tooSlow leaves out the contenders that can not keep up with steady rates.
var tooSlow = map[string]string{"linear": behindRates, "istiod": behindRates}

// servicesScenario is the scenario with Services of an API server.
const servicesScenario = "services-5k-20"

// withAndWithout are the contenders of a federation.
var withAndWithout = []string{"relay", "relay-rules"}

// ciliumRate is the pause between the changes with which Cilium tests its cluster mesh.
const ciliumRate = time.Second / 325

func scenarios() []scenario {
	large := map[string]string{"istiod": notListening}
	return []scenario{
		{Name: "sotw-1k-20", Configs: 1000, Upstreams: 4, Clients: 20, Changes: 40, Burst: 2000},
		{Name: "sotw-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Changes: 40, Burst: 2000},
		{Name: "sotw-10k-20-elsewhere", Configs: 10_000, Upstreams: 4, Clients: 20, Elsewhere: true, Changes: 40, Burst: 2000, Only: []string{"floor", "relay"}},
		{Name: "sotw-10k-100", Configs: 10_000, Upstreams: 4, Clients: 100, Changes: 20, Burst: 2000},
		{Name: "delta-1k-20", Configs: 1000, Upstreams: 4, Clients: 20, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-10k-100", Configs: 10_000, Upstreams: 4, Clients: 100, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-10k-100-istiods", Configs: 10_000, Upstreams: 4, Clients: 100, Delta: true, SotWUpstreams: true, Changes: 40, Burst: 2000, Only: []string{"relay"}},
		{Name: "delta-100k-100", Configs: 100_000, Upstreams: 20, Clients: 100, Delta: true, Changes: 40, Burst: 2000, Without: large},
		{Name: "delta-1k-5000", Configs: 1000, Upstreams: 4, Clients: 5000, Delta: true, Changes: 20, Burst: 2000, Restart: true, Without: map[string]string{"istiod": manyClients}},
		{Name: "delta-1k-10000", Configs: 1000, Upstreams: 4, Clients: 10_000, Delta: true, Changes: 20, Burst: 500, Without: map[string]string{"istiod": manyClients}},
		{Name: "start-100k-4", Configs: 100_000, Upstreams: 4, Clients: 4, Delta: true, SotWUpstreams: true, Settle: true, Changes: 20, Lasting: 20 * time.Second, Gaps: []time.Duration{ciliumRate}, Without: large},
		{Name: "start-100k-250", Configs: 100_000, Upstreams: 250, Clients: 4, Delta: true, SotWUpstreams: true, Settle: true, Changes: 20, Lasting: 20 * time.Second, Gaps: []time.Duration{ciliumRate}, Without: large},
		{Name: "start-300k-250", Configs: 300_000, Upstreams: 250, Clients: 4, Delta: true, SotWUpstreams: true, Settle: true, Lasting: time.Minute, Gaps: []time.Duration{ciliumRate}, Without: large},
		{Name: "disk-300k-250", Configs: 300_000, Upstreams: 250, Clients: 1, Delta: true, Starts: 5, Only: []string{"relay"}},
		{Name: "stall-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Stall: 30 * time.Second, Rate: 1000, Only: []string{"relay"}},
		{Name: "rates-delta-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Lasting: 10 * time.Second, Gaps: []time.Duration{
			150 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond, 3 * time.Millisecond,
		}, Without: tooSlow},
		{Name: "rates-delta-10k-100", Configs: 10_000, Upstreams: 4, Clients: 100, Delta: true, Lasting: 10 * time.Second, Gaps: []time.Duration{time.Millisecond}, Without: tooSlow},
		{Name: "rates-sotw-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Lasting: 10 * time.Second, Gaps: []time.Duration{50 * time.Millisecond}, Without: tooSlow},
		{Name: "rates-delta-1k-5000", Configs: 1000, Upstreams: 4, Clients: 5000, Delta: true, Lasting: 10 * time.Second, Gaps: []time.Duration{time.Millisecond}, Without: tooSlow},
		{Name: "registry-2k-20", Configs: 2000, Upstreams: 1, Clients: 20, Delta: true, SotWUpstreams: true, Instances: 10, Together: 10, Lasting: 10 * time.Second, Gaps: []time.Duration{100 * time.Millisecond}, Only: []string{"relay"}},
		{Name: "kubernetes-1k-20", Kubernetes: true, Configs: 1000, Clients: 20, Delta: true, Changes: 40, Relist: true},
		{Name: "kubernetes-10k-20", Kubernetes: true, Configs: 10_000, Clients: 20, Delta: true, Changes: 200, Rate: 500, Lasting: time.Minute, Relist: true},
		{Name: "kubernetes-100k-4", Kubernetes: true, Configs: 100_000, Clients: 4, Delta: true, Changes: 40, Relist: true, Without: map[string]string{"istiod": largeCluster}},
		{Name: servicesScenario, Kubernetes: true, Pods: 10, Configs: 5000, Clients: 20, Delta: true, Settle: true, Lasting: 20 * time.Second, Gaps: []time.Duration{10 * time.Millisecond}, Rate: 500, Only: []string{"relay", "relay-omit", "watch"}},
		{Name: sinkScenario, Sink: true, Configs: 10_000, Upstreams: 4, Clients: 1, Delta: true, Changes: 100, Only: []string{"relay", "apply"}},
		{Name: "federation-10k-20-istiods", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, SotWUpstreams: true, Changes: 40, Burst: 2000, Federated: true, Only: withAndWithout},
		{Name: "federation-10k-20-relays", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Changes: 40, Burst: 2000, Federated: true, Only: withAndWithout},
	}
}
