package intake

import (
	"encoding/base32"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/decisions"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// Concerned reports whether there may be a Proposal.
func (in *Intake) Concerned() bool {
	a := in.agreed
	return a != nil && a.known && (in.held != nil || in.frozen != nil || a.Hold != nil || a.Without != nil)
}

// Proposal returns the record that the replicas should append next, from what this one has. It has no ID. ok is false if
// there is none.
func (in *Intake) Proposal(now time.Time) (r decisions.Record, ok bool) {
	if !in.Concerned() {
		return r, false
	}
	in.advance(now)
	a := in.agreed
	r = decisions.Record{Upstream: in.name, Replica: a.replica}
	switch f := in.frozen; {
	case f != nil && f.Decision == "" && a.Frozen == nil:
		r.Kind, r.Reason = decisions.Freeze, f.Reason
		if f.Revision != 0 {
			r.Kind = decisions.Rollback
		}
		r.Content, r.Number = in.ServedContent()
		if !f.Until.IsZero() {
			r.Seconds = max(int64(f.Until.Sub(now)/time.Second), 1)
		}
		return r, true
	case f != nil && a.Frozen != nil && f.Decision == a.Frozen.ID && !f.Until.IsZero() && !now.Before(f.Until) && in.stale.inContact:
		r.Kind, r.Ends, r.Reason = decisions.Unfreeze, a.Frozen.ID, "the time of the freeze is over"
		return r, true
	case a.Without != nil && a.Without.Sequence != 0 && in.told:
		r.Kind, r.Ends = decisions.Synced, a.Without.ID
		return r, true
	case f != nil:
		return r, false
	}
	return in.proposeHold(r)
}

// proposeHold adds what is proposed about holds.
func (in *Intake) proposeHold(r decisions.Record) (decisions.Record, bool) {
	a, h := in.agreed, in.held
	if h != nil {
		r.Content, r.Number = in.namedHold().content, len(in.leaving)
		a.own = a.own || h.own
	}
	if a.Hold == nil {
		if r.Kind = decisions.Hold; h != nil {
			r.Reason = text.Shorten(h.why, maxReason/2)
			a.claims = a.claims || h.own
		}
		return r, h != nil && h.own
	}
	r.Ends = a.Hold.ID
	switch {
	case !a.own && !in.isOrphan():
		return r, false
	case h == nil:
		r.Kind = decisions.Returned
		return r, len(in.leaving) == 0 && !in.syncing && !in.unswept && in.complete && in.stale.inContact
	}
	r.Kind = h.wants
	return r, h.wants != "" && h.wantsOf == r.Content
}

// isOrphan reports whether the open hold has lasted longer here than holds do. Its replica may be gone, so that others end
// it by what they have.
func (in *Intake) isOrphan() bool {
	return in.guard.HoldFor > 0 && in.stale.inContact && in.now.Sub(in.agreed.since) >= in.guard.HoldFor.D()
}

// Releases returns the record of an order to release what is held now, or what another replica holds. It has no ID.
func (in *Intake) Releases(o Order) decisions.Record {
	r := decisions.Record{Kind: decisions.Release, Upstream: in.name}
	if in.agreed != nil && in.agreed.Hold != nil {
		h := in.agreed.Hold
		r.Ends, r.Content, r.Number = h.ID, h.Content, h.Number
	}
	if in.held != nil {
		r.Content, r.Number = in.namedHold().content, len(in.leaving)
	}
	for _, part := range o.Only {
		r.Parts = append(r.Parts, part.String())
	}
	return r
}

// HeldResources returns what is served although the source has deleted it, if the deletions are held.
func (in *Intake) HeldResources() (out []*mirror.Resource) {
	if in.held == nil {
		return nil
	}
	for _, key := range in.namedHold().keys {
		if r := in.served.Get(key); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// ServedContent returns the content of all that is served, and its number.
func (in *Intake) ServedContent() (content string, number int) {
	var all []*mirror.Resource
	in.eachServed(func(r *mirror.Resource) { all = append(all, r) })
	return ContentOf(all), len(all)
}

// ContentOf identifies the keys and versions of resources, in any order: it is the same on all replicas.
func ContentOf(all []*mirror.Resource) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b *mirror.Resource) int { return mirror.CompareKeys(a.Key(), b.Key()) })
	sum := xxh3.New()
	for _, r := range all {
		addContent(sum, r.Key(), r.Version())
	}
	return contentOf(sum)
}

// addContent adds a resource to the sum of a content.
func addContent(sum *xxh3.Hasher, key mirror.Key, version string) {
	for _, part := range []string{key.Kind.Group, key.Kind.Kind, key.Namespace, key.Name, version} {
		_, _ = sum.WriteString(part) // it never fails
		_, _ = sum.Write([]byte{0})
	}
}

func contentOf(sum *xxh3.Hasher) string {
	digest := sum.Sum128().Bytes()
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(digest[:]))
}

// shortContent is the form of a content that people see: the ID of a hold.
func shortContent(content string) string { return content[:min(8, len(content))] }
