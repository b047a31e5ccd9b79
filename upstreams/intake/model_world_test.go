package intake_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// A move is one thing that happens in a world. What a, b and c mean depends on what happens.
type move struct {
	what    string
	a, b, c int
}

// world is an intake with its source, disk and operators, beside the model.
type world struct {
	t         *rapid.T
	in        *intake.Intake
	m         *model
	now, wake time.Time
	u         config.Upstream
	log       []string // the events, in words

	store *mirror.Store
	// truth is what the source has, by scope; told what it has told on the present stream.
	truth, told map[string]map[string]string
	open, delta bool
	scopes      map[string]records.Scope // that the stream has
	parted      map[string]bool          // in the middle of an answer
	contents    int
	untyped     map[key]bool // on disk without a type at the last restart
	// owed has, by scope, the names that the source was asked to repeat and has not yet. It is nil if it was not asked.
	owed      map[string]map[string]bool
	records   map[mirror.Key]state.Record
	saved     state.Saved
	disk      *disk
	revisions []revision
}

type revision struct {
	records []state.Record
	served  map[key]string
}

func rulesOf(u config.Upstream) *records.Rules {
	rules, err := records.NewRules(u, config.Provenance{}, true)
	if err != nil {
		panic(err)
	}
	return rules
}

func newWorld(t *rapid.T, g config.Guard, expire time.Duration) *world {
	w := &world{
		t: t, now: time.Unix(1_000_000, 0), store: mirror.NewStore(), truth: map[string]map[string]string{},
		records: map[mirror.Key]state.Record{}, disk: &disk{},
		u: config.Upstream{Name: "east", Services: config.Services{Mode: config.ServicesOmit}, Guard: g},
	}
	w.u.Staleness = config.Staleness{StaleAfter: config.Duration(time.Minute), ExpireAfter: config.OpenEnded(expire)}
	for _, url := range urls {
		w.truth[url] = map[string]string{}
	}
	w.in = intake.New(w.u, w.store, rulesOf(w.u), true)
	w.m = newModel(w.now, g, expire)
	w.flush()
	return w
}

func (w *world) served() map[key]string {
	out := map[key]string{}
	for _, kind := range w.store.Kinds() {
		for _, r := range w.store.List(kind, "") {
			out[keyOf(r)] = contentOf(r)
		}
	}
	return out
}

func keyOf(r *mirror.Resource) key        { return key{r.Key().Kind.Kind, r.Key().Name} }
func contentOf(r *mirror.Resource) string { return r.Metadata().Labels["content"] }

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	why, events := fmt.Sprintf(format, args...), strings.Join(w.log, "\n")
	w.t.Fatalf("%s\nguard %+v, expires after %s:\n%s", why, w.m.Guard, w.m.expire, events)
}

// step gives the intake an event that the model has taken in, and compares.
func (w *world) step(e intake.Event) {
	w.t.Helper()
	out, err := w.in.Step(w.now, e)
	if err != nil {
		w.fail("the order is refused: %v", err)
	}
	w.compare(out)
}

func (w *world) compare(out intake.Output) {
	w.t.Helper()
	served, before := w.served(), w.m.last()
	all := maps.Clone(served)
	maps.Copy(all, before)
	for _, s := range w.m.scopes {
		for name := range s.has {
			all[key{s.kind, name}] = ""
		}
	}
	changes := []string{}
	byName := func(a, b key) int { return strings.Compare(a.kind+a.name, b.kind+b.name) }
	for _, k := range slices.SortedFunc(maps.Keys(all), byName) {
		if before[k] != served[k] {
			changes = append(changes, fmt.Sprintf("%s=%s", k.name, served[k]))
		}
	}
	if len(changes) > 0 {
		w.say("      now serves %s (%d)", strings.Join(changes, " "), len(served))
	}
	for k := range all {
		if want, why := w.m.allowed(k); !slices.Contains(want, served[k]) {
			w.fail("%s %s is served with %q, want one of %q: %s", k.kind, k.name, served[k], want, why)
		}
	}
	if h := w.m.hold; out.Repeat && (w.owed == nil || h == nil || !h.asked) {
		w.say("      the source is asked to repeat")
		w.owed = map[string]map[string]bool{}
		for url := range w.scopes {
			w.owed[url] = w.m.scopes[url].names()
		}
	}
	if err := w.m.observe(served, out.Repeat); err != nil {
		w.fail("%v", err)
	}
	w.wake = out.Wake
}

