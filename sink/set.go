package sink

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"meshrelay/mirror"
)

// Set has the sinks of a config. Any goroutine may call its methods.
type Set struct {
	deps *Deps

	mu      sync.Mutex // guards all below
	specs   map[string]Spec
	emptied map[string]Spec // sinks that have left the config, whose objects are deleted
	engines map[string]*engine
	wake    chan struct{}
}

// New returns a Set without sinks.
func New(d Deps) *Set {
	d.memory = &memory{dir: d.Dir}
	if err := d.memory.load(); err != nil {
		d.Logger.Error("state of sinks not read: all are frozen", "err", err)
		d.memory.lost = &Frozen{By: "the relay", Reason: "the state of sinks was not read", Since: time.Now()}
	}
	return &Set{deps: &d, specs: map[string]Spec{}, emptied: map[string]Spec{}, engines: map[string]*engine{}, wake: make(chan struct{}, 1)}
}

// Apply sets the sinks. Those that have changed start again; those that have left keep their objects.
func (s *Set) Apply(specs []Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs = map[string]Spec{}
	for _, spec := range specs {
		s.specs[spec.Name] = spec
		delete(s.emptied, spec.Name)
	}
	s.poke()
}

func (s *Set) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Changed notes that the resources of a key may have changed. It does not wait.
func (s *Set) Changed(key mirror.Key) {
	for _, e := range s.running() {
		e.changed(key)
	}
}

// running returns the sinks that run, sorted by name.
func (s *Set) running() []*engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*engine, 0, len(s.engines))
	for _, e := range s.engines {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *engine) int { return cmp.Compare(a.spec.Name, b.spec.Name) })
	return all
}

// same reports whether two specs do the same.
func (s Spec) same(o Spec) bool {
	s.Accepts, o.Accepts = nil, nil
	return reflect.DeepEqual(s, o)
}

// Run runs the sinks until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	tick := time.NewTicker(judgeEach)
	defer tick.Stop()
	for {
		s.bring(ctx)
		select {
		case <-ctx.Done():
			s.mu.Lock()
			s.specs, s.emptied = nil, nil
			s.mu.Unlock()
			s.bring(ctx)
			return nil
		case <-s.wake:
		case <-tick.C:
		}
	}
}

// bring ends sinks that are not wanted, and starts the others.
func (s *Set) bring(ctx context.Context) {
	wanted := map[string]Spec{}
	s.mu.Lock()
	for name, spec := range s.emptied {
		wanted[name] = spec
	}
	for name, spec := range s.specs {
		wanted[name] = spec
	}
	s.mu.Unlock()
	for _, e := range s.running() {
		if spec, is := wanted[e.spec.Name]; is && spec.same(e.spec) && !e.done() {
			delete(wanted, e.spec.Name)
			continue
		}
		e.cancel()
		<-e.ended
		s.mu.Lock()
		delete(s.engines, e.spec.Name)
		if e.done() {
			delete(s.emptied, e.spec.Name)
			delete(wanted, e.spec.Name)
			s.deps.memory.forget(e.spec.Name) //nolint:errcheck // the next start may ask the cluster again
		}
		s.mu.Unlock()
	}
	for name, spec := range wanted {
		k, _ := s.deps.memory.get(name)
		if spec.emptied {
			k = kept{Name: name}
		}
		e := newEngine(spec, s.deps, k)
		ctx, cancel := context.WithCancel(ctx)
		e.cancel = cancel
		s.mu.Lock()
		s.engines[name] = e
		s.mu.Unlock()
		go e.run(ctx)
	}
}

// done reports whether a sink that has left the config has no object any more.
func (e *engine) done() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, owned := e.core.Counts()
	return e.spec.emptied && !e.complete.IsZero() && owned == 0
}

// Applied is the state of a resource in the cluster of a sink.
type Applied struct {
	Sink string `json:"sink"`
	// State is applied, pending, excluded, absent, or a state of a Trouble.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Applied returns the state of a resource in the cluster of each sink: "absent" where the view does not show it, and the
// cluster has none.
func (s *Set) Applied(key mirror.Key) (all []Applied) {
	for _, e := range s.running() {
		if !e.spec.emptied {
			all = append(all, e.applied(key))
		}
	}
	return all
}
