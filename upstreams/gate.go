package upstreams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
)

const (
	// syncPatience is how long deletions that a new stream seems to bring wait for its
	// answers to be complete, before they are judged by what there is.
	syncPatience = 10 * time.Second
	// guardWindow is how far back the guard looks for what a source has lost bit by bit.
	guardWindow = time.Minute
	// contactGrain is how exactly the time of the last contact is kept on disk while the
	// contact lasts.
	contactGrain = time.Minute
	// maxExamples bounds the deletions that a Held names.
	maxExamples = 10
)

// Errors of what an operator asks for, to be checked with errors.Is.
var (
	ErrUnknownUpstream = errors.New("unknown upstream")
	ErrNotPossible     = errors.New("not possible")
)

// gate stands between what a source says and its store, which is what is served. It holds
// back deletions that look like an accident, keeps what an operator has frozen, and takes
// out what has been out of contact for too long. What has passed it is what is kept on disk.
//
// What the source says is in the source's own tables: the gate remembers no more of that
// than keys. To bring the store to it again, the source says all of it once more.
type gate struct {
	name  string
	store *mirror.Store
	log   *slog.Logger
	wake  chan struct{} // has an element when deadlines may have changed
	keeps bool          // passed is wanted

	mu      sync.Mutex // guards all below
	guard   config.Guard
	stale   staleness
	frozen  *state.Frozen
	waiting map[mirror.Key]struct{} // of which a frozen source has said something

	// outdated are the keys of a frozen source that it need not have, because other rules
	// apply since (true), or because a rollback has brought them back (false).
	outdated map[mirror.Key]bool

	// leaving are what the source has deleted, and the store has still.
	leaving      map[mirror.Key]departure
	leavingBytes int
	departures   uint64 // the number of the newest one
	held         *hold
	// renamed tells that named is not the name of what is leaving now. lookedAt are the holds
	// that somebody has seen, the oldest first.
	renamed  bool
	named    namedHold
	lookedAt []namedHold

	toSay        time.Time // when it is to be logged that something is held
	before       heldBefore
	syncing      bool   // the present stream has not answered everything
	opening      bool   // nor has it ever
	openedAt     uint64 // the newest departure when it began
	syncingUntil time.Time
	tallies      tallies

	// sweep, while all is said once more, are the keys that were not said yet.
	sweep map[mirror.Key]struct{}

	// passed are the changes that are to be kept on disk; nil is for what is gone. whole says
	// that it is too much of that, which is forgotten: all that there is has to be kept anew,
	// and nothing besides. tookWhole says that the last to take changes was told so.
	passed           map[mirror.Key]*state.Record
	whole, tookWhole bool
	// by is what has led to passed besides the source's own word, and tookBy what had to what was
	// taken last.
	by, tookBy  []string
	synced      bool
	without     time.Time // since when clients do not wait for the source: see serveWithout
	said        bool      // since the start, the source has told all that it has
	fingerprint string
	reported    time.Time // the last contact, as it was told last
	source      Source    // that is behind the gate now
}

func newGate(cfg config.Upstream, store *mirror.Store, log *slog.Logger) *gate {
	g := &gate{
		name: cfg.Name, store: store, log: log, wake: make(chan struct{}, 1),
		waiting: map[mirror.Key]struct{}{}, outdated: map[mirror.Key]bool{}, leaving: map[mirror.Key]departure{}, tallies: newTallies(), renamed: true, passed: map[mirror.Key]*state.Record{},
	}
	g.setPolicy(cfg)
	return g
}

// setPolicy takes over what a config says of guarding and staleness.
//
// It reports whether the source is to say all that it has once more, because kinds are to be
// served again that were not.
func (g *gate) setPolicy(cfg config.Upstream) (restate bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guard = cfg.Guard
	if g.held != nil && !g.isOver(time.Now()) {
		g.held.asked = time.Time{} // there is more time now: what comes of it does not count
	}
	g.stale.setRules(cfg)
	restate = g.stale.reconsider(time.Now())
	if g.stale.marked && !g.stale.marks() {
		g.showPlain()
	}
	g.stir()
	return restate && g.frozen == nil
}