func (w *world) opens(a, b, c int) {
	if w.open && a%3 > 0 {
		w.closes()
	}
	w.delta = b%2 == 1
	w.scopes = map[string]records.Scope{gateways: scopeOf(gateways)}
	switch c % 6 {
	case 0:
		w.scopes[newEntries] = scopeOf(newEntries)
	case 1:
		w.scopes[oldEntries] = scopeOf(oldEntries)
	default:
		w.scopes[newEntries], w.scopes[oldEntries] = scopeOf(newEntries), scopeOf(oldEntries)
	}
	all, opened := []records.Scope{}, map[string]*said{}
	for _, url := range urls {
		if s, has := w.scopes[url]; has {
			all = append(all, s)
			opened[url] = &said{kind: s.Kind.Kind, rank: s.Rank}
		}
	}
	w.open, w.owed, w.told, w.parted = true, nil, map[string]map[string]string{}, map[string]bool{}
	w.say("opens a stream, delta %v: %q", w.delta, slices.Sorted(maps.Keys(opened)))
	w.m.opened(w.now, opened)
	w.step(intake.Opened{Scopes: all})
}

func (w *world) closes() {
	if w.open {
		w.open, w.owed = false, nil
		w.say("loses contact")
		w.m.closed(w.now)
		w.step(intake.Closed{})
	}
}

// answers has the source answer a scope, or tell its changes.
func (w *world) answers(url string, repeats bool, c int) {
	w.t.Helper()
	w.step(intake.Received{Updates: []records.Update{w.update(url, repeats, c)}})
}

func (w *world) waits(d time.Duration, once bool) {
	until := w.now.Add(d)
	w.say("%s pass", d)
	for !once && w.wake.After(w.now) && w.wake.Before(until) {
		w.now = w.wake
		w.tick()
	}
	w.now = until
	w.tick()
}

func (w *world) tick() {
	w.m.advance(w.now)
	w.step(intake.Tick{})
}

// order gives an order, and has the model carry it out if it was taken. It fails if docs tell otherwise.
func (w *world) order(name string, e intake.Event, takes, refuses bool, carry func()) {
	w.m.advance(w.now)
	out, err := w.in.Step(w.now, e)
	if w.say("%s: %v", name, err); err == nil {
		carry()
	}
	if err == nil && refuses || err != nil && takes {
		w.fail("the order to %s has the error %v", name, err)
	}
	w.compare(out)
}

func (w *world) flush() {
	changes, meta := w.in.TakeChanges(w.now)
	if meta.Whole {
		clear(w.records)
	}
	for _, c := range changes {
		if c.Record == nil {
			delete(w.records, c.Key)
		} else {
			w.records[c.Key] = *c.Record
		}
	}
	w.m.advance(w.now)
	w.saved = state.Saved{Meta: meta, Records: slices.Collect(maps.Values(w.records))}
	w.disk = w.m.flush()
	have := map[key]string{}
	for _, r := range w.saved.Records {
		have[keyOf(r.Resource)] = contentOf(r.Resource)
	}
	if !maps.Equal(have, w.m.last()) {
		w.fail("the disk has %v, and served is %v", have, w.m.last())
	}
}

