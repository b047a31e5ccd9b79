package upstreams

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// lacking follows the ID of the rollback of an upstream that has no revision with its content.
const lacking = " lacking"

// applyOrders has the known orders in force here: each as an order that was given here.
func (m *Manager) applyOrders(ctx context.Context) {
	r := m.replicas
	r.applying.Lock()
	defer r.applying.Unlock()
	if m.reading() {
		return // Restore would overwrite them
	}
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	lacks, changed, released, served := map[string]string{}, false, []string(nil), m.servedWithout()
	for _, u := range m.all() {
		name := u.cfg.Name
		e := known.Upstreams[name]
		did, why := m.applyFreeze(ctx, u.upstream, name, e, served == nil && !u.onDisk)
		for _, one := range e.Released {
			is, grown := applyRelease(u.upstream, one, known.Until[name+one.ID()])
			if why = cmp.Or(why, grown); is {
				did, released = true, append(released, name+one.ID())
			}
		}
		if changed = changed || did; why != "" {
			lacks[name] = why
		}
	}
	if changed {
		if err := m.flush(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("orders of the replicas not on disk yet", "err", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lacks = lacks
	for _, one := range released { // once it is on disk: a release that a crash undoes is carried out again
		r.known.Until[one] = time.Time{}
	}
	if len(released) > 0 {
		r.save()
	}
}

// applyFreeze freezes, rolls back or unfreezes an upstream, unless it is so already. empty: its content is not here. why is
// why the order is not in force.
func (m *Manager) applyFreeze(ctx context.Context, u *upstream, name string, e orders.Entry, empty bool) (did bool, why string) {
	have, id := locked(u, (*intake.Intake).Frozen), e.ID()
	switch {
	case e.Frozen == nil && (have == nil || have.Order == "" || e.Counter == 0): // what is frozen here alone is no order yet
		return false, ""
	case e.Frozen == nil:
		u.Tell(intake.Unfreeze{Order: intake.Order{Force: true, Reason: have.Reason}})
		return true, ""
	case have == nil || strings.TrimSuffix(have.Order, lacking) != id:
		o, records := intake.Order{ID: id, Since: e.Frozen.Since, Reason: e.Frozen.Reason, Empty: empty}, []state.Record(nil)
		if e.Frozen.Content != "" {
			if o.To, records = m.revisionOf(ctx, name, e.Frozen.Content); o.To == 0 {
				o.ID += lacking
			}
		}
		if o.To != 0 {
			u.Tell(intake.Rollback{Order: o, Records: records})
		} else {
			u.Tell(intake.Freeze{Order: o})
		}
		have, did = locked(u, (*intake.Intake).Frozen), true
	}
	switch {
	case have.Empty:
		why = fmt.Sprintf("it is frozen, and this replica has nothing of it: clients wait for \"relay unfreeze %s\", or here for \"relay serve-without %[1]s\"", name)
	case have.Order == id:
	case have.Revision != 0:
		why = fmt.Sprintf("it is at revision %d by an order here, because no revision on this disk has the content of the rollback", have.Revision)
	default:
		why = "it is frozen as it was, because no revision on this disk has the content of the rollback" + m.nearest(name, e.Frozen.Of)
	}
	return did, why
}

// applyRelease carries out a release if it is for the open hold of an upstream. why is why it can not.
func applyRelease(u *upstream, one orders.Release, until time.Time) (did bool, why string) {
	since := locked(u, func(in *intake.Intake) time.Time { return in.HoldSince(one.Hold) })
	if since.IsZero() || since.After(until) {
		return false, ""
	}
	o := intake.Order{Hold: one.Hold, Reason: one.Reason}
	var err error
	for _, text := range one.Only {
		part, bad := intake.ParsePart(text)
		o.Only, err = append(o.Only, part), cmp.Or(err, bad)
	}
	if err == nil {
		_, err = u.stepOver(intake.Release{Order: o})
	}
	if err != nil {
		return false, fmt.Sprintf("hold %s is not released: %v", one.Hold, err)
	}
	return true, ""
}

// revisionOf returns the newest revision with a content, 0 for none.
func (m *Manager) revisionOf(ctx context.Context, upstream, content string) (uint64, []state.Record) {
	if err := m.flush(ctx); err != nil { // first write what is served
		m.log.Warn("revisions not on disk yet", "upstream", upstream, "err", err)
	}
	revisions, _ := m.History(upstream) // without history there is none
	for _, rev := range revisions {
		if !strings.HasPrefix(content, fmt.Sprint(rev.Resources, "-")) { // most differ in this
			continue
		}
		if records, err := m.keeper.At(upstream, rev.ID); err == nil && contentOf(records) == content {
			return rev.ID, records
		}
	}
	return 0, nil
}

// nearest names the revisions of an upstream that are nearest to a time.
func (m *Manager) nearest(upstream string, to time.Time) string {
	revisions, _ := m.History(upstream)
	if len(revisions) == 0 {
		return ", and it has no history"
	}
	slices.SortFunc(revisions, func(a, b state.Revision) int { return cmp.Compare(a.Time.Sub(to).Abs(), b.Time.Sub(to).Abs()) })
	text := "; nearest to it in time are"
	for _, rev := range revisions[:min(len(revisions), 3)] {
		text += fmt.Sprintf(" %d of %s,", rev.ID, rev.Time.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s and \"relay rollback %s --to\" takes one for this replica", text, upstream)
}

// contentOf identifies the content of records, alike on all replicas.
func contentOf(records []state.Record) string {
	var all []*mirror.Resource
	for _, r := range records {
		all = append(all, r.Resource)
	}
	return intake.ContentOf(all)
}
