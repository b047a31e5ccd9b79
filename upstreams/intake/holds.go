package intake

import (
	"cmp"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/gate"
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
		if s == gate.Departing || s == gate.Held {
			keys = append(keys, key)
		}
	})
	slices.SortFunc(keys, mirror.CompareKeys)
	sum := xxh3.New()
	for _, key := range keys {
		r, version := in.served.Get(key), ""
		f := in.former[key]
		if f == nil { // it is served without a record, from the disk or by a rollback
			f = &record{}
		}
		if !in.rules.isAddressed(r, f.original, f.relayed) { // addresses are no part of it
			version = r.Version()
		}
		addContent(sum, key, version)
	}
	n.now = namedHold{id: textOf(sum)[:8], keys: keys, number: in.gate.Newest()}
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

// ContentOf identifies the keys and versions of records, alike on all replicas. Addresses are no part of it, and neither are
// siblings, which come with them.
func (im *Rules) ContentOf(all []state.Record) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b state.Record) int { return mirror.CompareKeys(a.Resource.Key(), b.Resource.Key()) })
	sum := xxh3.New()
	for _, rec := range all {
		r, original := rec.Resource, cmp.Or(rec.Original, rec.Resource)
		if r.HasAnnotation(mirror.SiblingAnnotation) {
			continue
		}
		if im.isAddressed(r, original, im.believed(original)) {
			if im.isMade(original) {
				r = original // its ports go with the endpoints
			}
			if bare, err := services.Without(r); err == nil {
				r = bare
			}
		}
		addContent(sum, rec.Resource.Key(), r.Version())
	}
	return textOf(sum)
}

// addContent adds a resource to the sum of a content.
func addContent(sum *xxh3.Hasher, key mirror.Key, version string) {
	for _, part := range []string{key.Kind.Group, key.Kind.Kind, key.Namespace, key.Name, version} {
		_, _ = sum.WriteString(part) // it never fails
		_, _ = sum.Write([]byte{0})
	}
}

func textOf(sum *xxh3.Hasher) string {
	digest := sum.Sum128().Bytes()
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(digest[:]))
}

// grown returns an error if more is held than when the hold had this ID.
func (in *Intake) grown(id string) error {
	now := in.namedHold()
	if id == now.id {
		return nil
	}
	i := slices.IndexFunc(in.names.lookedAt, func(n namedHold) bool { return n.id == id })
	if i < 0 {
		return NotPossible("upstream %s: hold %.32q is not known; what is held now is %s: look again with \"relay upstreams --held %s\"", in.name, id, now.id, in.name)
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
		in.name, id, len(more), now.id, in.name, strings.Join(shown, "\n"))
}