func (g *gate) stir() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// begin has what the source says next come into force as one. It is followed by end.
func (g *gate) begin() {
	g.mu.Lock()
	if len(g.leaving) == 0 && (!g.syncing || !time.Now().Before(g.syncingUntil)) {
		g.tallies.settle() // nothing was gone when that came
		if g.syncing && g.opening {
			g.before = heldBefore{} // nor is what was held before
		}
	}
}

// end settles what becomes of deletions, and returns how many have gone through. syncing
// says that the source has not said yet all that it has.
func (g *gate) end(syncing bool) (removed int) {
	defer g.mu.Unlock()
	now := time.Now()
	if syncing && !g.syncing {
		g.syncingUntil = now.Add(syncPatience)
		g.stir()
	}
	complete := g.opening && !syncing
	g.syncing = syncing
	removed = g.judge(now, complete)
	if complete {
		g.opening, g.before = false, heldBefore{}
	}
	if len(g.leaving) > 0 {
		g.stir() // the patience with them ends by the clock, and so does a hold
	}
	g.forgetGone()
	return removed
}

// streams says that a new stream of the source begins.
func (g *gate) streams() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.syncing || len(g.leaving) == 0 {
		g.syncingUntil = time.Now().Add(syncPatience)
	}
	g.syncing, g.opening, g.openedAt = true, true, g.departures
	g.stir()
}

// put says that the source has a resource. It returns what is held of it, and whether that
// is a change to clients.
func (g *gate) put(r state.Record) (stored *mirror.Resource, changed bool) {
	key := r.Resource.Key()
	if g.stay(key) && g.held != nil {
		g.held.returned = time.Now()
	}
	delete(g.sweep, key)
	delete(g.outdated, key)
	if g.frozen != nil {
		g.differs(key, r.Resource)
		return r.Resource, false
	}
	if g.stale.withholds(key.Kind) {
		g.stale.count(key, true)
		return r.Resource, false
	}
	return g.pass(key, r)
}

func (g *gate) pass(key mirror.Key, r state.Record) (stored *mirror.Resource, changed bool) {
	shown := g.stale.annotated(key, r.Resource)
	old := g.store.Get(key)
	isNew := old == nil
	stored, changed = g.store.Put(shown)
	if len(g.stale.withholding) > 0 {
		g.stale.count(key, false)
	}
	if isNew {
		g.tallies.add(key.Kind, true)
	}
	if shown != r.Resource {
		stored = r.Resource // what the source says is without
	} else {
		r.Resource = stored
	}
	if g.keeps && changed {
		kept := r // r itself would be allocated also when nothing is kept
		g.passed[key] = &kept
	}
	return stored, changed
}

// waits says that it is not known yet whether the source has a resource. What is served of
// it stays until then.
func (g *gate) waits(key mirror.Key) { delete(g.sweep, key) }

// remove says that the source does not have a resource any more. It may be judged later
// what comes of that.
func (g *gate) remove(key mirror.Key) {
	switch {
	case g.frozen != nil:
		g.differs(key, nil)
	case g.stale.withholds(key.Kind):
		g.stale.count(key, false)
	case g.store.Get(key) != nil:
		g.depart(key, time.Now())
	}
}

// drop takes a key out of what is served.
func (g *gate) drop(key mirror.Key) bool {
	g.stale.forget(key)
	if !g.store.Remove(key) {
		return false
	}
	g.tallies.remove(key.Kind)
	return true
}

// restateOf is restate for some keys only: others that are not said stay.
func (g *gate) restateOf(keys []mirror.Key) {
	g.mu.Lock()
	g.sweep = map[mirror.Key]struct{}{}
	for _, key := range keys {
		if g.store.Get(key) != nil {
			g.sweep[key] = struct{}{}
		}
	}
}

