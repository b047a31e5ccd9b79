package downstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
)

// leakSessions is the number of sessions of a tenant: SotW in the full form and in the short one, and delta, each
// with the wildcard and by name.
const leakSessions = 6

// leakSession is a client without a transport. What it does depends only on its random numbers, and on what it
// was sent.
type leakSession struct {
	world   *leakWorld
	rng     *rand.Rand
	delta   bool
	short   bool
	named   bool
	subs    *subscription.Set
	planned uint64
	base    uint64 // changes of the base view, for a mutant
	asks    bool
	said    strings.Builder // what it was sent
	asked   map[string]bool // canaries in its requests
	ever    map[string]bool // type URLs and names that it had or asked for
	holds   map[string]map[string]string
	version map[string]string
	nonces  map[string]string
}

func newLeakSession(w *leakWorld, tenant, i int, rng *rand.Rand) *leakSession {
	s := &leakSession{world: w, rng: rng, delta: i >= 4, short: i == 2 || i == 3, named: i%2 == 1, asked: map[string]bool{}, ever: map[string]bool{}}
	s.holds, s.version = map[string]map[string]string{}, map[string]string{}
	canaries([]byte(canary('t', tenant)), s.asked) // its own name
	s.connect()
	return s
}

func (s *leakSession) form() string {
	return fmt.Sprintf("delta %v, short %v, by name %v", s.delta, s.short, s.named)
}

var leakLimits = subscription.Limits{Types: 100, Names: 10_000, NameBytes: 1 << 20, PartBytes: 2 << 10}

// connect begins a stream: it asks for all types, with what it has.
func (s *leakSession) connect() {
	s.subs = subscription.New(s.delta, []byte("\n\x02id"), lookup)
	if s.short {
		s.subs.Use(snapshot.Short)
	}
	s.planned, s.asks, s.nonces = 0, true, map[string]string{}
	for _, url := range s.world.script.urls {
		req := &subscription.Request{TypeURL: url, Version: s.version[url], Versions: maps.Clone(s.holds[url])}
		if s.named {
			req.Subscribe = s.names(url)
		}
		s.request(req)
	}
}

// names draws names: of what there is, whether it is shown or not, and of what there is not.
func (s *leakSession) names(url string) []string {
	var out []string
	for range 1 + s.rng.IntN(3) {
		t := s.rng.IntN(leakTenants)
		out = append(out, "team-"+canary('t', t)+"/n-"+canary('k', t*10+s.rng.IntN(2)), "shared/n-"+canary('k', 9000+s.rng.IntN(6)), "/n-"+canary('k', 9000+s.rng.IntN(6)))
	}
	return out
}

func (s *leakSession) request(req *subscription.Request) {
	for _, name := range append(slices.Concat(req.Subscribe, req.Unsubscribe), slices.Collect(maps.Keys(req.Versions))...) {
		canaries([]byte(name), s.asked)
		s.ever[req.TypeURL+" "+name] = true
	}
	result, err := s.subs.Request(req, leakLimits, time.Unix(2, 0))
	fmt.Fprintf(&s.said, "\n> %s %v %v", req.TypeURL, result, err)
	s.asks = s.asks || result.Asks(req)
}

// look brings the session to what its view shows, answers, and returns what it was sent.
func (s *leakSession) look(v *view) (sent [][]byte) {
	if s.rng.IntN(12) == 0 {
		s.connect()
	}
	if s.named && s.rng.IntN(4) == 0 {
		url := s.world.script.urls[s.rng.IntN(len(s.world.script.urls))]
		req := &subscription.Request{TypeURL: url, Nonce: s.nonces[url], Subscribe: s.names(url)}
		if s.delta {
			req.Unsubscribe, req.Nonce = s.names(url), ""
		}
		s.request(req)
	}
	if base := s.world.views.base.changes.Load(); s.world.mutant.wakes && base != s.base {
		s.base = base
		s.request(&subscription.Request{TypeURL: meshURL}) // as if everybody were answered after each push
	}
	for round := 0; round < 20; round++ {
		changes := v.changes.Load()
		if !s.asks && changes == s.planned {
			break
		}
		s.asks, s.planned = false, changes
		newest := v.snapshot
		if s.world.mutant.newest != nil {
			newest = s.world.mutant.newest(s.world, v)
		}
		r, err := s.subs.Plan(newest, func(int) {})
		if err != nil {
			fmt.Fprintf(&s.said, "\n! %v", err)
			s.connect()
			continue
		}
		if r == nil {
			break
		}
		for resp, ok := s.subs.Next(r, time.Unix(2, 0)); ok; resp, ok = s.subs.Next(r, time.Unix(2, 0)) {
			m := resp.Buffers.Materialize()
			sent = append(sent, m)
			fmt.Fprintf(&s.said, "\n< %s", m)
			s.answer(resp.TypeURL, resp.Nonce, m)
		}
	}
	s.said.WriteString("\n---")
	return sent
}

// answer notes a response, and acknowledges or rejects it.
func (s *leakSession) answer(url, nonce string, m []byte) {
	s.nonces[url] = nonce
	req := &subscription.Request{TypeURL: url, Nonce: nonce}
	if s.delta {
		var resp discoveryv3.DeltaDiscoveryResponse
		if err := proto.Unmarshal(m, &resp); err != nil {
			panic(err)
		}
		if s.holds[url] == nil {
			s.holds[url] = map[string]string{}
		}
		for _, r := range resp.Resources {
			s.holds[url][r.Name] = r.Version
			s.ever[url+" "+r.Name] = true
		}
		for _, name := range resp.RemovedResources {
			delete(s.holds[url], name)
		}
	} else {
		var resp discoveryv3.DiscoveryResponse
		if err := proto.Unmarshal(m, &resp); err != nil {
			panic(err)
		}
		s.version[url], req.Version = resp.VersionInfo, resp.VersionInfo
		if w := s.subs.Watch(url); s.named && w != nil {
			req.Subscribe = nil
		}
	}
	switch s.rng.IntN(8) {
	case 0:
		return // it is slow
	case 1:
		req.Rejected, req.Error = true, "it is wrong"
	}
	if !s.delta && s.named {
		return // an ACK would have to repeat the names
	}
	s.request(req)
}
