package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// step is one thing that is done at a time of a round: a change of the world, the beginning
// of a fault, or its end.
type step struct {
	at     time.Duration
	change *change
	pod    *podChange
	fault  *fault
	ends   bool
}

// change is a change of one config of one source.
type change struct {
	source, key int
	deletes     bool
}

// fault is something bad that begins and ends.
type fault struct {
	kind   string
	target int // of the links, upstreams or relays
	lasts  time.Duration
	// dice are for what else is by chance.
	dice [4]int
	// keys are what a mass deletion deletes.
	keys []int
}

// schedule makes the rounds of a scenario. What it makes depends on the seed and on the
// scenario, and on nothing else: not on what has become of the rounds before.
type schedule struct {
	rand     *rand.Rand
	scenario scenario
	holders  func(key int) []int
	// present and size are which keys each source has by now, and how many that are.
	present []map[int]bool
	size    []int
	of      []int   // how many keys each source may have
	kinds   [][]int // how many each source has of each kind by now
	rates   []int   // the steady rates of the present round, in their order
}

func newSchedule(seed uint64, sc scenario, sources int, holders func(key int) []int) *schedule {
	h := fnv.New64a()
	h.Write([]byte(sc.name)) // which never fails
	s := &schedule{
		rand: rand.New(rand.NewPCG(seed, h.Sum64())), scenario: sc, holders: holders,
		size: make([]int, sources), of: make([]int, sources), present: make([]map[int]bool, sources),
	}
	for n := range sources {
		s.present[n] = map[int]bool{}
		s.kinds = append(s.kinds, make([]int, len(kinds)))
	}
	for key := range sc.keys {
		for _, n := range holders(key) {
			s.of[n]++
		}
	}
	return s
}

// first returns what the world is like in the beginning.
func (s *schedule) first() (changes []change) {
	for key := range s.scenario.keys {
		for _, n := range s.holders(key) {
			if s.rand.IntN(100) < 88 {
				changes = append(changes, change{source: n, key: key})
				s.note(n, key, true)
			}
		}
	}
	return changes
}

func (s *schedule) note(source, key int, present bool) {
	if s.present[source][key] != present {
		s.present[source][key] = present
		by := 1
		if !present {
			by = -1
		}
		s.size[source] += by
		s.kinds[source][key%len(kinds)] += by
	}
}

// settleTime is how long nothing begins at the end of a round, so that all faults end.
const settleTime = 200 * time.Millisecond

// guardCount is how many deletions a guard lets pass, whatever their share.
const guardCount = 10

// round returns the steps of the next round, by time.
func (s *schedule) round() []step {
	sc := s.scenario
	var steps []step
	quiet := map[int]bool{} // sources that are not to change
	busy := map[string]time.Duration{}
	for range sc.faultsPerRound {
		f := &fault{kind: sc.faults[s.rand.IntN(len(sc.faults))]}
		info := faultKinds[f.kind]
		f.target = s.rand.IntN(max(1, info.targets(sc)))
		f.lasts = info.least + time.Duration(s.rand.Int64N(int64(info.most-info.least)+1))
		for i := range f.dice {
			f.dice[i] = s.rand.IntN(1 << 20)
		}
		at := time.Duration(s.rand.Int64N(int64(max(sc.round-f.lasts-settleTime, 1))))
		// Two faults never claim the same target. The later one is left out.
		claims := info.claims(sc, f.target)
		for _, name := range claims {
			at = max(at, busy[name], busy[everything])
			if name == everything {
				for _, until := range busy {
					at = max(at, until)
				}
			}
		}
		if at+f.lasts+settleTime > sc.round {
			continue
		}
		if info.source != nil {
			n := info.source(f.target)
			if f.keys = s.most(n); len(f.keys) <= 2*guardCount {
				continue // so few that no guard holds them
			}
			quiet[n] = true
		}
		for _, name := range claims {
			busy[name] = at + f.lasts + settleTime
		}
		steps = append(steps, step{at: at, fault: f}, step{at: at + f.lasts, fault: f, ends: true})
	}
	for _, at := range s.times() {
		steps = append(steps, step{at: at, change: &change{}})
	}
	for range int(float64(sc.pods) * sc.round.Seconds()) {
		c := &podChange{source: s.rand.IntN(sc.clusters)}
		for i := range c.dice {
			c.dice[i] = s.rand.IntN(1 << 20)
		}
		steps = append(steps, step{at: time.Duration(s.rand.Int64N(int64(sc.round))), pod: c})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	// Which key is changed is decided in the order in which it is done.
	var out []step
	for _, st := range steps {
		if st.change == nil || s.decide(st.change, quiet) {
			out = append(out, st)
		}
	}
	for _, st := range out {
		if st.fault != nil && !st.ends {
			for _, key := range st.fault.keys {
				s.note(faultKinds[st.fault.kind].source(st.fault.target), key, false)
			}
		}
	}
	return out
}

// times returns when a round changes something.
func (s *schedule) times() (out []time.Duration) {
	sc := s.scenario
	for range int(float64(sc.rate) * sc.round.Seconds()) {
		out = append(out, time.Duration(s.rand.Int64N(int64(sc.round))))
	}
	if len(sc.rates) == 0 {
		return out
	}
	out, s.rates = nil, slices.Clone(sc.rates)
	s.rand.Shuffle(len(s.rates), func(i, j int) { s.rates[i], s.rates[j] = s.rates[j], s.rates[i] })
	part := sc.round / time.Duration(len(s.rates))
	for i, rate := range s.rates {
		apart := time.Second / time.Duration(rate)
		for at := time.Duration(0); at < part; at += apart {
			out = append(out, part*time.Duration(i)+at)
		}
	}
	return out
}

// pace describes the steady rates of the present round, empty when it has none.
func (s *schedule) pace() string {
	if s.rates == nil {
		return ""
	}
	return fmt.Sprintf(": %v changes a second", s.rates)
}

// decide fills in a change, and reports whether there is one.
func (s *schedule) decide(c *change, quiet map[int]bool) bool {
	c.key = s.rand.IntN(s.scenario.keys)
	holders := s.holders(c.key)
	c.source = holders[s.rand.IntN(len(holders))]
	// No more than a few configs are deleted on the whole: a guard counts them together.
	c.deletes = s.present[c.source][c.key] && s.rand.IntN(4) == 0 && s.size[c.source]*100 > 80*s.of[c.source] &&
		s.kinds[c.source][c.key%len(kinds)] > 1 // a guard holds the last of a kind
	if quiet[c.source] {
		return false
	}
	s.note(c.source, c.key, !c.deletes)
	return true
}

// most returns two thirds of what a source has.
func (s *schedule) most(source int) (keys []int) {
	for key := range s.scenario.keys {
		if s.present[source][key] && s.rand.IntN(3) > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}
