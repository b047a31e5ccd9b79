package upstreams

import (
	"context"
	"fmt"
	"time"

	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// Freeze keeps what is served of an upstream as it is, until it is unfrozen or o.For is over, also
// through restarts if there is a Keeper. The error is ErrUnknownUpstream, ErrNotPossible, or that of
// the disk: then the order does not outlive a restart.
func (m *Manager) Freeze(ctx context.Context, name string, o Order) (Effect, error) {
	return m.order(ctx, name, o, "frozen", func() (intake.Event, error) {
		if !o.DryRun {
			if err := m.flush(ctx); err != nil { // the disk has to have what is frozen
				return nil, fmt.Errorf("upstream %s is not frozen: %w", name, err)
			}
		}
		return intake.Freeze{Order: o}, nil
	})
}

// Unfreeze serves what an upstream has now, and its changes. Errors are as with Freeze.
func (m *Manager) Unfreeze(ctx context.Context, name string, o Order) (Effect, error) {
	return m.order(ctx, name, o, "unfrozen", func() (intake.Event, error) {
		return intake.Unfreeze{Order: o}, nil
	})
}

// Release carries out held deletions, as o.Hold, o.Only and o.All name them. Errors are as with Freeze.
func (m *Manager) Release(ctx context.Context, name string, o Order) (Effect, error) {
	return m.order(ctx, name, o, "released", func() (intake.Event, error) {
		if o.Hold == "" && len(o.Only) == 0 && !o.All {
			return nil, intake.NotPossible("say what of upstream %s is to be released: one hold, a part, or all", name)
		}
		return intake.Release{Order: o}, nil
	})
}

// Rollback serves what an upstream had in a revision, frozen. Errors are as with Freeze.
func (m *Manager) Rollback(ctx context.Context, name string, o Order) (Effect, error) {
	return m.order(ctx, name, o, "rolled back", func() (intake.Event, error) {
		if m.keeper == nil {
			return nil, intake.NotPossible("without state.dir there is no history")
		}
		if err := m.flush(ctx); err != nil {
			return nil, fmt.Errorf("upstream %s is not rolled back: %w", name, err)
		}
		records, err := m.keeper.At(name, o.To)
		if err != nil {
			return nil, intake.NotPossible("%w", err)
		}
		return intake.Rollback{Order: o, Records: records}, nil
	})
}

// order steps an upstream over an event, and flushes. did tells what the upstream is then.
func (m *Manager) order(ctx context.Context, name string, o Order, did string, do func() (intake.Event, error)) (Effect, error) {
	if err := o.Check(); err != nil {
		return Effect{}, err
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	one, err := m.upstream(name)
	if err != nil {
		return Effect{}, err
	}
	event, err := do()
	if err != nil {
		return Effect{}, err
	}
	out, err := one.stepOver(event)
	if err != nil || o.DryRun {
		return out.Effect, err
	}
	if err := m.flush(ctx); err != nil {
		return out.Effect, fmt.Errorf("upstream %s is %s, but that is not on disk yet, and would be forgotten by a restart now: %w", name, did, err)
	}
	return out.Effect, nil
}

func (m *Manager) flush(ctx context.Context) error {
	if m.keeper == nil {
		return nil
	}
	return m.keeper.Flush(ctx)
}

// History returns the revisions of an upstream that are kept, the newest first.
func (m *Manager) History(name string) ([]state.Revision, error) {
	if _, err := m.upstream(name); err != nil {
		return nil, err
	}
	if m.keeper == nil {
		return nil, intake.NotPossible("without state.dir there is no history")
	}
	return m.keeper.History(name)
}

// Held returns the held deletions of each upstream, or of one. The error is ErrUnknownUpstream.
func (m *Manager) Held(upstream string) (out []HeldUpstream, err error) {
	if upstream != "" {
		if _, err := m.upstream(upstream); err != nil {
			return nil, err
		}
	}
	for _, u := range m.all() {
		if upstream == "" || upstream == u.cfg.Name {
			held := locked(u.upstream, func(in *intake.Intake) []HeldUpstream { return in.HeldDeletions(time.Now()) })
			out = append(out, held...)
		}
	}
	return out, nil
}