func (w *world) restarts(graceful bool, down time.Duration) {
	if graceful {
		w.closes()
		w.flush()
	}
	w.say("restarts, graceful %v, after %s", graceful, down)
	w.now = w.now.Add(down)
	w.open, w.owed = false, nil
	scopes := map[string]*said{}
	w.untyped = map[key]bool{}
	for _, r := range w.saved.Records {
		name, rank := r.TypeURL, -1
		if name != "" {
			rank = scopeOf(name).Rank
		}
		k := keyOf(r.Resource)
		w.untyped[k] = rank < 0
		if name = name + " " + k.kind; r.TypeURL != "" {
			name = r.TypeURL
		}
		if scopes[name] == nil {
			scopes[name] = newSaid(k.kind, rank)
		}
		scopes[name].has[k.name], scopes[name].ever[k.name] = contentOf(r.Resource), contentOf(r.Resource)
	}
	w.records = map[mirror.Key]state.Record{}
	for _, r := range w.saved.Records {
		w.records[r.Resource.Key()] = r
	}
	w.store = mirror.NewStore()
	w.in = intake.New(w.u, w.store, rulesOf(w.u), true)
	w.m.restart(w.now, w.disk, scopes)
	w.step(intake.Restored{Saved: w.saved})
}

// do carries out a move.
func (w *world) do(mv move) {
	switch mv.what {
	case "open":
		w.opens(mv.a, mv.b, mv.c)
	case "close":
		w.closes()
	case "answer":
		if url := urls[mv.a%len(urls)]; w.open && w.scopes[url].Name != "" {
			if !w.parted[url] {
				w.mutate(url, mv.b, mv.c)
			}
			w.answers(url, false, mv.c)
		} else {
			w.mutate(url, mv.b, mv.c)
		}
	case "sync": // what is not answered
		for _, url := range urls {
			if s := w.m.scopes[url]; w.open && s != nil && s.opened && !s.answered {
				w.answers(url, false, mv.c)
				if w.parted[url] {
					w.answers(url, false, 1)
				}
			}
		}
	case "lose": // all at once
		for _, url := range urls {
			w.mutate(url, 3+mv.a%2, mv.c)
			if w.open && w.scopes[url].Name != "" && !w.parted[url] && mv.b%2 == 0 {
				w.answers(url, false, 1)
			}
		}
	case "fill":
		for _, url := range urls {
			w.mutate(url, 5+mv.b%2, mv.c)
			if w.open && w.scopes[url].Name != "" && !w.parted[url] && url != oldEntries {
				w.answers(url, false, 1)
			}
		}
	case "wait":
		seconds := []time.Duration{1, 2, 9, 11, 31, 62, 4 * 60, 6 * 60, 11 * 60}
		w.waits(seconds[mv.a%len(seconds)]*time.Second, mv.b%4 == 0)
	case "repeat":
		w.repeats()
	case "freeze":
		w.order("freeze", intake.Freeze{}, w.m.frozen == nil, false, func() { w.m.freeze(w.m.last()) })
	case "unfreeze":
		out := intake.Unfreeze{Order: intake.Order{Force: mv.a%2 == 0}}
		frozen := w.m.frozen != nil
		takes, refuses := frozen && (out.Force || w.m.settled() && !w.m.grace()), !frozen || !w.open && !out.Force
		w.order(fmt.Sprintf("unfreeze, force %v", out.Force), out, takes, refuses, w.m.unfreeze)
	case "release":
		o, picks := intake.Order{All: true}, func(key) bool { return true }
		switch mv.a % 4 {
		case 0:
			part, _ := intake.ParsePart("se/*")
			o, picks = intake.Order{Only: []intake.Part{part}}, func(k key) bool { return k.kind == "ServiceEntry" }
		case 1:
			if ids := w.in.HoldIDs(); len(ids) > 0 {
				o = intake.Order{Hold: ids[0]}
			}
		}
		h := w.m.hold
		takes := h != nil && h.sure && !h.loose && w.m.quiet() && len(o.Only) == 0
		gone := slices.Contains(slices.Collect(maps.Values(w.m.gone)), true)
		w.order("release", intake.Release{Order: o}, takes, h == nil && !gone, func() { w.m.did.released = picks })
	case "rollback":
		if len(w.revisions) > 0 {
			r := w.revisions[mv.a%len(w.revisions)]
			back := intake.Rollback{Order: intake.Order{To: 1}, Records: slices.Clone(r.records)}
			w.order("rollback", back, true, false, func() { w.m.freeze(r.served) })
		}
	case "flush":
		w.say("is written to disk")
		w.flush()
		if mv.a%2 == 0 {
			w.revisions = append(w.revisions, revision{w.saved.Records, maps.Clone(w.m.last())})
		}
	case "no room":
		w.say("can not be written to disk")
		changes, _ := w.in.TakeChanges(w.now)
		w.in.GiveBack(changes)
	case "restart":
		w.restarts(mv.a%2 == 0, []time.Duration{0, time.Minute, time.Hour}[mv.b%3])
	case "policy":
		all := policies()
		p := all[mv.a%len(all)]
		w.u.Guard = p.guard
		w.u.Staleness.ExpireAfter = config.OpenEnded(p.expire)
		w.say("reload: guard %+v, expires after %s", p.guard, p.expire)
		w.m.advance(w.now)
		w.m.setPolicy(p.guard, p.expire)
		w.step(intake.SetPolicy{Upstream: w.u})
	}
}

