// Package plan decides what a sink writes and deletes, from what it wants to have in a cluster and what the cluster
// has. It has no I/O, goroutine or clock.
//
// The package must not know how objects are read or written.
package plan

import (
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"k8s.io/apimachinery/pkg/util/sets"

	"meshrelay/mirror"
)

// Digest is a hash of all that a sink applies of an object.
type Digest = xxh3.Uint128

// Live is what is known of an object of the cluster.
type Live struct {
	UID, Version string
	// Sink is the value of the label, empty for an object without it.
	Sink   string
	Digest Digest
	// Fields is a hash of the fields that the sink's manager owns, 0 if it owns none.
	Fields uint64
	// Drifted is set if another manager may have changed what the sink applied; Manager is its name.
	Drifted bool
	Manager string
	// Added is set if other managers own fields of the spec that the sink does not.
	Added bool
	// Sources are its upstreams, sorted and joined by commas.
	Sources  string
	Relay    string // another one that has written it
	Deleting bool
}

// Settings are those of a sink. Percent and Count are its guard.
type Settings struct {
	Name               string
	Prune, Adopt, Take bool
	Percent, Count     int
	Frozen             bool
	HoldAll            bool // the guard holds every deletion
}

// Verb is what is to be done with an object.
type Verb int

// These are the verbs of an Action. Skip is not done, and has a reason; Hold is Skip by the guard.
const (
	Nothing Verb = iota
	Create
	Apply
	Delete
	Hold
	Skip
)

// Writes reports whether a verb is a request that changes an object.
func (v Verb) Writes() bool { return v == Create || v == Apply || v == Delete }

// Action is the next request for one object. It is for the object with UID and Version.
type Action struct {
	Verb         Verb
	UID, Version string
	Force        bool // take fields from other managers
	Drift        bool // Apply puts right what another manager has changed
	Reason       string
}

// Reasons of Skip and Hold.
const (
	ReasonForeign  = "foreign"
	ReasonFrozen   = "frozen"
	ReasonDeleting = "being deleted"
	ReasonHeld     = "held by the guard"
	ReasonPrune    = "prune is off"
	ReasonManager  = "its manager is not the sink"
	ReasonCopies   = "upstreams have it, and the merge policy serves none of their copies"
	ReasonStarting = "not everything is read yet"
	ReasonSources  = "its upstreams are not known, or another relay has written it"
)

// window is how long deletions count for the guard.
const window = 10 * time.Minute

// Core has the state of a sink. One goroutine at a time may call its methods. The order of calls with different
// keys has no effect.
type Core struct {
	settings Settings
	ready    bool
	entries  map[mirror.Key]entry
	desired  int
	gone     map[mirror.Key]string // of the sink, and not desired: why it stays, empty if it is to be deleted
	owned    int
	ownedOf  map[mirror.Kind]int
	guard    guard
}

type entry struct {
	want *Digest
	live *Live
}

// New returns a Core that knows of no object, and continues with what an earlier one has kept.
func New(s Settings, k Kept, now time.Time) *Core {
	c := &Core{settings: s, entries: map[mirror.Key]entry{}, gone: map[mirror.Key]string{}, ownedOf: map[mirror.Kind]int{}}
	c.guard = guard{holding: k.Holding, undecided: sets.New(k.Undecided...), released: sets.New(k.Released...), passed: map[uint64]Passed{}}
	for d, p := range k.Passed {
		if !p.At.IsZero() { // the clock may have jumped: each counts for half of the window at least, and for all of it at most
			p.At = now.Add(-min(max(now.Sub(p.At), 0), window/2))
		}
		c.guard.passed[d] = p
	}
	return c
}

// SetReady tells that all desired objects and all objects of the sink were told. Nothing is deleted before.
func (c *Core) SetReady(ready bool) { c.ready = ready }

// Set sets whether nothing is written or deleted, and whether every deletion is held, or those only that the guard holds by
// itself.
func (c *Core) Set(frozen, holdAll bool) { c.settings.Frozen, c.settings.HoldAll = frozen, holdAll }

