package gate

import (
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
)

// Patience is how long the deletions of a new stream wait for all its answers.
const Patience = 10 * time.Second

// Settings are those of an upstream.
type Settings struct {
	Guard     config.Guard
	Staleness config.Staleness
	// MayBeEmpty are kinds that a good source may have no resource of.
	MayBeEmpty []mirror.Kind
}

// Watcher is told what the gate does by itself, at once. It may call Put and Drop.
type Watcher interface {
	// Dropped: the gate serves a key no more; old is what it served.
	Dropped(key mirror.Key, old *mirror.Resource)
	// Keeps: the gate serves a key that the source does not have any more. It may get other endpoints.
	Keeps(key mirror.Key)
	Told(Happening)
}

// Happening is something that a user has to know.
type Happening struct {
	What What
	// N counts resources, by kind in Gone. Why is the cause.
	N    int
	Why  string
	Gone map[mirror.Kind]int
	// After is how long a hold has lasted that its time has ended, zero for others.
	After time.Duration
	// Unreported: the hold was never told. Again: the source was asked before.
	Unreported, Again bool
}

// What is the kind of a Happening.
type What int

// Kinds of happenings.
const (
	HoldBegan  What = iota // N deletions are held
	HoldEnded              // no deletion is held any more: they have returned, or expired
	CarriedOut             // N held deletions are carried out
	Emptied                // all resources of the kinds in Gone are removed
	AskRepeat              // the source has to repeat what it has
	BecameStale
	Expired // N resources are not served any more
)

// Gate decides what is served of one upstream. Its methods are called one at a time.
type Gate struct {
	served   *mirror.Store
	settings Settings
	watch    Watcher
	rows     *table
	now      time.Time

	frozen bool
	keys   map[mirror.Key]entry
	// Synced: the source has given all its content at least once, also before a restart.
	Synced bool
	departures
	sizes   sizes
	round   round
	hold    *hold
	before  Clock // of the hold of a former process
	contact contact
}

// entry is a key that does not simply follow its source.
type entry struct {
	state  State
	since  time.Time     // of the departure
	number uint64        // of the departure: higher than those of all before it
	size   int           // of the departing resource, in bytes
	joined time.Duration // time of the hold's clock at the departure, zero for a departure before the hold
}

// departures counts the deletions that wait.
type departures struct {
	waiting, waitingBytes int
	newest                uint64 // number of the newest one
	changes               uint64 // grows with each change of what waits
}

// New returns a Gate that serves in a store, which is empty or has what its source is known to have.
func New(served *mirror.Store, s Settings, w Watcher) *Gate {
	return &Gate{
		served: served, watch: w, rows: newTable(transitions()), keys: map[mirror.Key]entry{}, sizes: newSizes(served.Counts()),
		departures: departures{changes: 1}, contact: contact{told: map[mirror.Kind]time.Time{}}, settings: s,
	}
}

// Renewed returns a Gate that begins with what g knows, but for the deletions that wait.
func (g *Gate) Renewed(w Watcher) *Gate {
	next := New(g.served, g.settings, w)
	next.now, next.frozen, next.Synced, next.contact, next.before = g.now, g.frozen, g.Synced, g.contact, g.HoldClock()
	for key, e := range g.keys {
		if !e.state.Waits() {
			next.keys[key] = e
		}
	}
	return next
}

// SetNow sets the time. It must not fall.
func (g *Gate) SetNow(now time.Time) { g.now = now }

// Begin has the gate serve all that was restored, into an empty store.
func (g *Gate) Begin(all []*mirror.Resource) {
	g.served.Begin(all)
	g.sizes = newSizes(g.served.Counts())
}

// on applies an event to a key, and returns the effect.
func (g *Gate) on(key mirror.Key, ev event) effect {
	was := g.keys[key]
	row := g.rows.of(g.frozen, was.state, ev)
	next := entry{state: row.to}
	switch {
	case row.to.Waits() && was.state.Waits():
		next = was
		next.state = row.to
	case row.to.Waits():
		g.newest++
		next.since, next.number = g.now, g.newest
		if r := g.served.Get(key); r != nil {
			next.size = len(r.DeltaEntry())
		}
	}
	if row.to == Held && was.state != Held {
		next.joined = g.hold.elapsed(g.now)
		g.hold.most = max(g.hold.most, g.waiting)
	}
	g.set(key, next)
	switch row.do {
	case drops:
		g.remove(key)
	case returns:
		g.hold.returned = g.now
	case bares:
		g.watch.Keeps(key)
	}
	return row.do
}

// set gives a key another entry, and counts what waits.
func (g *Gate) set(key mirror.Key, next entry) {
	was := g.keys[key].state.Waits()
	if was {
		g.waiting, g.waitingBytes = g.waiting-1, g.waitingBytes-g.keys[key].size
	}
	if next.state.Waits() {
		g.waiting, g.waitingBytes = g.waiting+1, g.waitingBytes+next.size
	}
	if was != next.state.Waits() {
		g.changes++
	}
	if g.keys[key] = next; next.state == Follows {
		delete(g.keys, key)
	}
}

