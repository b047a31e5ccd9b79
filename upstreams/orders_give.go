package upstreams

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

const followedTimeout = 6 * time.Second // a replica writes its report each 5 s at most

// orderAll gives an order to all replicas.
func (m *Manager) orderAll(ctx context.Context, name, verb string, o intake.Order) (effect intake.Effect, err error) {
	u, err := m.upstream(name)
	if err != nil {
		return effect, err
	}
	have := locked(u, (*intake.Intake).Frozen)
	if verb == "rollback" && have != nil && strings.HasSuffix(have.Order, lacking) {
		o.ID = have.Order // it still is that rollback, as well as this replica can
		if effect, err = m.orderHere(ctx, name, verb, o); err == nil {
			effect.Replicas = &intake.Reach{Here: true}
			m.applyOrders(ctx)
		}
		return effect, err
	}
	here, holds := o, locked(u, (*intake.Intake).HoldIDs) // first: what is held may grow
	here.DryRun = true
	effect, err = m.orderHere(ctx, name, verb, here)
	if verb == "release" {
		if holds = m.toRelease(name, o, holds, err == nil); len(holds) == 0 && err == nil { // root namespaces, which are of this replica
			return m.orderHere(ctx, name, verb, o)
		} else if len(holds) > 0 && o.Check() == nil { // else another replica holds it
			err = nil
		}
	}
	if err == nil && (verb == "freeze" || verb == "rollback") {
		if err = m.flush(ctx); err != nil { // first write the content that is frozen
			err = fmt.Errorf("upstream %s is not frozen: %w", name, err)
		}
	}
	var change func(orders.State) orders.State
	if err == nil {
		change, err = m.changeOf(name, verb, o, holds)
	}
	if err != nil {
		return effect, err
	}
	_, next, failed := m.exchange(ctx, change)
	if failed != nil {
		r := m.replicas
		r.mu.Lock()
		known := r.known
		r.mu.Unlock()
		have, unread := locked(u, (*intake.Intake).Frozen), next.Upstreams == nil
		switch {
		case unread && (verb == "freeze" || verb == "unfreeze" && have != nil && have.Order == ""):
			effect, err = m.orderHere(ctx, name, verb, o) // promote makes an order of it
		case verb == "freeze" || verb == "unfreeze" && known.Written.Upstreams[name].Counter < known.Upstreams[name].Counter:
			if unread {
				next = change(known.State)
			}
			m.take(ctx, next, known.Written)
			r.mu.Lock()
			if r.unsaved != nil {
				err = fmt.Errorf("upstream %s: the order is in force here, and a restart forgets it: %w", name, r.unsaved)
			}
			r.mu.Unlock()
		default:
			return intake.Effect{}, intake.NotPossible("upstream %s: the ConfigMap with the orders can not be used, and the other replicas would not follow: mend that, look whether the order is in force, and give it again; only a freeze is taken meanwhile: %w", name, failed)
		}
	}
	effect.Replicas = m.reach(ctx, name, next.Counter, failed)
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
			if !r.Self && h.Upstream == name && (each || h.ID == o.Hold) && !slices.Contains(holds, h.ID) {
				holds = append(holds, h.ID)
			}
		}
	}
	return holds
}

// changeOf returns what an order changes. holds are those to release.
func (m *Manager) changeOf(name, verb string, o intake.Order, holds []string) (func(orders.State) orders.State, error) {
	now := time.Now().UTC().Truncate(time.Second)
	f := &orders.Frozen{Since: now, Reason: o.Reason}
	switch verb {
	case "unfreeze":
		f = nil
	case "release":
		r := orders.Release{Time: now, Reason: o.Reason}
		for _, part := range o.Only {
			r.Only = append(r.Only, part.String())
		}
		return func(s orders.State) orders.State { return s.Release(name, holds, r) }, nil
	case "rollback":
		records, err := m.keeper.At(name, o.To)
		if err != nil {
			return nil, intake.NotPossible("%w", err)
		}
		revisions, _ := m.keeper.History(name)
		if i := slices.IndexFunc(revisions, func(one state.Revision) bool { return one.ID == o.To }); i >= 0 {
			f.Of = revisions[i].Time.UTC().Truncate(time.Second)
		}
		f.Content = contentOf(records)
	}
	return func(s orders.State) orders.State { return s.Freeze(name, f) }, nil
}

// reach waits until the order with a counter is in force on all replicas, for a time, and returns on how many it is.
func (m *Manager) reach(ctx context.Context, upstream string, counter uint64, failed error) *intake.Reach {
	ctx, cancel := context.WithTimeout(ctx, followedTimeout)
	defer cancel()
	for {
		reach, open := &intake.Reach{}, false
		for _, r := range m.Replicas() {
			switch why := r.Lacks[upstream]; {
			case r.Away:
				reach.Away = append(reach.Away, r.Name)
				continue
			case r.Follows < counter || failed != nil && !r.Self:
				reach.Missing, open = append(reach.Missing, r.Name), true
			case why != "":
				reach.Missing = append(reach.Missing, fmt.Sprintf("%s (%s)", r.Name, why))
			default:
				reach.Did++
			}
			reach.Of++
		}
		if failed != nil {
			reach.Unwritten = failed.Error()
		}
		if !open || failed != nil || ctx.Err() != nil {
			return reach
		}
		pause(ctx, leastRest, nil)
	}
}