// Want sets the digest of what is desired of a key, nil for nothing.
func (c *Core) Want(key mirror.Key, d *Digest) {
	e := c.entries[key]
	if e.want != nil {
		c.desired--
	}
	if e.want = d; d != nil {
		c.desired++
	} else if !c.owns(e.live) {
		e.live = nil // nobody tells of it any more
	}
	c.set(key, e)
}

// See sets what the cluster has of a key, nil for nothing.
func (c *Core) See(key mirror.Key, l *Live) {
	e := c.entries[key]
	if c.owns(e.live) {
		c.owned--
		c.ownedOf[key.Kind]--
	}
	if e.live = l; c.owns(l) {
		c.owned++
		c.ownedOf[key.Kind]++
	}
	c.set(key, e)
}

func (c *Core) owns(l *Live) bool { return l != nil && l.Sink == c.settings.Name }

func (c *Core) set(key mirror.Key, e entry) {
	switch {
	case e.want != nil:
		c.entries[key] = e
		delete(c.gone, key)
		if e.live != nil && len(c.guard.released)+len(c.guard.passed) > 0 { // a release is for one deletion
			d := deletionOf(key, e.live.UID)
			delete(c.guard.released, d)
			delete(c.guard.passed, d)
		}
	case c.owns(e.live):
		c.entries[key] = e
		c.gone[key] = ReasonStarting // also if it was judged: it may be another object now
	default:
		if c.entries[key] = e; e.live == nil {
			delete(c.entries, key)
		}
		delete(c.gone, key)
	}
}

// Live returns what the cluster has of a key, nil for nothing.
func (c *Core) Live(key mirror.Key) *Live { return c.entries[key].live }

// Wanted returns the digest of what is desired of a key, nil for nothing.
func (c *Core) Wanted(key mirror.Key) *Digest { return c.entries[key].want }

// Wants reports whether an object of a kind is desired.
func (c *Core) Wants(kind mirror.Kind) bool {
	for key, e := range c.entries {
		if key.Kind == kind && e.want != nil {
			return true
		}
	}
	return false
}

// Counts returns how many objects are desired, and how many the sink has in the cluster.
func (c *Core) Counts() (desired, owned int) { return c.desired, c.owned }

// Keys calls f with each key that is desired or in the cluster.
func (c *Core) Keys(f func(mirror.Key)) {
	for key := range c.entries {
		f(key)
	}
}

// Gone returns the objects of the sink that are not desired, with their upstreams.
func (c *Core) Gone() map[mirror.Key][]string {
	gone := make(map[mirror.Key][]string, len(c.gone))
	for key := range c.gone {
		if s := c.entries[key].live.Sources; s != "" {
			gone[key] = strings.Split(s, ",")
		}
	}
	return gone
}

// Next returns what is to be done for a key.
func (c *Core) Next(key mirror.Key) Action {
	e := c.entries[key]
	a := c.next(key, e)
	if e.live != nil {
		a.UID, a.Version = e.live.UID, e.live.Version
	}
	if c.settings.Frozen && a.Verb.Writes() {
		return Action{Verb: Skip, Reason: ReasonFrozen}
	}
	return a
}

func (c *Core) next(key mirror.Key, e entry) Action {
	l := e.live
	switch {
	case e.want == nil && !c.owns(l):
		return Action{}
	case e.want == nil:
		switch why := c.gone[key]; {
		case why == ReasonHeld, why == "" && (c.desired == 0 || c.settings.HoldAll) && !c.guard.released.Has(deletionOf(key, l.UID)): // it has become so since Judge
			return Action{Verb: Hold, Reason: ReasonHeld}
		case why != "":
			return Action{Verb: Skip, Reason: why}
		}
		return Action{Verb: Delete}
	case l == nil:
		return Action{Verb: Create}
	case l.Deleting:
		return Action{Verb: Skip, Reason: ReasonDeleting}
	case !c.owns(l):
		if c.settings.Adopt && l.Sink == "" {
			return Action{Verb: Apply, Force: true}
		}
		return Action{Verb: Skip, Reason: ReasonForeign}
	case l.Digest != *e.want || l.Drifted:
		return Action{Verb: Apply, Force: c.settings.Take, Drift: l.Drifted}
	}
	return Action{}
}
