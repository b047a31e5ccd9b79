package upstreams

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"

	"meshrelay/config"
	"meshrelay/mirror"
)

// Source keeps one store filled.
type Source interface {
	// Run works until ctx ends, and then returns nil. It is called once.
	Run(ctx context.Context) error
	// Status may be called from any goroutine, at any time.
	Status() Status
	// Trace returns what became of the resources that are, or are held as, a key. It may be
	// called from any goroutine, at any time.
	Trace(key mirror.Key) []Trace
	// LeftOut returns what is not imported, sorted. It may be called from any goroutine, at
	// any time.
	LeftOut() []LeftOut
}

// Manager runs the sources of a config, each with a store of its own, and makes them
// the sources of an Aggregate.
type Manager struct {
	sources []Source
	stores  []*mirror.Store
}

// NewManager makes the sources of a config, in order of priority. None runs yet. All
// that is wrong with any of them is returned at once.
func NewManager(cfg *config.Config, aggregate *mirror.Aggregate, log *slog.Logger) (*Manager, error) {
	m := &Manager{}
	var merged []mirror.Source
	var errs *multierror.Error
	for _, u := range cfg.Upstreams {
		store := mirror.NewStore()
		var source Source
		switch {
		case u.XDS != nil:
			x, err := NewXDS(u, cfg.Node, cfg.Provenance, store, log)
			if err != nil {
				errs = multierror.Append(errs, err)
				continue
			}
			source = x
		case u.File != nil:
			f, err := NewFile(u, cfg.Provenance, store, log)
			if err != nil {
				errs = multierror.Append(errs, err)
				continue
			}
			source = f
		default:
			errs = multierror.Append(errs, fmt.Errorf("upstream %s: neither xds nor file", u.Name))
			continue
		}
		m.sources = append(m.sources, source)
		m.stores = append(m.stores, store)
		merged = append(merged, mirror.Source{Name: u.Name, Cache: store})
	}
	if err := errs.ErrorOrNil(); err != nil {
		m.close()
		return nil, err
	}
	if err := aggregate.SetSources(merged); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// close frees what sources that will not run hold.
func (m *Manager) close() {
	for _, s := range m.sources {
		if x, ok := s.(*XDS); ok {
			x.free()
		}
	}
}

// Run runs every source and its store until ctx ends. It is called once.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, source := range m.sources {
		g.Go(func() error { return m.stores[i].Run(ctx) })
		g.Go(func() error { return source.Run(ctx) })
	}
	return g.Wait()
}

// Trace returns what became of a key in every source, in order of priority.
func (m *Manager) Trace(key mirror.Key) []Trace {
	var out []Trace
	for _, s := range m.sources {
		out = append(out, s.Trace(key)...)
	}
	return out
}

// LeftOut returns what is not imported, by source in order of priority.
func (m *Manager) LeftOut() []LeftOut {
	var out []LeftOut
	for _, s := range m.sources {
		out = append(out, s.LeftOut()...)
	}
	return out
}

// Status returns the status of every source, in order of priority.
func (m *Manager) Status() []Status {
	out := make([]Status, 0, len(m.sources))
	for _, s := range m.sources {
		out = append(out, s.Status())
	}
	return out
}
