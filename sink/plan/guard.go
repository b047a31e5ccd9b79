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

	"meshrelay/mirror"
)

// guard holds deletions that look like an accident.
type guard struct {
	// holding is set from the first hold until no held deletion is left: what comes in the meantime is held as well.
	holding  bool
	released map[uint64]struct{} // by deletionOf
	deleted  []time.Time         // within window
	held     Held
	sums     []uint64 // deletionOf of each of held.Keys
}

type verdict struct {
	verb   Verb
	reason string
}

// Held are the deletions that the guard holds. The zero Held has none.
type Held struct {
	// ID is a hash of Keys and the UIDs of the objects.
	ID     string
	Reason string
	Keys   []mirror.Key // sorted; do not change it
}

// deletionOf returns a hash of an object: a new object of the same name has another.
func deletionOf(key mirror.Key, uid string) uint64 {
	return xxh3.HashString(key.String() + " " + uid)
}

// Deleted notes a deletion, which counts for the guard.
func (c *Core) Deleted(now time.Time) { c.guard.deleted = append(c.guard.deleted, now) }

// Judge decides about all objects that are in the cluster and not desired. blocked returns why the upstreams of Gone have
// not certainly deleted a resource, empty if they have. Judge returns the keys whose Action may have changed.
func (c *Core) Judge(now time.Time, blocked func(mirror.Key) string) (changed []mirror.Key) {
	g := &c.guard
	g.deleted = slices.DeleteFunc(g.deleted, func(at time.Time) bool { return now.Sub(at) > window })
	next := make(map[mirror.Key]verdict, len(c.gone))
	var waiting []mirror.Key // may be deleted, and was not released
	released := map[uint64]struct{}{}
	for key := range c.gone {
		l := c.entries[key].live
		d := deletionOf(key, l.UID)
		free := contains(g.released, d)
		if free {
			released[d] = struct{}{}
		}
		if why := c.blocks(key, l, free, blocked); why != "" {
			next[key] = verdict{Skip, why}
		} else if free {
			next[key] = verdict{Delete, ""}
		} else {
			waiting = append(waiting, key)
		}
	}
	if c.ready {
		g.released = released // without those that were carried out
	}
	c.hold(waiting)
	for _, key := range waiting {
		next[key] = verdict{Delete, ""}
		if g.holding {
			next[key] = verdict{Hold, ReasonHeld}
		}
	}
	for key, v := range next {
		if c.gone[key] != v {
			changed = append(changed, key)
		}
	}
	c.gone = next
	slices.SortFunc(changed, compare)
	return changed
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
	case l.Sources == (Sources{}) || l.Sources.Value() == "":
		return ReasonSources
	}
	why := blocked(key)
	if why == "" && !c.settings.Prune && !released {
		why = ReasonPrune
	}
	return why
}

// hold has the guard hold the waiting deletions, or let them pass.
func (c *Core) hold(waiting []mirror.Key) {
	g := &c.guard
	n, done := len(waiting), len(g.deleted)
	of := c.owned - len(c.gone) + n + done // without those that are left: others may have made any number of them
	switch {
	case n == 0:
		// A hold ends only when it is known that nothing is left of it.
		g.holding = g.holding && !c.ready
		g.held.Reason = ""
	case c.desired == 0:
		g.holding, g.held.Reason = true, fmt.Sprintf("the view is empty, and the sink has %d objects", c.owned)
	case n+done > c.settings.Count && (n+done)*100 > c.settings.Percent*of:
		g.holding, g.held.Reason = true, fmt.Sprintf("%d of %d objects within %v", n+done, of, window)
	}
	g.held, g.sums = Held{Reason: g.held.Reason}, nil
	if !g.holding || n == 0 {
		return
	}
	slices.SortFunc(waiting, compare)
	h := xxh3.New()
	for _, key := range waiting {
		sum := deletionOf(key, c.entries[key].live.UID)
		g.sums = append(g.sums, sum)
		h.Write(binary.BigEndian.AppendUint64(nil, sum)) //nolint:errcheck // it never fails
	}
	g.held.Keys = waiting
	g.held.ID = strings.ToLower(base32.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, h.Sum64()))[:8])
	g.held.Reason = cmp.Or(g.held.Reason, "they came while others were held")
}

// Held returns the held deletions.
func (c *Core) Held() Held { return c.guard.held }

// ErrHold is the error of a release that does not name the present hold.
var ErrHold = errors.New("no such hold")

// Release lets the deletions of a hold pass at the next Judge. It returns their number.
func (c *Core) Release(id string) (int, error) {
	g := &c.guard
	switch {
	case g.held.ID == "":
		return 0, fmt.Errorf("%w: nothing is held", ErrHold)
	case id != g.held.ID:
		return 0, fmt.Errorf("%w: %d deletions are held as %s: look at them, and name that ID", ErrHold, len(g.held.Keys), g.held.ID)
	}
	for i, key := range g.held.Keys {
		if _, is := c.gone[key]; is { // else it was desired, or deleted, since the hold was shown
			g.released[g.sums[i]] = struct{}{}
		}
	}
	return len(g.held.Keys), nil
}

// Prune releases the deletions that only the guard or Settings.Prune prevented at the last Judge. It returns their number.
func (c *Core) Prune() (n int) {
	for key, v := range c.gone {
		if v.verb != Skip || v.reason == ReasonPrune {
			c.guard.released[deletionOf(key, c.entries[key].live.UID)] = struct{}{}
			n++
		}
	}
	return n
}

// Kept returns what New needs to continue after a restart: whether the guard holds, and the released deletions that
// are not carried out yet, sorted.
func (c *Core) Kept() (holding bool, released []uint64) {
	return c.guard.holding, slices.Sorted(maps.Keys(c.guard.released))
}

func contains(set map[uint64]struct{}, n uint64) bool {
	_, ok := set[n]
	return ok
}

func compare(a, b mirror.Key) int {
	return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
