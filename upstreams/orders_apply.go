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
	lacks, changed, served := map[string]string{}, false, m.servedWithout()
	for _, u := range m.all() {
		name := u.cfg.Name
		o := intake.Order{Empty: served == nil && !u.onDisk}
		r.mu.Lock()
		e := r.known.Upstreams[name]
		if r.given == name {
			o = intake.Order{Operator: r.giver}
		}
		r.mu.Unlock()
		did, why := m.applyFreeze(ctx, u.upstream, name, m.promoted(u.upstream, name, e), o)
		released, grown := m.applyReleases(u.upstream, name, e, o)
		changed = changed || did || released
		if why = cmp.Or(why, grown); why != "" {
			lacks[name] = why
		}
	}
	if changed {
		if err := m.flush(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("orders of the replicas not on disk yet", "err", err)
		}
	}
	r.mu.Lock()
	r.lacks = lacks
	r.mu.Unlock()
	mirror.Signal(r.poke)
}

// promoted returns the entry of an upstream. A freeze that is not among the orders, from when the relay was alone or from a
// disk without them, becomes one.
func (m *Manager) promoted(u *upstream, name string, e orders.Entry) orders.Entry {
	have := locked(u, (*intake.Intake).Frozen)
	if have == nil || e.Frozen != nil || have.Order != "" && e.Counter > 0 {
		return e
	}
	f := orders.Frozen{Since: have.Since.Truncate(time.Second), Reason: have.Reason}
	if have.Revision != 0 {
		f.Content, f.Of = locked(u, (*intake.Intake).Content), f.Since
	}
	r := m.replicas
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known.State = r.known.Freeze(name, &f)
	r.save()
	e = r.known.Upstreams[name]
	u.Tell(intake.Named{Order: e.ID()})
	return e
}

// applyFreeze freezes, rolls back or unfreezes an upstream, unless it is so already. o has who gives the order. why is why it
// is not in force.
func (m *Manager) applyFreeze(ctx context.Context, u *upstream, name string, e orders.Entry, o intake.Order) (did bool, why string) {
	have, id := locked(u, (*intake.Intake).Frozen), e.ID()
	switch {
	case e.Frozen == nil && have == nil:
		return false, ""
	case e.Frozen == nil:
		u.Tell(intake.Unfreeze{Order: intake.Order{Force: true, Operator: o.Operator, Reason: have.Reason}})
		return true, ""
	case have == nil || strings.TrimSuffix(have.Order, lacking) != id:
		o.ID, o.Since, o.Reason, did = id, e.Frozen.Since, e.Frozen.Reason, true
		var records []state.Record
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
		have = locked(u, (*intake.Intake).Frozen)
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

// applyReleases carries out the releases that are for the open hold of an upstream. why is why one is not.
func (m *Manager) applyReleases(u *upstream, name string, e orders.Entry, o intake.Order) (did bool, why string) {
	r := m.replicas
	for _, one := range e.Released {
		r.mu.Lock()
		until := r.known.Until[name+one.ID()]
		r.mu.Unlock()
		if since := locked(u, func(in *intake.Intake) time.Time { return in.HoldSince(one.Hold) }); since.IsZero() || since.After(until) {
			continue
		}
		err := error(nil)
		o.Hold, o.Reason, o.Only = one.Hold, one.Reason, nil
		for _, text := range one.Only {
			part, bad := intake.ParsePart(text)
			o.Only, err = append(o.Only, part), cmp.Or(err, bad)
		}
		if err == nil {
			_, err = u.stepOver(intake.Release{Order: o})
		}
		if err != nil {
			why = fmt.Sprintf("hold %s is not released: %v", one.Hold, err)
			continue
		}
		did = true
		r.mu.Lock()
		r.known.Until[name+one.ID()] = time.Time{}
		r.save()
		r.mu.Unlock()
	}
	return did, why
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
