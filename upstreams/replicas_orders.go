package upstreams

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/decisions"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// orderAll has all replicas agree on an order, and carries it out. The order takes effect on a replica when it has read
// the record.
func (m *Manager) orderAll(ctx context.Context, name, verb string, o intake.Order) (effect intake.Effect, err error) {
	r := m.replicas
	u, err := m.upstream(name)
	if err != nil {
		return intake.Effect{}, err
	}
	record := decisions.Record{Kind: decisions.Kind(verb), Upstream: name}
	if verb == "release" {
		record = locked(u, func(in *intake.Intake) decisions.Record { return in.Releases(o) }) // first: what is held may grow
	}
	here := o
	here.DryRun = true
	if effect, err = m.orderHere(ctx, name, verb, here); err != nil {
		return intake.Effect{}, err
	}
	record.ID, record.Replica, record.Reason, record.When = rand.Text(), r.Name, o.Reason, time.Now().UTC().Truncate(time.Second)
	if s := m.effective(); verb == "unfreeze" && s.Upstreams[name].Frozen != nil {
		record.Ends = s.Upstreams[name].Frozen.ID
	}
	record.Seconds = int64((o.For + time.Second - 1) / time.Second)
	if o.Operator != nil {
		record.Who = text.Abbreviate(o.Operator.String())
	}
	if verb == "rollback" {
		records, err := m.keeper.At(name, o.To)
		if err != nil {
			return intake.Effect{}, intake.NotPossible("%w", err)
		}
		record.Content, record.Number = ContentOf(records), len(records)
	}
	r.givers.Store(name, o.Operator)
	defer r.givers.Delete(name)
	if o.Local {
		err = m.decideLocally(record)
	} else {
		err = m.decide(ctx, u, record)
	}
	if err != nil {
		u.Tell(intake.Still{ID: record.ID, Over: true})
		return intake.Effect{}, err
	}
	r.changed()
	m.applyDecisions(ctx)
	effect.Replicas = &intake.Reach{Did: 1, Of: 1, Local: o.Local}
	if o.Local {
		return effect, r.keepLocals()
	}
	if r.Peers != nil {
		bounded, cancel := context.WithTimeout(ctx, appliedTimeout)
		defer cancel()
		did, of, unreachable := r.Peers.Applied(bounded, name, m.effective().Sequence)
		effect.Replicas = &intake.Reach{Did: 1 + did, Of: 1 + of, Unreachable: unreachable}
	}
	return effect, nil
}

// decide appends the record of an order. That of a freeze names what is served, which does not change meanwhile.
func (m *Manager) decide(ctx context.Context, u *upstream, record decisions.Record) error {
	if record.Kind == decisions.Freeze {
		u.Tell(intake.Still{ID: record.ID})
		locked(u, func(in *intake.Intake) bool { record.Content, record.Number = in.ServedContent(); return true })
	}
	err := m.append(ctx, record)
	switch {
	case errors.Is(err, decisions.ErrRefused):
		return intake.NotPossible("%w", err)
	case err != nil:
		return intake.NotPossible("upstream %s: the store of decisions can not be reached, so the replicas can not agree; to decide for this replica alone: --local: %w", record.Upstream, err)
	}
	return nil
}

// decideLocally notes a decision of this replica alone.
func (m *Manager) decideLocally(record decisions.Record) error {
	s, r := m.effective(), m.replicas
	r.mu.Lock()
	defer r.mu.Unlock()
	switch err := s.Refuses(record); {
	case r.st.Reachable:
		return intake.NotPossible("upstream %s: the store of decisions can be reached: leave out --local, so that all replicas decide the same", record.Upstream)
	case err != nil:
		return intake.NotPossible("%w", err)
	case len(r.locals) >= maxUnagreed:
		return intake.NotPossible("upstream %s: %d local decisions wait for the store of decisions already", record.Upstream, len(r.locals))
	}
	r.locals = append(r.locals, local{record, r.newest.State().Sequence, !r.known})
	m.log.Warn("decision for this replica alone", "upstream", record.Upstream, "decision", record.Kind, "who", record.Who, "reason", record.Reason)
	return nil
}

// awaitDecisions waits until the decisions are applied, if the relay is one of several, but not for long: without the
// store, it serves by its disk.
func (m *Manager) awaitDecisions(ctx context.Context) {
	if m.replicas == nil {
		return
	}
	select {
	case <-m.replicas.ready:
	case <-ctx.Done():
	case <-time.After(foldPatience):
		m.log.Warn("decisions of the replicas not read in time", "after", foldPatience, "reason", m.Replicas().Problem, "effect", "clients are served by what is on disk here")
	}
}

// ReplicasStatus is what a relay that is one of several has of the decisions.
type ReplicasStatus struct {
	// Sequence is that of the last decision that is in effect here, but for Missing. Applied: the log was read at least once.
	Sequence uint64
	Applied  bool
	// Reachable is whether the store can be reached, since Since. Problem is why not.
	Reachable bool
	Since     time.Time
	Problem   string
	// Local are the decisions of this replica on which the others have not agreed.
	Local []string
	// Missing has why a decision can not be carried out here, by upstream. It is read-only.
	Missing map[string]string
}

// Replicas returns the status of the decisions, nil if the relay decides alone.
func (m *Manager) Replicas() *ReplicasStatus {
	r := m.replicas
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.st
	for _, l := range r.locals {
		st.Local = append(st.Local, fmt.Sprintf("%s %s by %s", l.Kind, l.Upstream, cmp.Or(l.Who, "an operator")))
	}
	return &st
}

// Problems returns one line for each problem.
func (s *ReplicasStatus) Problems() (lines []string) {
	if s == nil {
		return nil
	}
	if !s.Reachable {
		lines = append(lines, fmt.Sprintf("decisions: the store can not be reached since %s: nothing that is held goes, and orders need --local: %s", s.Since.UTC().Format(time.RFC3339), s.Problem))
	}
	for _, l := range s.Local {
		lines = append(lines, "decisions: local decision, not agreed: "+l)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Missing)) {
		lines = append(lines, "decisions: upstream "+name+": "+s.Missing[name])
	}
	return lines
}

// HeldContent returns the resources that are served although an upstream has deleted them, because a guard holds the
// deletions. The error is ErrUnknownUpstream.
func (m *Manager) HeldContent(upstream string) ([]*mirror.Resource, error) {
	u, err := m.upstream(upstream)
	if err != nil {
		return nil, err
	}
	return locked(u, (*intake.Intake).HeldResources), nil
}
