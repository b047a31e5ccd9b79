package upstreams

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

const (
	followedTimeout = 6 * time.Second // a replica writes its report each 5 s at most
	searchTime      = time.Second     // after it no more revisions are looked at: other orders wait
	// lacking follows the ID of the rollback of an upstream that has no revision with its content.
	lacking = " lacking"
)

// applyOrders has the known orders in force here: each as an order that was given here. It is called in turn.
func (m *Manager) applyOrders(ctx context.Context) {
	r := m.replicas
	lacks, changed, served := map[string]string{}, false, m.servedWithout()
	for _, u := range m.all() {
		name := u.cfg.Name
		e := r.known.Upstreams[name]
		// What others have frozen before this replica was there is not what it has heard since.
		did, why := m.applyFreeze(ctx, u.upstream, name, e, r.object == nil && served == nil && !u.onDisk)
		for _, one := range e.Released {
			is, grown := applyRelease(u.upstream, one, r.known.Until[name+one.ID()])
			if why = cmp.Or(why, grown); is {
				did, r.known.Until[name+one.ID()] = true, time.Time{}
			}
		}
		if changed = changed || did; why != "" {
			lacks[name] = why
		}
	}
	for name, why := range lacks {
		lacks[name] = text.Shorten(why, min(maxReason, maxReasons/len(lacks)))
	}
	if r.lacks = lacks; changed {
		if err := m.flush(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("orders of the replicas not on disk yet", "err", err)
		}
	}
	r.save() // then: a release that a crash undoes is carried out again
}

// applyFreeze freezes, rolls back or unfreezes an upstream, unless it is so already. empty: its content is not here. why is
// why the order is not in force.
func (m *Manager) applyFreeze(ctx context.Context, u *upstream, name string, e orders.Entry, empty bool) (did bool, why string) {
	have, id := locked(u, (*intake.Intake).Frozen), e.ID()
	switch {
	case e.Frozen == nil && have == nil, m.replicas.isAlone(name, have):
		return false, ""
	case e.Frozen == nil:
		u.Tell(intake.Unfreeze{Order: intake.Order{Force: true, Reason: have.Reason}})
		return true, ""
	case have == nil || strings.TrimSuffix(have.Order, lacking) != id:
		o := intake.Order{ID: id, Since: e.Frozen.Since, Reason: e.Frozen.Reason, Empty: empty || have != nil && have.Empty}
		u.Tell(m.freezing(ctx, u, o, e.Frozen))
		have, did = locked(u, (*intake.Intake).Frozen), true
	}
	const without = "no revision with the content of the rollback was found on this disk"
	switch {
	case have.Empty:
		why = fmt.Sprintf("it is frozen, and this replica has nothing of it: clients wait for \"relay unfreeze %s\", or here for \"relay serve-without %[1]s\"", name)
	case have.Order == id:
	case have.Revision != 0:
		why = fmt.Sprintf("it is at revision %d by an order here, because %s", have.Revision, without)
	default:
		near := []string{}
		for _, rev := range m.nearest(name, e.Frozen.Of) {
			near = append(near, fmt.Sprintf("%d of %s", rev.ID, rev.Time.UTC().Format(time.RFC3339)))
		}
		nearest := cmp.Or(strings.Join(near[:min(len(near), 3)], ", "), "none")
		why = fmt.Sprintf("it is frozen as it was, because %s; nearest to it in time are %s: ", without, nearest) +
			fmt.Sprintf("\"relay rollback %s --to\" takes one for this replica", name)
	}
	return did, why
}

// applyRelease carries out a release if it is for the open hold of an upstream. why is why it can not.
func applyRelease(u *upstream, one orders.Release, until time.Time) (did bool, why string) {
	since := locked(u, func(in *intake.Intake) time.Time { return in.HoldSince(one.Hold) })
	if since.IsZero() || since.After(until) {
		return false, ""
	}
	only, err := intake.ParseParts(one.Only)
	if err == nil {
		_, err = u.stepOver(intake.Release{Order: intake.Order{Hold: one.Hold, Reason: one.Reason, Only: only}})
	}
	if err != nil {
		return false, fmt.Sprintf("hold %s is not released: %v", one.Hold, err)
	}
	return true, ""
}

// freezing returns the event of an order to freeze an upstream, or to roll it back: to the revision with the content that
// is nearest in time, of those that it can look at in searchTime.
func (m *Manager) freezing(ctx context.Context, u *upstream, o intake.Order, f *orders.Frozen) intake.Event {
	if f.Content == "" {
		return intake.Freeze{Order: o}
	}
	if err := m.flush(ctx); err != nil { // first write what is served
		m.log.Warn("revisions not on disk yet", "upstream", u.name, "err", err)
	}
	rules, began := m.setupOf(u, nil).rules, time.Now()
	for _, rev := range m.nearest(u.name, f.Of) {
		if time.Since(began) > searchTime {
			break
		}
		if records, err := m.keeper.At(u.name, rev.ID); err == nil && rules.ContentOf(records) == f.Content {
			o.To = rev.ID
			return intake.Rollback{Order: o, Records: records}
		}
	}
	o.ID += lacking
	return intake.Freeze{Order: o}
}

// nearest returns the revisions of an upstream, the one nearest to a time first.
func (m *Manager) nearest(upstream string, to time.Time) []state.Revision {
	revisions, _ := m.History(upstream) // without history there is none
	slices.SortStableFunc(revisions, func(a, b state.Revision) int { return cmp.Compare(a.Time.Sub(to).Abs(), b.Time.Sub(to).Abs()) })
	return revisions
}

