package downstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// leakMutant makes a world leak, to show that the property sees it. Its zero value leaks nothing.
type leakMutant struct {
	resources func(Resources) Resources
	accepts   func(func(*mirror.Resource) bool) func(*mirror.Resource) bool
	// newest replaces the snapshots of a session.
	newest func(w *leakWorld, of *view) func(subscription.Type) *snapshot.Snapshot
	// wakes has sessions be answered after each change of anything.
	wakes bool
}

// leakWorld is views over upstreams, with clients that have no transport.
type leakWorld struct {
	script *leakScript
	mutant leakMutant
	stores map[string]*mirror.Store
	agg    *mirror.Aggregate
	views  *viewSet
	forms  [leakTenants]int
	rules  [leakTenants]*views.Rule
	guests []*leakGuest
	fixed  int // the tenant that keeps its view
	// asked guards accepted, what rules say: pushes and clients ask at the same time.
	asked    sync.Mutex
	accepted map[seen]bool
	// present has the copies, by place.
	present map[place]*mirror.Resource

	mu      sync.Mutex // guards changed
	changed map[mirror.Key]struct{}
}

// seen is a copy under a rule.
type seen struct {
	rule *views.Rule
	copy *mirror.Resource
}

// leakGuest has the view of a tenant, and sessions of it.
type leakGuest struct {
	tenant   int
	who      viewer
	view     *view
	sessions []*leakSession
	allowed  map[string]bool // canaries that the tenant may see
}

// newLeakWorld returns a world before its first step.
func newLeakWorld(s *leakScript, mutant leakMutant, fixed int) *leakWorld {
	w := &leakWorld{script: s, mutant: mutant, stores: map[string]*mirror.Store{}, agg: mirror.NewAggregate(), forms: s.forms, fixed: fixed, present: map[place]*mirror.Resource{}, changed: map[mirror.Key]struct{}{}, accepted: map[seen]bool{}}
	var sources []mirror.Source
	for i := range leakSources {
		name := canary('s', i)
		w.stores[name] = mirror.NewStore()
		w.stores[name].SetSynced()
		sources = append(sources, mirror.Source{Name: name, Store: w.stores[name]})
	}
	w.agg.RegisterHandler(func(c mirror.Change) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changed[c.Key] = struct{}{}
	})
	w.agg.SetSources(sources)
	w.agg.SetPolicies(s.policies, s.others)
	for t := range leakTenants {
		w.rules[t] = w.ruleOf(t)
	}
	return w
}

// run lives a script without a server. Each tenant of guests has a view, and those of watched have sessions. It returns the
// transcripts of the sessions of each watched tenant, and what a session was sent that its tenant does not see.
func (s *leakScript) run(seed uint64, mutant leakMutant, guests, watched []int, fixed int) (transcripts map[int][]string, leaked string) {
	w := newLeakWorld(s, mutant, fixed)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.agg.Run(ctx) }()
	defer func() { cancel(); <-done }() //nolint:errcheck // it has ended
	var resources Resources = w.agg
	if mutant.resources != nil {
		resources = mutant.resources(resources)
	}
	w.views = newViews(resources)
	for _, t := range guests {
		g := &leakGuest{tenant: t, who: viewer{delta: true}, allowed: map[string]bool{}}
		w.guests = append(w.guests, g)
		if slices.Contains(watched, t) {
			for i := range leakSessions {
				g.sessions = append(g.sessions, newLeakSession(w, t, i, rand.New(rand.NewPCG(seed, uint64(t*leakSessions+i)))))
			}
		}
	}
	transcripts = map[int][]string{}
	for i, step := range s.steps {
		w.take(ctx, step, i == 0)
		for _, g := range w.guests {
			w.allow(g)
			for n, session := range g.sessions {
				sent := session.look(g.view)
				if found := w.check(g, session, sent); found != "" {
					return nil, fmt.Sprintf("step %d: tenant %d, session %d (%s): %s", i, g.tenant, n, session.form(), found)
				}
			}
		}
	}
	for _, g := range w.guests {
		if found := w.checkView(g); found != "" {
			return nil, fmt.Sprintf("tenant %d: %s", g.tenant, found)
		}
		for _, session := range g.sessions {
			transcripts[g.tenant] = append(transcripts[g.tenant], session.said.String())
		}
	}
	return transcripts, ""
}

func (w *leakWorld) ruleOf(tenant int) *views.Rule {
	r := leakViews[tenant][w.forms[tenant]]
	same := *r
	same.Accepts = func(copied *mirror.Resource) bool { return w.accepts(r, copied) }
	if w.mutant.accepts != nil {
		same.Accepts = w.mutant.accepts(same.Accepts)
	}
	return &same
}

