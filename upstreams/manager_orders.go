package upstreams

import (
	"context"
	"fmt"
	"slices"

	"meshrelay/state"
)

// Freeze keeps what is served of an upstream as it is, until it is unfrozen or o.For is over,
// also through restarts if there is a Keeper. The error is ErrUnknownUpstream,
// ErrNotPossible, or tells that the freeze would not outlive a restart.
func (m *Manager) Freeze(ctx context.Context, upstream string, o Order) (Effect, error) {
	return m.order(ctx, upstream, o, "frozen", func(one *member) (Effect, error) {
		if !o.DryRun {
			if err := m.flush(ctx); err != nil { // what has passed until now, with all that belongs to it
				return Effect{}, fmt.Errorf("upstream %s is not frozen: %w", upstream, err)
			}
		}
		return one.gate.freeze(o)
	})
}

// Unfreeze brings an upstream to what it has now, and lets it follow again. The guard judges
// what goes by that. Errors are as with Freeze.
func (m *Manager) Unfreeze(ctx context.Context, upstream string, o Order) (Effect, error) {
	return m.order(ctx, upstream, o, "unfrozen", func(one *member) (Effect, error) {
		e, err := one.gate.unfreezing(o, one.source.kept())
		if err != nil || o.DryRun {
			return e, err
		}
		return e, one.source.restateAll(func() error { return one.gate.thaw(withReason("unfreeze", o.Reason)) })
	})
}

// Release carries deletions out that the guard of an upstream holds: those that o.Hold, o.Only
// and o.All name. Errors are as with Freeze.
func (m *Manager) Release(ctx context.Context, upstream string, o Order) (Effect, error) {
	return m.order(ctx, upstream, o, "released", func(one *member) (Effect, error) {
		if o.Hold == "" && len(o.Only) == 0 && !o.All {
			return Effect{}, fmt.Errorf("%w: say what of upstream %s is to be released: one hold, a part, or all", ErrNotPossible, upstream)
		}
		return one.gate.release(o)
	})
}

// Rollback serves of an upstream what it had in a former revision, frozen until it is
// unfrozen. Errors are as with Freeze.
func (m *Manager) Rollback(ctx context.Context, upstream string, o Order) (Effect, error) {
	return m.order(ctx, upstream, o, "rolled back", func(one *member) (Effect, error) {
		if m.keeper == nil {
			return Effect{}, fmt.Errorf("%w: without state.dir there is no history", ErrNotPossible)
		}
		if err := m.flush(ctx); err != nil {
			return Effect{}, fmt.Errorf("upstream %s is not rolled back: %w", upstream, err)
		}
		records, err := m.keeper.At(upstream, o.To)
		if err != nil {
			return Effect{}, fmt.Errorf("%w: %w", ErrNotPossible, err)
		}
		records, _ = m.admitted(one, records)
		e := one.gate.rollingBack(records)
		if o.DryRun {
			return e, nil
		}
		one.gate.rollBack(o, records)
		return e, one.source.restateAll(nil)
	})
}

// order does what an operator asks for, one order at a time, and sees to it that it outlives a
// restart. did is what the upstream is then.
func (m *Manager) order(ctx context.Context, upstream string, o Order, did string, do func(*member) (Effect, error)) (Effect, error) {
	if err := o.check(); err != nil {
		return Effect{}, err
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	one, err := m.member(upstream)
	if err != nil {
		return Effect{}, err
	}
	e, err := do(one)
	if err != nil || o.DryRun {
		return e, err
	}
	if err := m.flush(ctx); err != nil {
		return e, fmt.Errorf("upstream %s is %s, but that is not on disk yet, and would be forgotten by a restart now: %w", upstream, did, err)
	}
	return e, nil
}

func (m *Manager) flush(ctx context.Context) error {
	if m.keeper == nil {
		return nil
	}
	return m.keeper.Flush(ctx)
}

// History returns the revisions of an upstream that are kept, the newest first.
func (m *Manager) History(upstream string) ([]state.Revision, error) {
	if _, err := m.member(upstream); err != nil {
		return nil, err
	}
	if m.keeper == nil {
		return nil, fmt.Errorf("%w: without state.dir there is no history", ErrNotPossible)
	}
	return m.keeper.History(upstream)
}

// Held returns what the guard of each upstream holds back, by order of priority, or of one
// upstream. The error is ErrUnknownUpstream.
func (m *Manager) Held(upstream string) ([]HeldUpstream, error) {
	if upstream != "" {
		one, err := m.member(upstream)
		if err != nil {
			return nil, err
		}
		return heldOf([]*member{one}), nil
	}
	m.mu.Lock()
	members := slices.Clone(m.members)
	m.mu.Unlock()
	return heldOf(members), nil
}

func heldOf(members []*member) (out []HeldUpstream) {
	for _, one := range members {
		if h, ok := one.gate.heldDeletions(); ok {
			out = append(out, h)
		}
	}
	return out
}
