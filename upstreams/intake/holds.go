package intake

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

const (
	maxNamedHolds = 32
	maxExamples   = 10
)

// holdNames are the IDs of the open hold, by which operators release it.
type holdNames struct {
	hold, changes uint64 // of the gate, when now was made
	now           namedHold
	lookedAt      []namedHold // what an operator has seen, oldest first
}

type namedHold struct {
	id     string
	keys   []mirror.Key // only in the newest hold
	number uint64       // of the newest departure then
}

// namedHold returns the ID and the sorted keys of the waiting deletions. The ID is a hash of the
// keys and versions, so that it is the same on all replicas.
func (in *Intake) namedHold() namedHold {
	n := &in.names
	if h, is := in.gate.Hold(); is && h.Number != n.hold {
		*n = holdNames{hold: h.Number}
	}
	if n.changes == in.gate.Changes() {
		return n.now
	}
	n.changes = in.gate.Changes()
	var keys []mirror.Key
	in.gate.Each(func(key mirror.Key, s gate.State) {
		if s.Waits() {
			keys = append(keys, key)
		}
	})
	slices.SortFunc(keys, mirror.CompareKeys)
	sum := records.NewSum()
	for _, key := range keys {
		r, version := in.served.Get(key), ""
		if !in.records.IsAddressed(r) { // addresses are no part of it
			version = r.Version()
		}
		sum.Add(key, version)
	}
	n.now = namedHold{id: sum.String()[:8], keys: keys, number: in.gate.Newest()}
	n.lookedAt = slices.DeleteFunc(n.lookedAt, func(old namedHold) bool { return old.id == n.now.id })
	if len(n.lookedAt) >= maxNamedHolds {
		n.lookedAt = slices.Delete(n.lookedAt, 0, 1)
	}
	n.lookedAt = append(n.lookedAt, namedHold{id: n.now.id, number: n.now.number})
	return n.now
}

// Holding reports whether the guard holds deletions.
func (in *Intake) Holding() bool { return in.gate.Holding() }

// HoldIDs returns the IDs that the open hold has had, the newest first.
func (in *Intake) HoldIDs() (ids []string) {
	if !in.gate.Holding() {
		return nil
	}
	in.namedHold()
	for _, n := range slices.Backward(in.names.lookedAt) {
		ids = append(ids, n.id)
	}
	return ids
}

// HoldSince returns when the open hold has begun, zero if it has and had another ID.
func (in *Intake) HoldSince(id string) time.Time {
	h, _ := in.gate.Hold()
	if !slices.Contains(in.HoldIDs(), id) {
		return time.Time{}
	}
	return h.Since
}

// grown returns an error if more is held than when the hold had this ID.
func (in *Intake) grown(id string) error {
	now := in.namedHold()
	if id == now.id {
		return nil
	}
	i := slices.IndexFunc(in.names.lookedAt, func(n namedHold) bool { return n.id == id })
	if i < 0 {
		return NotPossible("upstream %s: hold %.32q is not known; what is held now is %s: look again with \"relay upstreams --held %s\"", in.cfg.name, id, now.id, in.cfg.name)
	}
	var more []string
	for _, key := range now.keys {
		if _, number := in.gate.Departure(key); number > in.names.lookedAt[i].number {
			more = append(more, "  + "+key.String())
		}
	}
	if len(more) == 0 {
		return nil
	}
	shown := more[:min(len(more), maxShown)]
	if n := len(more) - len(shown); n > 0 {
		shown = append(shown, fmt.Sprintf("  and %d more", n))
	}
	return NotPossible("upstream %s: hold %s has grown by %d since, and is %s now: look again with \"relay upstreams --held %s\"\n%s",
		in.cfg.name, id, len(more), now.id, in.cfg.name, strings.Join(shown, "\n"))
}