// orderAll gives an order to all replicas.
func (m *Manager) orderAll(ctx context.Context, name, verb string, o intake.Order) (effect intake.Effect, err error) {
	u, err := m.upstream(name)
	if err != nil {
		return effect, err
	}
	have, holds := locked(u, (*intake.Intake).Frozen), locked(u, (*intake.Intake).HoldIDs) // first: what is held may grow
	if verb == "rollback" && have != nil && strings.HasSuffix(have.Order, lacking) {
		o.ID = have.Order // it still is that rollback, as well as this replica can
		effect, err = m.orderHere(ctx, name, verb, o)
		effect.Replicas = &intake.Reach{Here: true}
		mirror.Signal(m.look)
		return effect, err
	}
	here := o
	here.DryRun = true
	effect, err = m.orderHere(ctx, name, verb, here)
	if verb == "release" {
		if holds = m.toRelease(name, o, holds, err == nil); len(holds) == 0 && err == nil { // root namespaces, which are of this replica
			return m.orderHere(ctx, name, verb, o)
		} else if len(holds) > 0 && o.Check() == nil { // else another replica holds it
			err = nil
		}
	}
	var change func(orders.State) orders.State
	if err == nil {
		change, err = m.changeOf(u, verb, o, holds)
	}
	if err != nil {
		return effect, err
	}
	var failed error
	var counter uint64
	before := m.Replicas()
	m.inTurn(func() {
		r := m.replicas
		if verb == "freeze" {
			delete(r.known.Tried, name) // what ends this one is later
		}
		failed, counter = m.exchange(ctx, change), r.known.Counter
		switch have := locked(u, (*intake.Intake).Frozen); {
		case failed == nil:
		case verb == "freeze", verb == "unfreeze" && r.isAlone(name, have):
			counter = 0 // withGiven makes an order of it, unless it ends before
			effect, err = m.orderHere(ctx, name, verb, o)
		default:
			err = intake.NotPossible("upstream %s: the ConfigMap with the orders can not be used, and the other replicas would not follow: mend that, look whether the order is in force, and give it again; only a freeze is taken meanwhile: %w", name, failed)
		}
	})
	if err == nil {
		effect.Replicas = m.reach(ctx, name, counter, failed, before)
	}
	return effect, err
}

// toRelease returns the holds that an order to release is for. own are the IDs of the hold here. here: it can be carried out
// here.
func (m *Manager) toRelease(name string, o intake.Order, own []string, here bool) (holds []string) {
	if here && len(own) > 0 {
		holds = []string{cmp.Or(o.Hold, own[0])}
	}
	each := o.Hold == "" && (o.All || len(o.Only) > 0)
	for _, r := range m.Replicas() {
		for _, h := range r.Holds {
			if !r.Self && h.Upstream == name && (each || h.ID == o.Hold) {
				holds = append(holds, h.ID)
			}
		}
	}
	return holds
}

// changeOf returns what an order changes. holds are those to release.
func (m *Manager) changeOf(u *upstream, verb string, o intake.Order, holds []string) (func(orders.State) orders.State, error) {
	f := &orders.Frozen{Since: time.Now().UTC().Truncate(time.Second), Reason: o.Reason}
	switch verb {
	case "freeze":
		return func(s orders.State) orders.State {
			s = s.Freeze(u.name, f)
			m.replicas.known.Tried[u.name] = s.Upstreams[u.name]
			return s
		}, nil
	case "unfreeze":
		f = nil
	case "release":
		r := orders.Release{Time: f.Since, Reason: o.Reason}
		for _, part := range o.Only {
			r.Only = append(r.Only, part.String())
		}
		return func(s orders.State) orders.State { return s.Release(u.name, holds, r) }, nil
	case "rollback":
		records, err := m.keeper.At(u.name, o.To)
		if err != nil {
			return nil, intake.NotPossible("%w", err)
		}
		f.Content = m.setupOf(u, nil).rules.ContentOf(records)
		revisions, _ := m.keeper.History(u.name)
		if i := slices.IndexFunc(revisions, func(rev state.Revision) bool { return rev.ID == o.To }); i >= 0 {
			f.Of = revisions[i].Time.UTC().Truncate(time.Second)
		}
	}
	return func(s orders.State) orders.State { return s.Freeze(u.name, f) }, nil
}

// reach waits until the order with a counter is in force on all replicas, for a time, and returns on how many it is. failed is
// why they are not told. before are the replicas before the order, with which those that are away go.
func (m *Manager) reach(ctx context.Context, upstream string, counter uint64, failed error, before []orders.Replica) *intake.Reach {
	ctx, cancel := context.WithTimeout(ctx, followedTimeout)
	defer cancel()
	for {
		reach, open := &intake.Reach{}, false
		for _, r := range before {
			if r.Away {
				reach.Away = append(reach.Away, r.Name)
			}
		}
		for _, r := range m.Replicas() {
			switch why := r.Lacks[upstream]; {
			case r.Away:
			case failed != nil && !r.Self:
				reach.Missing = append(reach.Missing, r.Name)
			case r.Follows < counter:
				reach.Missing, open = append(reach.Missing, r.Name), true
			case why != "":
				reach.Missing = append(reach.Missing, fmt.Sprintf("%s (%s)", r.Name, why))
			default:
				reach.Did++
			}
		}
		if reach.Of = reach.Did + len(reach.Missing); failed != nil {
			reach.Unwritten = failed.Error()
		}
		if !open || ctx.Err() != nil {
			return reach
		}
		pause(ctx, leastRest, nil)
	}
}
