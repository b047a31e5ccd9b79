package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"meshrelay/sink/lease"
)

// ErrUnknown is the error of an order about a sink that there is not.
var ErrUnknown = errors.New("there is no such sink")

// ErrNotPossible is the error of an order that the state of the sink does not allow.
var ErrNotPossible = errors.New("not possible")

// find returns a running sink.
func (s *Set) find(name string) (*engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.engines[name]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%w: %.64q: \"relay sink\" lists the sinks", ErrUnknown, name)
}

// Order is an order of an operator. Its verb is freeze: write and delete nothing until unfreeze; release: let the held
// deletions go if the guard holds exactly those of Hold; or prune: delete what is not desired, whatever the guard and the
// config say.
type Order struct{ Verb, Hold, By, Reason string }

// Order carries out an order. A freeze and its end are written into the Lease of the sink, and so hold for all relays of that
// sink; the others are for the relay that writes. It returns the number of objects that are about to be deleted.
func (s *Set) Order(ctx context.Context, name string, o Order) (n int, err error) {
	e, err := s.find(name)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	if n, err = e.order(ctx, o); err != nil {
		return 0, fmt.Errorf("%w: sink %s: %w", ErrNotPossible, name, err)
	}
	if err := e.save(); err != nil {
		return n, fmt.Errorf("the order is carried out, and a restart would undo it: %w", err)
	}
	return n, nil
}

// orderTimeout bounds the requests of an order.
const orderTimeout = 5 * time.Second

func (e *engine) order(ctx context.Context, o Order) (n int, err error) {
	if !e.applies() {
		return 0, errors.New("it has mode: dryRun, and writes nothing: set mode: apply")
	}
	note := lease.Note{By: o.By, Reason: o.Reason, Since: time.Now().UTC().Truncate(time.Second)}
	switch o.Verb {
	case "freeze":
		return 0, e.freeze(ctx, note)
	case "unfreeze":
		return 0, e.unfreeze(ctx)
	}
	if st := e.lease.Status(); !st.Held {
		return 0, fmt.Errorf("another relay writes, or none: give the order to the one that does, which is %q", cmp.Or(st.Holder, "none"))
	}
	e.mu.Lock()
	hold := e.terms.Hold
	if o.Verb == "prune" {
		n = e.core.Prune()
	} else {
		n, err = e.core.Release(o.Hold)
	}
	e.mu.Unlock()
	if err != nil || !hold {
		return n, err
	}
	// A person has looked at what an adoption left.
	if err := e.edit(ctx, func(t *lease.Terms) error { t.Hold = false; return nil }); err != nil {
		return n, fmt.Errorf("%d deletions are released, and all others stay held: %w", n, err)
	}
	return n, nil
}

// edit changes the terms in the Lease.
func (e *engine) edit(ctx context.Context, f func(*lease.Terms) error) error {
	conn, err := e.cluster.Verify(ctx)
	if err != nil {
		return e.client.Explain(err)
	}
	var next lease.Terms
	err = lease.Edit(ctx, conn, e.spec.Namespace, managerOf(e.spec.Name), false, func(t *lease.Terms, exists bool) error {
		if !exists {
			return errors.New("it has no Lease yet")
		}
		if m := e.knownTerms(); m.Promoted != (lease.Note{}) && t.Promoted == (lease.Note{}) && t.Number < m.Number {
			return errors.New("its Lease has lost the promotion, which is written again in a few seconds: give the order then")
		}
		err := f(t)
		next = *t
		return err
	})
	if err == nil {
		e.mu.Lock()
		e.setTerms(next, e.pending)
		e.mu.Unlock()
	}
	return err
}

// freeze freezes the sink at once, here at least. What the Lease can not be told now, it is told later.
func (e *engine) freeze(ctx context.Context, note lease.Note) error {
	e.mu.Lock()
	if was := e.frozen(); was != (lease.Note{}) {
		e.mu.Unlock()
		return fmt.Errorf("it is frozen already, %s", was)
	}
	e.setTerms(e.terms, note)
	e.mu.Unlock()
	e.writePending(ctx)
	return nil
}

// unfreeze ends a freeze of the Lease, which may be newer than what is known of it, and one that the Lease does not have yet.
func (e *engine) unfreeze(ctx context.Context) error {
	e.mu.Lock()
	here, there := e.pending != (lease.Note{}), e.terms.Frozen != (lease.Note{})
	e.mu.Unlock()
	err := e.edit(ctx, func(t *lease.Terms) error {
		if t.Frozen == (lease.Note{}) {
			return errNotFrozen
		}
		t.Frozen = lease.Note{}
		return nil
	})
	switch {
	case err != nil && there && !errors.Is(err, errNotFrozen):
		return fmt.Errorf("it stays frozen: %w", err)
	case err != nil && !here:
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.setTerms(e.terms, lease.Note{})
	return nil
}

var errNotFrozen = errors.New("it is not frozen")

// writePending writes a freeze into the Lease that it does not have yet.
func (e *engine) writePending(ctx context.Context) {
	e.mu.Lock()
	pending := e.pending
	e.mu.Unlock()
	if pending == (lease.Note{}) || !e.applies() {
		e.trouble("freeze", nil)
		return
	}
	err := e.edit(ctx, func(t *lease.Terms) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.pending != pending {
			return errNotFrozen // an unfreeze was faster
		}
		t.Frozen = cmp.Or(t.Frozen, pending)
		return nil
	})
	if errors.Is(err, errNotFrozen) {
		return
	}
	if err != nil {
		err = fmt.Errorf("it is frozen here, and not yet for other relays: %w", err)
	} else {
		e.mu.Lock()
		e.setTerms(e.terms, lease.Note{})
		e.mu.Unlock()
	}
	e.trouble("freeze", err)
}
