package sink

import (
	"errors"
	"fmt"
	"time"

	"meshrelay/config"
	"meshrelay/sink/plan"
)

// ErrUnknown is the error of an order about a sink that there is not.
var ErrUnknown = errors.New("there is no such sink")

// ErrNotPossible is the error of an order that the state of the sink does not allow.
var ErrNotPossible = errors.New("not possible")

// find returns a running sink.
func (s *Set) find(name string) (*engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.engines[name]; e != nil && !e.spec.emptied {
		return e, nil
	}
	return nil, fmt.Errorf("%w: %.64q: \"relay sink status\" lists the sinks", ErrUnknown, name)
}

// Freeze has a sink write and delete nothing until Unfreeze, also after a restart if the relay keeps state.
func (s *Set) Freeze(name string, f Frozen) error {
	return s.order(name, func(e *engine) error {
		if e.frozen != nil {
			return fmt.Errorf("%w: the sink %s is frozen already, since %s", ErrNotPossible, name, e.frozen.Since.UTC().Format(time.RFC3339))
		}
		e.freeze(&f)
		return nil
	})
}

// Unfreeze ends a Freeze.
func (s *Set) Unfreeze(name string) error {
	return s.order(name, func(e *engine) error {
		if e.frozen == nil {
			return fmt.Errorf("%w: the sink %s is not frozen", ErrNotPossible, name)
		}
		e.freeze(nil)
		return nil
	})
}

// freeze sets or ends the freeze. The caller holds mu.
func (e *engine) freeze(f *Frozen) {
	e.frozen = f
	e.core.SetFrozen(f != nil)
	e.touchAll()
}

// touchAll has workers look at all keys. The caller holds mu.
func (e *engine) touchAll() { e.core.Keys(e.touch) }

// Release lets the held deletions of a sink go, if the guard holds exactly those of the ID. It returns their number.
func (s *Set) Release(name, hold string) (n int, err error) {
	err = s.order(name, func(e *engine) error {
		if n, err = e.core.Release(hold); errors.Is(err, plan.ErrHold) {
			return fmt.Errorf("%w: %w", ErrNotPossible, err)
		}
		return nil
	})
	return n, err
}

// Prune deletes the objects of a sink that are not desired any more, whatever its guard and prune are; of a sink that
// has left the config, all of them. It returns the number of objects, which is -1 where it is not known yet. Deletions go
// on after it has returned.
func (s *Set) Prune(name string) (n int, err error) {
	s.mu.Lock()
	running := s.engines[name]
	s.mu.Unlock()
	if running == nil {
		return -1, s.empty(name)
	}
	err = s.order(name, func(e *engine) error {
		if !e.writes() {
			return fmt.Errorf("%w: the sink %s has mode: dryRun, and deletes nothing: set mode: apply", ErrNotPossible, name)
		}
		n = e.core.Prune()
		return nil
	})
	return n, err
}

// order carries out an order with the lock of the sink held, and then has it outlive a restart.
func (s *Set) order(name string, do func(*engine) error) error {
	e, err := s.find(name)
	if err != nil {
		return err
	}
	e.mu.Lock()
	err = do(e)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := e.save(); err != nil {
		return fmt.Errorf("the order is carried out, and a restart would undo it: %w", err)
	}
	return nil
}

// empty runs a sink that has left the config until it has no object any more.
func (s *Set) empty(name string) error {
	k, ok := s.deps.memory.get(name)
	if !ok {
		return fmt.Errorf("%w: %.64q: the relay has not kept to which cluster it wrote: add the sink to the config with mode: apply and an empty view, or delete its objects with kubectl", ErrUnknown, name)
	}
	spec := Spec{emptied: true, Sink: config.Sink{
		Name: name, Kubernetes: k.Cluster, Namespace: k.Namespace, Mode: config.SinkApply, WritesPerSecond: defaultWrites,
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.specs[name]; is { // else all would go when it leaves the config
		return fmt.Errorf("%w: the sink %s starts: try again", ErrNotPossible, name)
	}
	s.emptied[name] = spec
	s.poke()
	return nil
}

const defaultWrites = 20 // as in package config