// repeats has the source repeat all that it has, if it was asked to.
func (w *world) repeats() {
	if !w.open || w.owed == nil || len(w.parted) > 0 {
		return
	}
	for _, url := range urls {
		if w.scopes[url].Name != "" {
			w.answers(url, true, 1)
		}
	}
}

// repeated notes that an answer has repeated names of a scope: all, if it is a complete one.
func (w *world) repeated(url string, all bool, names ...string) {
	still, owed := w.owed[url]
	if !owed {
		return
	}
	for _, name := range names {
		delete(still, name)
	}
	if all || len(still) == 0 {
		delete(w.owed, url)
	}
	if len(w.owed) == 0 {
		w.say("has repeated everything")
		w.m.did.repeated, w.owed = true, nil
	}
}

type policy struct {
	name   string
	guard  config.Guard
	expire time.Duration
}

func policies() []policy {
	tight := config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(10 * time.Minute), Empty: config.EmptyHold}
	forever, pass, off, brief, empty := tight, tight, tight, tight, tight
	forever.HoldFor, pass.Empty, brief.HoldFor = 0, config.EmptyPass, config.OpenEnded(time.Minute)
	off.Percent, off.Empty, empty.Percent = 100, config.EmptyPass, 100
	return []policy{
		{"guard", tight, 0},
		{"guard forever", forever, 0},
		{"guard that lets few resources pass", pass, 0},
		{"guard off", off, 0},
		{"brief hold", brief, 0},
		{"guard of empty kinds", empty, 0},
		{"guard and expiry", tight, 5 * time.Minute},
		{"guard forever and expiry", forever, 5 * time.Minute},
		{"expiry", off, 5 * time.Minute},
		{"long expiry", pass, time.Hour},
	}
}

// TestWhatIsServedFollowsTheModel holds the intake to the model in random worlds.
func TestWhatIsServedFollowsTheModel(t *testing.T) {
	often := func(n int, what string) []string { return slices.Repeat([]string{what}, n) }
	moves := slices.Concat(
		often(10, "answer"), often(6, "wait"), often(3, "open"), often(4, "sync"), often(2, "fill"), often(2, "lose"),
		often(3, "repeat"), often(2, "flush"),
		[]string{"close", "freeze", "unfreeze", "release", "rollback", "no room", "restart", "policy"},
	)
	for i, p := range policies() {
		moves := slices.Concat(moves[4*i:], moves[:4*i]) // with one seed, each policy has other worlds
		one := rapid.Custom(func(t *rapid.T) move {
			n := rapid.IntRange(0, 11)
			return move{rapid.SampledFrom(moves).Draw(t, "what"), n.Draw(t, "a"), n.Draw(t, "b"), n.Draw(t, "c")}
		})
		t.Run(p.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, p.guard, p.expire)
				w.do(move{"open", 0, rapid.IntRange(0, 1).Draw(t, "delta"), 2})
				w.do(move{"fill", 0, 0, 0})
				w.do(move{"sync", 0, 0, 1})
				for _, mv := range rapid.SliceOfN(one, 10, 60).Draw(t, "moves") {
					w.do(mv)
				}
			})
		})
	}
}