// restate begins that the source says all that it has once more. What it does not say by
// the time of finish is gone.
func (g *gate) restate() {
	g.mu.Lock()
	clear(g.waiting) // it is found anew
	g.sweep = map[mirror.Key]struct{}{}
	for _, kind := range g.store.Kinds() {
		for _, r := range g.store.List(kind, "") {
			g.sweep[r.Key()] = struct{}{}
		}
	}
}

// finish is the end of what restate began. meant tells that what is gone by it was meant to,
// because the config has changed: the guard does not look at that.
func (g *gate) finish(syncing, meant bool) (removed int) {
	if meant {
		g.because("config")
	}
	ruled := meant
	for key := range g.sweep {
		_, leaves := g.leaving[key]
		switch {
		case g.frozen != nil:
			if meant {
				g.outdated[key] = true
			}
			g.remove(key)
		case !meant && !g.outdated[key]:
			g.remove(key)
		case meant && leaves: // it is not on account of this
		default:
			if g.drop(key) {
				removed++
			}
			if g.keeps {
				g.passed[key] = nil
			}
			ruled = true
		}
	}
	if g.frozen == nil {
		clear(g.outdated)
		if ruled {
			g.tallies.forget()
		}
	}
	g.sweep = nil
	return removed + g.end(syncing)
}

// keepRest lets stay what was not said since restate, but for what only a rollback or other
// rules have brought.
func (g *gate) keepRest() {
	for key := range g.sweep {
		if _, outdated := g.outdated[key]; !outdated {
			delete(g.sweep, key)
		}
	}
}

// abandon is the end of what restate began and nothing came of.
func (g *gate) abandon() {
	g.sweep = nil
	g.mu.Unlock()
}

// contact says whether the source says now all that it has, and keeps saying it. It reports
// whether there are kinds that have to be said once more, because they were withheld. The
// caller is not between begin and end.
func (g *gate) contact(on bool) (restate bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if on && g.stale.inContact {
		return false
	}
	if !on {
		was := g.stale.inContact
		g.stale.lose(time.Now())
		if g.held != nil {
			g.held.stop(time.Now())
		}
		if !was {
			g.stir()
			return false
		}
		g.reported = time.Time{}
		g.stir()
		return false
	}
	g.reported = time.Time{}
	g.synced, g.said, g.without = true, true, time.Time{}
	was, withheld := g.stale.since, len(g.stale.withheld) > 0
	if g.stale.isStale {
		g.log.Info("the upstream is not stale any more", "since", was)
	}
	g.showPlain()
	g.stale.regain()
	if g.held != nil {
		g.held.start(time.Now())
	}
	g.stir()
	return withheld && g.frozen == nil
}

// freshen says that the present stream has said all of a kind. It reports whether that has to
// be said once more, because it was withheld. The caller is between begin and end.
func (g *gate) freshen(kind mirror.Kind) (restate bool) {
	return g.stale.freshen(kind) && g.frozen == nil
}

// run does what the passing of time demands, until ctx ends.
func (g *gate) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		case <-timer.C:
		}
		timer.Reset(g.turn())
	}
}

// turn does what is due, and returns how long nothing will be. A panic has it tried again.
func (g *gate) turn() (wait time.Duration) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			g.log.Error("panic at the gate of an upstream", "panic", p.Value, "stack", p.Stack)
			wait = time.Minute
		}
	}()
	wait, then := g.due(time.Now())
	if then != nil {
		then()
	}
	return wait
}

// due does what is due. It returns how long nothing will be, and what the source is to do,
// or nil: the caller has it done without the lock, because the source's own comes first.
func (g *gate) due(now time.Time) (wait time.Duration, then func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	wait = time.Hour
	until := func(t time.Time) {
		if !t.IsZero() {
			wait = min(wait, max(t.Sub(now), time.Millisecond))
		}
	}
	g.age(now)
	if len(g.leaving) > 0 || g.held != nil {
		g.judge(now, false)
	}
	g.sayHeld(now)
	if len(g.leaving) > 0 && g.held == nil && g.syncing {
		until(g.syncingUntil)
	}
	if g.held != nil {
		if ask, again := g.repeats(now); ask {
			source := g.source
			then = func() { source.repeat(again) }
		}
		until(g.nextOfHold(now))
	}
	if f := g.frozen; f != nil && !f.Until.IsZero() {
		switch source := g.source; {
		case now.Before(f.Until):
			until(f.Until)
		case g.stale.inContact: // else it waits for that
			then = func() { _ = source.restateAll(func() error { return g.thawAtEnd(f) }) } // it fails only when somebody was faster
		}
	}
	until(g.stale.next(now))
	return wait, then
}

