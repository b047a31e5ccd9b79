package plan

import (
	"cmp"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"k8s.io/apimachinery/pkg/util/sets"

	"meshrelay/mirror"
)

// guard holds deletions that look like an accident.
type guard struct {
	// holding is set from the first hold until no held deletion is left: what comes in the meantime is held as well.
	holding bool
	// undecided are deletions that were held, also those that an upstream prevents now. released may go.
	undecided, released sets.Set[uint64] // by deletionOf
	// passed are deletions that were not held.
	passed map[uint64]Passed
	held   Held
	sums   []uint64 // deletionOf of each that is held
}

// maxPassed bounds guard.passed. A site has fewer objects than the guard would need to let so many pass.
const maxPassed = 100_000

// Kept is what a Core keeps over a restart.
type Kept struct {
	// Holding is set while the guard holds deletions. Undecided are hashes of those, Released of those that may go.
	// Passed are those that went without a hold, with their times.
	Holding   bool              `json:"holding,omitempty"`
	Undecided []uint64          `json:"undecided,omitempty"`
	Released  []uint64          `json:"released,omitempty"`
	Passed    map[uint64]Passed `json:"gone,omitempty"`
}

// Passed is a deletion that was not held.
type Passed struct {
	Kind mirror.Kind `json:"kind"`
	At   time.Time   `json:"at"` // when the object was found gone, zero before
}

// fewOfKind is how many objects may be all of their kind, and go without a person.
const fewOfKind = 2

// Held are the deletions that the guard holds. The zero Held has none.
type Held struct {
	// ID is a hash of the names and UIDs of the objects.
	ID       string `json:"id"`
	Reason   string `json:"reason"`
	Removals int    `json:"removals"`
}

// deletionOf returns a hash of an object: a new object of the same name has another.
func deletionOf(key mirror.Key, uid string) uint64 {
	return xxh3.HashString(key.String() + " " + uid)
}

// Judge decides about all objects that are in the cluster and not desired. blocked returns why the upstreams of Gone have
// not certainly deleted a resource, empty if they have. Judge returns the keys whose Action may have changed.
func (c *Core) Judge(now time.Time, blocked func(mirror.Key) string) (changed []mirror.Key) {
	g := &c.guard
	next := make(map[mirror.Key]string, len(c.gone))
	waiting := map[mirror.Key]uint64{} // may be deleted, and was not released
	there := sets.Set[uint64]{}        // may be deleted, now or later
	left := map[mirror.Kind]int{}      // will not be deleted, or is about to go
	for key := range c.gone {
		l := c.entries[key].live
		d := deletionOf(key, l.UID)
		free := g.released.Has(d)
		if next[key] = c.blocks(key, l, free, blocked); next[key] == "" && !free {
			waiting[key] = d
		}
		switch next[key] {
		case ReasonDeleting, ReasonManager, ReasonSources:
			left[key.Kind]++
		default:
			there.Insert(d)
		}
	}
	if c.ready { // else it is not known what was carried out
		g.released = g.released.Intersection(there)
		g.undecided = g.undecided.Intersection(there).Difference(g.released)
	}
	done := g.count(now, there)
	c.hold(slices.Sorted(maps.Values(waiting)), done, c.lastOfKind(waiting, done, left))
	for key, why := range next {
		switch d, waits := waiting[key]; {
		case waits && g.holding:
			why = ReasonHeld
			g.undecided.Insert(d)
			delete(g.passed, d)
		case waits && len(g.passed) < maxPassed:
			g.passed[d] = Passed{Kind: key.Kind}
		}
		if c.gone[key] != why {
			changed = append(changed, key)
		}
		c.gone[key] = why
	}
	return changed
}

// count returns how many deletions of each kind have passed, and were carried out within window.
func (g *guard) count(now time.Time, there sets.Set[uint64]) map[mirror.Kind]int {
	done := map[mirror.Kind]int{}
	for d, p := range g.passed {
		if p.At.IsZero() {
			p.At = now
		}
		switch {
		case there.Has(d):
			g.passed[d] = Passed{Kind: p.Kind}
		case now.Sub(p.At) > window:
			delete(g.passed, d)
		default:
			g.passed[d] = p
			done[p.Kind]++
		}
	}
	return done
}

