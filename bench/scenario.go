package main

import (
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
	// SotWUpstreams makes the upstreams of a delta scenario istiods to every contender.
	SotWUpstreams bool `json:"sotwUpstreams,omitempty"`
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
	// Lasting each.
	Gaps    []time.Duration `json:"gaps,omitempty"`
	Lasting time.Duration   `json:"lasting,omitempty"`
	// Starts, when not zero, is how often the contender is started from what it has on disk, with all
	// upstreams down.
	Starts int `json:"starts,omitempty"`
	// Federated gives two upstreams a copy of most resources.
	Federated bool `json:"federated,omitempty"`
	// Only names the contenders that it is for; none means all.
	Only []string `json:"only,omitempty"`
}

// isFor reports whether a contender is run. With rules one is only where it is named: elsewhere
// there is nothing to unite.
func (s scenario) isFor(c contender) bool {
	if len(s.Only) > 0 {
		return slices.Contains(s.Only, c.name)
	}
	return !c.rules
}

// besideFloor are the contenders of steady rates.
var besideFloor = []string{"floor", "relay"}

// withAndWithout are the contenders of a federation.
var withAndWithout = []string{"relay", "relay-rules"}

func scenarios() []scenario {
	return []scenario{
		{Name: "sotw-1k-20", Configs: 1000, Upstreams: 4, Clients: 20, Changes: 40, Burst: 2000},
		{Name: "sotw-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Changes: 40, Burst: 2000},
		{Name: "sotw-10k-100", Configs: 10_000, Upstreams: 4, Clients: 100, Changes: 20, Burst: 2000},
		{Name: "delta-1k-20", Configs: 1000, Upstreams: 4, Clients: 20, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-10k-100", Configs: 10_000, Upstreams: 4, Clients: 100, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-10k-100-istiods", Configs: 10_000, Upstreams: 4, Clients: 100, Delta: true, SotWUpstreams: true, Changes: 40, Burst: 2000, Only: []string{"relay"}},
		{Name: "delta-100k-4-istiods", Configs: 100_000, Upstreams: 4, Clients: 4, Delta: true, SotWUpstreams: true, Changes: 40, Burst: 2000, Only: []string{"relay"}},
		{Name: "delta-100k-100", Configs: 100_000, Upstreams: 20, Clients: 100, Delta: true, Changes: 40, Burst: 2000},
		{Name: "delta-1k-5000", Configs: 1000, Upstreams: 4, Clients: 5000, Delta: true, Changes: 20, Burst: 2000, Restart: true},
		{Name: "delta-1k-10000", Configs: 1000, Upstreams: 4, Clients: 10_000, Delta: true, Changes: 20, Burst: 500},
		{Name: "stall-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Stall: time.Minute, Rate: 1000, Only: []string{"relay"}},
		{Name: "rates-delta-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Lasting: 10 * time.Second, Gaps: []time.Duration{
			150 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond, 20 * time.Millisecond, 5 * time.Millisecond, 3 * time.Millisecond,
		}, Only: besideFloor},
		{Name: "rates-delta-10k-100", Configs: 10_000, Upstreams: 4, Clients: 100, Delta: true, Lasting: 10 * time.Second, Gaps: []time.Duration{time.Millisecond}, Only: besideFloor},
		{Name: "rates-sotw-10k-20", Configs: 10_000, Upstreams: 4, Clients: 20, Lasting: 10 * time.Second, Gaps: []time.Duration{50 * time.Millisecond}, Only: besideFloor},
		{Name: "rates-delta-1k-5000", Configs: 1000, Upstreams: 4, Clients: 5000, Delta: true, Lasting: 10 * time.Second, Gaps: []time.Duration{time.Millisecond}, Only: besideFloor},
		{Name: "disk-300k-250", Configs: 300_000, Upstreams: 250, Clients: 1, Delta: true, Starts: 5, Only: []string{"relay"}},
		{Name: "federation-10k-20-istiods", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, SotWUpstreams: true, Changes: 40, Burst: 2000, Federated: true, Only: withAndWithout},
		{Name: "federation-10k-20-relays", Configs: 10_000, Upstreams: 4, Clients: 20, Delta: true, Changes: 40, Burst: 2000, Federated: true, Only: withAndWithout},
	}
}
