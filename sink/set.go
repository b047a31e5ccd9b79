package sink

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"

	"meshrelay/mirror"
)

// Set has the sinks of a config. Any goroutine may call its methods.
type Set struct {
	deps *Deps

	mu      sync.Mutex // guards all below
	specs   map[string]Spec
	engines map[string]*engine
	wake    chan struct{}
}

// New returns a Set without sinks.
func New(d Deps) *Set {
	return &Set{deps: &d, engines: map[string]*engine{}, wake: make(chan struct{}, 1)}
}

// Apply sets the sinks. Those that have changed start again; those that have left keep their objects.
func (s *Set) Apply(specs []Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.specs = byName(specs)
	mirror.Signal(s.wake)
}

func byName(specs []Spec) map[string]Spec {
	out := map[string]Spec{}
	for _, spec := range specs {
		out[spec.Name] = spec
	}
	return out
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
	return slices.SortedFunc(maps.Values(s.engines), func(a, b *engine) int { return cmp.Compare(a.spec.Name, b.spec.Name) })
}

// same reports whether two specs do the same.
func (s Spec) same(o Spec) bool {
	s.Accepts, o.Accepts = nil, nil
	return reflect.DeepEqual(s, o)
}

// Run runs the sinks until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	for {
		s.bring(ctx)
		select {
		case <-ctx.Done():
			s.Apply(nil)
			s.bring(ctx)
			return nil
		case <-s.wake:
		}
	}
}

// bring ends sinks that are not wanted, and starts the others.
func (s *Set) bring(ctx context.Context) {
	s.mu.Lock()
	wanted := s.specs
	s.mu.Unlock()
	before := map[string]kept{}
	for _, e := range s.running() {
		if spec, is := wanted[e.spec.Name]; !is || !spec.same(e.spec) {
			e.cancel()
			<-e.ended
			s.mu.Lock()
			delete(s.engines, e.spec.Name)
			s.mu.Unlock()
			e.mu.Lock()
			before[e.spec.Name] = e.kept()
			e.mu.Unlock()
		}
	}
	for name, spec := range wanted {
		if _, err := s.find(name); err != nil {
			k, err := load(s.deps.Dir, name)
			if err != nil {
				s.deps.Logger.Error("state of a sink not read: it is frozen", "sink", name, "err", err)
			}
			if of, was := before[name]; was { // also without a directory
				k = of
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
}

// Absent is the State of a resource that the view of a sink does not show, and its cluster does not have.
const Absent = "absent"

// Applied is the state of a resource in the cluster of a sink.
type Applied struct {
	Sink string `json:"sink"`
	// State is applied, pending, excluded, absent, or a state of a Trouble.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Applied returns the state of a resource in the cluster of each sink.
func (s *Set) Applied(key mirror.Key) (all []Applied) {
	for _, e := range s.running() {
		all = append(all, e.applied(key))
	}
	return all
}