// accepts asks the rule once for a copy, and keeps the answer: decoding labels takes most of the time.
func (w *leakWorld) accepts(r *views.Rule, copied *mirror.Resource) bool {
	w.asked.Lock()
	defer w.asked.Unlock()
	shown, known := w.accepted[seen{r, copied}]
	if !known {
		shown = r.Accepts(copied)
		w.accepted[seen{r, copied}] = shown
	}
	return shown
}

// change changes the upstreams. It returns the keys that the aggregate reports.
func (w *leakWorld) change(ctx context.Context, step leakStep) map[mirror.Key]struct{} {
	for _, at := range step.remove {
		w.stores[at.source].Remove(at.key)
		delete(w.present, at)
	}
	for _, r := range step.put {
		w.stores[r.Source()].Put(r)
		w.present[placeOf(r)] = r
	}
	for range 2 { // the second time for keys that are merged again because of another key
		if err := w.agg.CaughtUp(ctx); err != nil {
			panic(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := w.changed
	w.changed = map[mirror.Key]struct{}{}
	return keys
}

// take carries out a step: a change of the upstreams, its push, and a reload.
func (w *leakWorld) take(ctx context.Context, step leakStep, first bool) {
	keys := w.change(ctx, step)
	if first {
		for _, g := range w.guests {
			g.view = must(w.views.admit(ctx, w.rules[g.tenant].Selection(w.script.claims[g.tenant]), g.who))
		}
		w.views.open(time.Unix(1, 0))
		w.rematch(nil)
		return
	}
	w.views.update(step.full, keys, time.Unix(1, 0))
	w.rematch(step.forms)
}

// rematch moves clients after a reload, and when clusters or revisions have become known.
func (w *leakWorld) rematch(forms *[leakTenants]int) {
	select {
	case <-w.views.known.News():
	default:
		if forms == nil {
			return
		}
	}
	if forms != nil {
		w.reform(forms)
	}
	var moves []move
	for _, g := range w.guests {
		moves = append(moves, move{from: g.view, to: w.rules[g.tenant].Selection(w.script.claims[g.tenant]), who: g.who, done: func(v *view) bool {
			g.view = v
			return true
		}})
	}
	w.views.rematch(moves, time.Unix(1, 0))
}

// reform gives the tenants other views.
func (w *leakWorld) reform(forms *[leakTenants]int) {
	was := w.forms
	w.forms = *forms
	w.forms[w.fixed] = was[w.fixed]
	for t := range leakTenants {
		if w.forms[t] != was[t] {
			w.rules[t] = w.ruleOf(t)
		}
	}
}

// allow adds the canaries that a tenant sees now.
func (w *leakWorld) allow(g *leakGuest) {
	x := w.rules[g.tenant].Selection(w.script.claims[g.tenant])
	for _, r := range w.present {
		if x.Accepts(r) {
			canaries(r.DeltaEntry(), g.allowed)
		}
	}
}

// checkView returns what is in the view of a tenant that it does not see.
func (w *leakWorld) checkView(g *leakGuest) (found string) {
	g.view.each(func(_ subscription.Type, c *snapshot.Collection) {
		c.Current().Each(func(item snapshot.Item) {
			for _, b := range [][]byte{item.DeltaEntry(), item.AppendShort(nil)} {
				if bad := unknown(b, g.allowed); bad != "" {
					found = fmt.Sprintf("its view has %s in %.2000q", bad, b)
				}
			}
		})
	})
	return found
}

// unknown returns a canary in a text that is in none of the sets.
func unknown(text []byte, sets ...map[string]bool) string {
	found := map[string]bool{}
	canaries(text, found)
	for c := range found {
		if !slices.ContainsFunc(sets, func(set map[string]bool) bool { return set[c] }) {
			return c
		}
	}
	return ""
}

// check returns what a session was sent that its tenant does not see.
func (w *leakWorld) check(g *leakGuest, s *leakSession, sent [][]byte) string {
	for _, m := range sent {
		if c := unknown(m, g.allowed, s.asked); c != "" {
			return fmt.Sprintf("it was sent %s: %.2000q", c, m)
		}
		if s.delta {
			var resp discoveryv3.DeltaDiscoveryResponse
			if err := proto.Unmarshal(m, &resp); err != nil {
				return err.Error()
			}
			for _, name := range resp.RemovedResources {
				if at := resp.TypeUrl + " " + name; !s.ever[at] {
					return fmt.Sprintf("%s is removed, and it never had or asked for it", at)
				}
			}
		}
	}
	return ""
}
