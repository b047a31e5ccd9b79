package sink

import (
	"errors"
	"fmt"
	"time"
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
	return nil, fmt.Errorf("%w: %.64q: \"relay sink status\" lists the sinks", ErrUnknown, name)
}

// Order is an order of an operator. Its verb is freeze: write and delete nothing until unfreeze; release: let the held
// deletions go if the guard holds exactly those of Hold; or prune: delete what is not desired, whatever the guard and the
// config say.
type Order struct{ Verb, Hold, By, Reason string }

// Order carries out an order, which outlives a restart if the relay keeps state. It returns the number of objects that
// are about to be deleted.
func (s *Set) Order(name string, o Order) (n int, err error) {
	e, err := s.find(name)
	if err != nil {
		return 0, err
	}
	if n, err = e.order(o); err != nil {
		return 0, fmt.Errorf("%w: sink %s: %w", ErrNotPossible, name, err)
	}
	if err := e.save(); err != nil {
		return n, fmt.Errorf("the order is carried out, and a restart would undo it: %w", err)
	}
	return n, nil
}

func (e *engine) order(o Order) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case o.Verb == "release":
		return e.core.Release(o.Hold)
	case o.Verb == "prune" && !e.applies():
		return 0, errors.New("it has mode: dryRun, and deletes nothing: set mode: apply")
	case o.Verb == "prune":
		return e.core.Prune(), nil
	case o.Verb == "freeze" && e.frozen != nil:
		return 0, fmt.Errorf("it is frozen already, since %s", e.frozen.Since.UTC().Format(time.RFC3339))
	case o.Verb == "freeze":
		e.frozen = &Frozen{By: o.By, Reason: o.Reason, Since: time.Now()}
	case e.frozen == nil:
		return 0, errors.New("it is not frozen")
	default:
		e.frozen = nil
	}
	e.core.SetFrozen(e.frozen != nil)
	e.core.Keys(e.touch)
	return 0, nil
}
