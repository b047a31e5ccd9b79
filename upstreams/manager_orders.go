package upstreams

import (
	"context"
	"fmt"
	"time"

	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// Order carries out an order: verb is freeze, unfreeze, release, rollback, resync or serve-without. With a Keeper, the effect
// outlives restarts. The error is ErrUnknownUpstream, ErrNotPossible, or that of the disk. After an error of the disk
// the order is in effect, but may not outlive a restart.
func (m *Manager) Order(ctx context.Context, name, verb string, o intake.Order) (intake.Effect, error) {
	if verb == "resync" {
		return intake.Effect{}, m.resync(name, o)
	}
	if m.replicas != nil && !o.DryRun && verb != "serve-without" {
		return m.orderAll(ctx, name, verb, o)
	}
	return m.orderHere(ctx, name, verb, o)
}

// resync makes the source of an upstream read everything again. The guard judges what is missing.
func (m *Manager) resync(name string, o intake.Order) error {
	u, err := m.upstream(name)
	if err != nil || o.DryRun {
		return err
	}
	m.setupOf(u, nil).source.Resync()
	return nil
}

// participles are those of the orders that are for the intake.
var participles = map[string]string{"freeze": "frozen", "unfreeze": "unfrozen", "release": "released", "rollback": "rolled back", "serve-without": "no longer waited for"}

// orderHere carries out an order on this relay.
func (m *Manager) orderHere(ctx context.Context, name, verb string, o intake.Order) (intake.Effect, error) {
	if err := o.Check(); err != nil {
		return intake.Effect{}, err
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	if m.reading() { // Restore would overwrite the order
		return intake.Effect{}, intake.NotPossible("the relay has not read the state of its upstreams yet, or ends: try again")
	}
	one, err := m.upstream(name)
	if err != nil {
		return intake.Effect{}, err
	}
	event, err := m.eventOf(ctx, name, verb, o)
	if err != nil {
		return intake.Effect{}, err
	}
	out, err := one.stepOver(event)
	if err != nil || o.DryRun {
		return out.Effect, err
	}
	if err := m.flush(ctx); err != nil {
		return out.Effect, fmt.Errorf("upstream %s is %s, but that is not on disk yet, and would be forgotten by a restart now: %w", name, participles[verb], err)
	}
	return out.Effect, nil
}

// eventOf returns the event of an order.
func (m *Manager) eventOf(ctx context.Context, name, verb string, o intake.Order) (intake.Event, error) {
	switch {
	case participles[verb] == "":
		return nil, intake.NotPossible("upstream %s: %q is no order", name, verb)
	case verb == "serve-without":
		return m.withoutEvent(name, o)
	case verb == "freeze":
		return intake.Freeze{Order: o}, nil
	case verb == "unfreeze":
		return intake.Unfreeze{Order: o}, nil
	case verb == "release" && o.Hold == "" && len(o.Only) == 0 && !o.All:
		return nil, intake.NotPossible("name what to release of upstream %s: one hold, a part, or all", name)
	case verb == "release":
		return intake.Release{Order: o}, nil
	case verb == "rollback" && m.keeper == nil:
		return nil, errNoHistory()
	}
	if err := m.flush(ctx); err != nil { // first write what is served
		return nil, fmt.Errorf("upstream %s is not %s: %w", name, participles[verb], err)
	}
	records, err := m.keeper.At(name, o.To)
	if err != nil {
		return nil, intake.NotPossible("%w", err)
	}
	return intake.Rollback{Order: o, Records: records}, nil
}

func (m *Manager) flush(ctx context.Context) error {
	if m.keeper == nil {
		return nil
	}
	return m.keeper.Flush(ctx)
}

// errNoHistory returns the error of a relay without history, with advice how to keep one.
func errNoHistory() error {
	return intake.NotPossible("this relay keeps no history: set state.dir in its config file, as in \"state: {dir: /var/lib/relay}\"")
}

// History returns the revisions of an upstream that are kept, the newest first.
func (m *Manager) History(name string) ([]state.Revision, error) {
	if _, err := m.upstream(name); err != nil {
		return nil, err
	}
	if m.keeper == nil {
		return nil, errNoHistory()
	}
	return m.keeper.History(name)
}

// Held returns the held deletions of each upstream, or of one. The error is ErrUnknownUpstream.
func (m *Manager) Held(upstream string) (out []intake.HeldUpstream, err error) {
	if upstream != "" {
		if _, err := m.upstream(upstream); err != nil {
			return nil, err
		}
	}
	for _, u := range m.all() {
		if upstream == "" || upstream == u.cfg.Name {
			held := locked(u.upstream, func(in *intake.Intake) []intake.HeldUpstream { return in.HeldDeletions(time.Now()) })
			out = append(out, held...)
		}
	}
	return out, nil
}