// nextOfHold returns when the passing of time will change something about what is held, zero
// for never.
func (g *gate) nextOfHold(now time.Time) (at time.Time) {
	consider := func(t time.Time) {
		if !t.Before(now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if !g.toSay.IsZero() {
		consider(g.toSay)
	}
	left, ends := g.left(now)
	switch {
	case !ends || !g.stale.inContact:
		return at
	case left > 0:
		consider(now.Add(left))
	case !g.held.asked.IsZero():
		consider(g.held.asked.Add(repeatEvery))
	}
	if quiet := g.held.returned.Add(guardWindow); quiet.After(now) {
		consider(quiet)
	}
	return at
}

// age notes what has become stale, and takes out what is not to be served any more.
func (g *gate) age(now time.Time) {
	if g.stale.becomesStale(now) {
		g.log.Warn("the upstream is stale", "since", g.stale.since.UTC().Format(time.RFC3339), "staleAfter", g.stale.rule.staleAfter)
	}
	g.showStale()
	if g.frozen != nil {
		return
	}
	gone := map[mirror.Kind]int{}
	for _, kind := range g.store.Kinds() {
		if !g.stale.expires(kind, now) {
			continue
		}
		for _, r := range g.store.List(kind, "") {
			key := r.Key()
			g.stay(key)
			g.drop(key)
			g.stale.count(key, true)
			if g.keeps {
				g.passed[key] = nil
			}
			gone[kind]++
		}
	}
	if len(gone) > 0 {
		g.tallies.forget()
		g.because("staleness")
		g.sayExpired(gone)
	}
}

// sayExpired logs what is not served any more.
func (g *gate) sayExpired(gone map[mirror.Kind]int) {
	total, kinds := 0, make([]string, 0, len(gone))
	for kind, n := range gone {
		total += n
		kinds = append(kinds, fmt.Sprintf("%s (%d)", kind, n))
	}
	slices.Sort(kinds)
	g.log.Warn("not served any more, because the upstream has been out of contact for longer than its staleness allows",
		"resources", total, "kinds", strings.Join(kinds, ", "), "since", g.stale.since.UTC().Format(time.RFC3339))
}

// showStale marks what is served of a stale source, if that is wanted.
func (g *gate) showStale() {
	if !g.stale.marks() || g.stale.marked {
		return
	}
	g.stale.marked = true
	for _, kind := range g.store.Kinds() {
		for _, r := range g.store.List(kind, "") {
			g.store.Put(g.stale.annotated(r.Key(), r))
		}
	}
}

// showPlain takes the marks away.
func (g *gate) showPlain() {
	for _, r := range g.stale.unmarked {
		g.store.Put(r)
	}
	g.stale.marked = false
	clear(g.stale.unmarked)
}

// isLeaving reports whether a key is served only because its deletion waits.
func (g *gate) isLeaving(key mirror.Key) (leaving, frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, leaving = g.leaving[key]
	_, waits := g.waiting[key]
	return leaving, g.frozen != nil && waits
}

// status fills in what the gate knows.
func (g *gate) status(st *Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st.Synced = st.Synced || g.said
	if g.held != nil {
		held := g.describeHold(time.Now())
		st.Held = &held
	}
	if f := g.frozen; f != nil {
		st.Frozen = &Frozen{Since: f.Since, Until: f.Until, Reason: f.Reason, Revision: f.Revision, Waiting: len(g.waiting)}
	}
	st.Stale = g.stale.isStale
	if g.stale.isStale {
		st.StaleSince = g.stale.since
	}
	st.Expired = g.stale.counts()
}