// Wants notes that the source wants a resource, and reports whether the caller has to put it.
func (g *Gate) Wants(key mirror.Key, r *mirror.Resource) (put bool) {
	ev := wanted
	if g.frozen {
		if ev = other; g.served.Get(key).Equal(r) {
			ev = same
		}
	}
	do := g.on(key, ev)
	return (do == serves || do == returns) && !g.Withholds(key.Kind)
}

// Gone notes that the source has a key no more.
func (g *Gate) Gone(key mirror.Key) {
	switch {
	case g.served.Get(key) == nil:
		g.Follow(key) // at most, it was to be served after the freeze
	case !g.Withholds(key.Kind):
		g.on(key, gone)
		if g.hold != nil {
			g.on(key, holds)
		}
	}
}

// RuleOut notes that the rules leave a key out. It goes without the guard, at the end of a freeze at the latest.
func (g *Gate) RuleOut(key mirror.Key) {
	if g.served.Get(key) == nil {
		g.Follow(key)
		return
	}
	g.on(key, ruledOut)
}

// Unwanted notes that no record wants a served key, after the records of all keys were looked at. meant: the config leaves it
// out. unsure: the source may still have it. It reports whether it was left out now.
func (g *Gate) Unwanted(key mirror.Key, meant, unsure bool) (out bool) {
	state := g.keys[key].state
	switch {
	case unsure && !meant && state != RuledOut && state != Kept:
	case !g.frozen && meant && state.Waits(): // the source had deleted it before
	case meant || !g.frozen && state == RuledOut:
		g.RuleOut(key)
		return !g.frozen
	default:
		g.Gone(key)
	}
	return false
}

// Put serves a resource. It returns the stored one, the one before, and whether clients see a change.
func (g *Gate) Put(key mirror.Key, r *mirror.Resource) (stored, old *mirror.Resource, changed bool) {
	old = g.served.Get(key)
	if stored, changed = g.served.Put(r); old == nil {
		g.sizes.add(key.Kind)
	}
	return stored, old, changed
}

// Drop has a key served no more, whatever its state and without the guard. It reports whether it was served.
func (g *Gate) Drop(key mirror.Key) bool {
	g.Follow(key)
	return g.remove(key)
}

// Follow has a key follow its source again, whatever its state.
func (g *Gate) Follow(key mirror.Key) { g.set(key, entry{}) }

// Disown has a key that was dropped count as if it had never been there.
func (g *Gate) Disown(key mirror.Key) { g.sizes.disown(key.Kind) }

func (g *Gate) remove(key mirror.Key) bool {
	old := g.served.Get(key)
	if !g.served.Remove(key) {
		return false
	}
	g.sizes.remove(key.Kind)
	g.watch.Dropped(key, old)
	return true
}

// Meant has earlier sizes forgotten: the config, an operator or a freeze explains what has gone.
func (g *Gate) Meant() { g.sizes.forget() }

// Settle has new resources count as old ones.
func (g *Gate) Settle() { g.sizes.settle() }

// State returns the state of a key.
func (g *Gate) State(key mirror.Key) State { return g.keys[key].state }

// Departure returns since when a deletion waits, and its number.
func (g *Gate) Departure(key mirror.Key) (since time.Time, number uint64) {
	e := g.keys[key]
	return e.since, e.number
}

// Waiting returns the number of the deletions that wait for the guard, and their size in bytes.
func (g *Gate) Waiting() (n, bytes int) { return g.waiting, g.waitingBytes }

// Newest returns the number of the newest departure.
func (g *Gate) Newest() uint64 { return g.newest }

// Changes returns a number that grows with each change of what waits.
func (g *Gate) Changes() uint64 { return g.changes }

// Exceptions returns the number of keys that do not simply follow their source.
func (g *Gate) Exceptions() int { return len(g.keys) }

// Each calls f for each key that does not simply follow its source.
func (g *Gate) Each(f func(mirror.Key, State)) {
	for key, e := range g.keys {
		f(key, e.state)
	}
}

// Size returns the number of served resources.
func (g *Gate) Size() int { return g.sizes.all.size }

// SizeOf returns the number of served resources of a kind.
func (g *Gate) SizeOf(kind mirror.Kind) int { return g.served.Counts()[kind] }

// Freeze has what is served stay as it is.
func (g *Gate) Freeze() {
	for key := range g.keys {
		g.on(key, freezes)
	}
	g.frozen, g.hold = true, nil
}

// RollBack notes that a rollback has brought a key that was not served before, while frozen.
func (g *Gate) RollBack(key mirror.Key) { g.on(key, rollsBack) }

// Thaw ends a freeze. The caller then tells what the source wants of all keys.
func (g *Gate) Thaw() {
	g.Recount()
	g.frozen = false
	if c := &g.contact; !c.Has && c.Since.IsZero() {
		c.Since = g.now // what is served from now on expires
	}
}

// Recount forgets which keys of a frozen upstream differ from the source: the caller tells of all keys next.
// RuledOut and Kept stay. In a live upstream, where the caller has told of all keys, it forgets what a freeze has left.
func (g *Gate) Recount() {
	for key := range g.keys {
		g.on(key, recounts)
	}
}

// Frozen reports whether the upstream is frozen.
func (g *Gate) Frozen() bool { return g.frozen }
