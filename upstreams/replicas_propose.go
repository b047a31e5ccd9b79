package upstreams

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	ready, readOnly, locals := r.known && (r.st.Reachable || r.readOnly), r.readOnly, slices.Clone(r.locals)
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
	if readOnly {
		_ = m.append(ctx, decisions.Record{}) // it is noted
	}
}

// append appends a record, and notes the log or that the store can not be reached.
func (m *Manager) append(ctx context.Context, record decisions.Record) error {
	bounded, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	log, err := m.replicas.Store.Append(bounded, record)
	switch failed := err != nil && !errors.Is(err, decisions.ErrRefused); {
	case !failed: // a refusal may be by a newer log
		m.replicas.took(log, nil, true)
	case ctx.Err() == nil:
		m.replicas.took(decisions.Log{}, err, true)
	}
	return err
}

// reconcileLocal appends a local decision, or drops it if others have decided otherwise meanwhile.
func (m *Manager) reconcileLocal(ctx context.Context, l local) error {
	r := m.replicas
	r.mu.Lock()
	newer, all := r.newest.Since(l.At)
	r.mu.Unlock()
	otherwise := func(one decisions.Record) bool {
		return one.Upstream == l.Upstream && one.Kind.Freezes() && l.Kind.Freezes() && one.Replica != l.Replica
	}
	if u, err := m.upstream(l.Upstream); err == nil && l.Kind == decisions.Freeze {
		locked(u, func(in *intake.Intake) bool { l.Content, l.Number = in.ServedContent(); return true })
	}
	err := fmt.Errorf("%w: another replica has decided about the upstream since", decisions.ErrRefused)
	if l.Blind || all && !slices.ContainsFunc(newer, otherwise) {
		err = m.append(ctx, l.Record)
	}
	switch {
	case err == nil:
		m.events.Record(events.Event{Type: events.Ordered, Upstream: l.Upstream, By: events.ByRelay, Text: "the local decision " + string(l.Kind) + " is agreed now"})
	case errors.Is(err, decisions.ErrRefused):
		m.localDropped(l, err)
		if u, unknown := m.upstream(l.Upstream); unknown == nil && l.Kind.Freezes() {
			u.Tell(intake.Overruled{})
		}
	default:
		return err
	}
	r.mu.Lock()
	r.locals = slices.DeleteFunc(r.locals, func(one local) bool { return one.ID == l.ID })
	r.mu.Unlock()
	if err := r.keepLocals(); err != nil {
		m.log.Warn("local decisions not written", "err", err)
	}
	r.changed()
	return nil
}

// takeBack asks peers for what they hold while a hold is open, and for the content of freezes and rollbacks that this
// replica lacks, until ctx ends.
func (m *Manager) takeBack(ctx context.Context) {
	r, pause := m.replicas, leastRetry
	applied := sync.OnceFunc(func() { close(r.ready) })
	for {
		once, s := m.Replicas().Applied, m.effective()
		var asked sync.WaitGroup
		for _, u := range m.all() {
			decided := s.Upstreams[u.cfg.Name]
			if r.Peers != nil && (decided.Hold != nil || decided.Frozen != nil) {
				asked.Go(func() { m.askPeers(ctx, u.upstream, decided, s.Sequence) }) // a peer may be slow
			}
		}
		asked.Wait()
		if once {
			applied()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.taken:
			pause = leastRetry
		case <-time.After(pause):
			pause = min(2*pause, mostRetry)
		}
	}
}

// askPeers serves again what peers hold of an upstream, and the content of its freeze or rollback if it has another one.
func (m *Manager) askPeers(ctx context.Context, u *upstream, decided decisions.Upstream, sequence uint64) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	if hold := decided.Hold; hold != nil {
		if all, begun := m.replicas.Peers.Held(ctx, hold, sequence); len(all) > 0 {
			u.Tell(intake.TakeBack{Hold: hold.ID, Sequence: sequence, Resources: all, Begun: begun})
		}
	}
	lacks := func() bool { return locked(u, func(in *intake.Intake) bool { return in.Lacks(decided.Frozen) }) }
	if !lacks() {
		return
	}
	if records := m.replicas.Peers.Content(ctx, decided.Frozen); records != nil {
		u.Tell(intake.Align{Want: decided.Frozen, Records: records})
		if !lacks() {
			m.replicas.changed() // nothing is missing any more
		}
	}
}
