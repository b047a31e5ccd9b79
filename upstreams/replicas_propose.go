package upstreams

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/decisions"
	"meshrelay/events"
	"meshrelay/upstreams/intake"
)

// propose appends the local decisions, and then what the upstreams propose. If the store fails, that waits until the store
// can be reached again.
func (m *Manager) propose(ctx context.Context) {
	r := m.replicas
	r.mu.Lock()
	ready, locals := r.known && r.reachable, slices.Clone(r.locals)
	r.mu.Unlock()
	if !ready || m.reading() {
		return
	}
	for _, l := range locals {
		if m.reconcileLocal(ctx, l) != nil {
			return
		}
	}
	for _, u := range m.all() {
		record, ok := decisions.Record{}, false
		locked(u.upstream, func(in *intake.Intake) bool { record, ok = in.Proposal(time.Now()); return ok })
		if !ok {
			continue
		}
		record.ID = rand.Text()
		switch err := m.append(ctx, record); {
		case errors.Is(err, decisions.ErrRefused):
			r.log.Debug("proposed decision not recorded", "upstream", u.cfg.Name, "decision", record.Kind, "err", err)
		case err != nil:
			return
		}
	}
}

// append appends a record, and notes the log or that the store can not be reached.
func (m *Manager) append(ctx context.Context, record decisions.Record) error {
	bounded, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	log, err := m.replicas.Store.Append(bounded, record)
	r, failed := m.replicas, err != nil && !errors.Is(err, decisions.ErrRefused)
	r.mu.Lock()
	r.readOnly = failed
	r.mu.Unlock()
	switch {
	case !failed:
		r.took(log, nil) // a refusal may be by a newer log
	case ctx.Err() == nil:
		r.lost(err)
	}
	return err
}

// reconcileLocal appends a local decision, or drops it if others have decided otherwise meanwhile.
func (m *Manager) reconcileLocal(ctx context.Context, l local) error {
	r := m.replicas
	r.mu.Lock()
	newer, all := r.newest.Since(l.at)
	r.mu.Unlock()
	otherwise := func(one decisions.Record) bool {
		return one.Upstream == l.Upstream && one.Kind.Freezes() && l.Kind.Freezes() && one.ID != l.ID
	}
	err := fmt.Errorf("%w: another replica has decided about the upstream since", decisions.ErrRefused)
	if l.blind || all && !slices.ContainsFunc(newer, otherwise) {
		err = m.append(ctx, l.Record)
	}
	e := events.Event{Type: events.Ordered, Upstream: l.Upstream, By: events.ByRelay, Text: "the local decision " + string(l.Kind) + " is agreed now"}
	switch {
	case errors.Is(err, decisions.ErrRefused):
		e.Text, e.Reason = "the local decision "+string(l.Kind)+" is dropped", err.Error()
		m.log.Warn("local decision dropped", "upstream", l.Upstream, "decision", l.Kind, "reason", err)
		if u, unknown := m.upstream(l.Upstream); unknown == nil && l.Kind.Freezes() {
			u.Tell(intake.Overruled{})
		}
	case err != nil:
		return err
	}
	r.mu.Lock()
	r.locals = slices.DeleteFunc(r.locals, func(one local) bool { return one.ID == l.ID })
	r.mu.Unlock()
	m.events.Record(e)
	r.changed()
	return nil
}

// takeBack asks peers for what they hold while a hold is open, until ctx ends.
func (m *Manager) takeBack(ctx context.Context) {
	r := m.replicas
	pauses, next := map[string]time.Duration{}, map[string]time.Time{}
	ready := false
	for ctx.Err() == nil {
		applied, s := r.status().Applied, m.effective()
		wake := time.Now().Add(time.Hour)
		open := map[string]bool{}
		for _, u := range m.all() {
			hold := s.Upstreams[u.cfg.Name].Hold
			if hold == nil || r.Peers == nil {
				continue
			}
			id := hold.ID
			if open[id] = true; !time.Now().Before(next[id]) {
				m.takeBackOf(ctx, u.upstream, hold)
				pauses[id] = min(max(2*pauses[id], leastRetry), mostRetry)
				next[id] = time.Now().Add(pauses[id])
			}
			if next[id].Before(wake) {
				wake = next[id]
			}
		}
		maps.DeleteFunc(next, func(id string, _ time.Time) bool { return !open[id] })
		maps.DeleteFunc(pauses, func(id string, _ time.Duration) bool { return !open[id] })
		if applied && !ready {
			ready = true
			close(r.ready)
		}
		select {
		case <-ctx.Done():
		case <-r.taken:
		case <-time.After(time.Until(wake)):
		}
	}
}

// takeBackOf serves again what peers hold of an upstream.
func (m *Manager) takeBackOf(ctx context.Context, u *upstream, hold *decisions.Record) {
	bounded, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	all, err := m.replicas.Peers.Held(bounded, u.name, hold.Content)
	if err != nil {
		m.log.Warn("held resources not known from other replicas", "upstream", u.name, "err", err)
		return
	}
	if len(all) > 0 {
		u.Tell(intake.TakeBack{Hold: hold.ID, Resources: all})
	}
}