// lastOfKind returns why a kind would have no object after the waiting deletions, empty if each keeps some, or had few.
func (c *Core) lastOfKind(waiting map[mirror.Key]uint64, done, left map[mirror.Kind]int) (reason string) {
	going := map[mirror.Kind]int{}
	for key := range waiting {
		going[key.Kind]++
	}
	for kind, n := range going {
		if all := n + done[kind]; n == c.ownedOf[kind]-left[kind] && all > fewOfKind {
			reason = max(reason, fmt.Sprintf("all %d %s within %v", all, kind, window))
		}
	}
	return reason
}

// blocks returns why an object must not be deleted, whatever the guard decides.
func (c *Core) blocks(key mirror.Key, l *Live, released bool, blocked func(mirror.Key) string) string {
	switch {
	case !c.ready:
		return ReasonStarting
	case l.Deleting:
		return ReasonDeleting
	case l.Fields == 0:
		return ReasonManager
	case l.Sources == "":
		return ReasonSources
	}
	why := blocked(key)
	if why == "" && !c.settings.Prune && !released {
		why = ReasonPrune
	}
	return why
}

// hold has the guard hold the waiting deletions, or let them pass. Others have passed, by kind. last is why a kind would have no
// object.
func (c *Core) hold(waiting []uint64, passed map[mirror.Kind]int, last string) {
	g := &c.guard
	n, done, reason := len(waiting), 0, g.held.Reason
	for _, of := range passed {
		done += of
	}
	of := c.owned - len(c.gone) + n + done // without those that are left: others may have made any number of them
	switch {
	case n == 0:
		// A hold ends only when it is known that nothing is left of it.
		g.holding = g.holding && (!c.ready || len(g.undecided) > 0)
	case c.desired == 0:
		g.holding, reason = true, fmt.Sprintf("the view is empty, and the sink has %d objects", c.owned)
	case n+done > c.settings.Count && (n+done)*100 > c.settings.Percent*of:
		g.holding, reason = true, fmt.Sprintf("%d of %d objects within %v", n+done, of, window)
	case c.settings.HoldAll:
		g.holding, reason = true, "the sink was adopted, and nobody has released a deletion since"
	case last != "":
		g.holding, reason = true, last
	}
	if g.held = (Held{}); !g.holding || n == 0 {
		return
	}
	var all []byte
	for _, sum := range waiting {
		all = binary.BigEndian.AppendUint64(all, sum)
	}
	id := base32.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, xxh3.Hash(all)))[:8]
	g.held, g.sums = Held{strings.ToLower(id), cmp.Or(reason, "they were held before, or came while others were"), n}, waiting
}

// Held returns the held deletions.
func (c *Core) Held() Held { return c.guard.held }

// Release lets the deletions of a hold pass at the next Judge. It returns their number.
func (c *Core) Release(id string) (int, error) {
	g := &c.guard
	switch {
	case g.held.ID == "":
		return 0, errors.New("nothing is held")
	case id != g.held.ID:
		return 0, fmt.Errorf("%d deletions are held as %s: look at them, and name that ID", g.held.Removals, g.held.ID)
	}
	g.released.Insert(g.sums...)
	return g.held.Removals, nil
}

// Prune releases the deletions that only the guard or Settings.Prune prevented at the last Judge. It returns their number.
func (c *Core) Prune() (n int) {
	for key, why := range c.gone {
		if why == "" || why == ReasonHeld || why == ReasonPrune {
			c.guard.released.Insert(deletionOf(key, c.entries[key].live.UID))
			n++
		}
	}
	return n
}

// Unrelease takes all releases back.
func (c *Core) Unrelease() { clear(c.guard.released) }

// Kept returns what New needs to continue after a restart.
func (c *Core) Kept() Kept {
	g := &c.guard
	return Kept{g.holding, sets.List(g.undecided), sets.List(g.released), maps.Clone(g.passed)}
}
