// Package clusters finds the clusters that "clusters" of a config selects, in Secrets of a hub, and makes an
// upstream for each.
//
// It owns how kubeconfigs are read, and the list of clusters on disk, which never contains a kubeconfig.
// Package registry decides which clusters are followed.
//
// The package must not know what is served of the clusters.
package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"meshrelay/config"
	"meshrelay/internal/loglimit"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// ErrUnknown is the error of an order for clusters that are not in the config.
var ErrUnknown = errors.New("the config has no clusters")

// retry is the pause after a failed write of the list.
const retry = 5 * time.Second

// Finder finds clusters. Any goroutine may call its methods.
type Finder struct {
	log     *slog.Logger
	limit   *loglimit.Limit
	memory  memory
	pace    Pace
	changed chan struct{} // has an element when Upstreams may return others
	wake    chan struct{} // has an element when turn must run

	mu sync.Mutex // guards all below
	set
	access  map[string]*apiserver.Kubeconfig // by cluster ID, of each followed cluster
	restore []kept
	// run starts the reader of a part. It is nil before Run, and after its end.
	run func(*part)
}

// part is one element of config.Clusters.
type part struct {
	cfg      config.Clusters
	registry *registry.Registry
	due      time.Time        // time of the next tick, zero for none
	readAt   time.Time        // time of the last successful reading
	entries  []registry.Entry // of the last reading, unless the config of the reading has changed
	stop     func()           // nil while no reader runs
	// reading is the number of the present reader. Entries of former readers are ignored.
	reading int
}

// New returns a Finder. It keeps the list of clusters in dir, unless dir is empty. whole is false if that
// list could not be read: then the state of all upstreams must be retained.
func New(dir string, log *slog.Logger) (f *Finder, whole bool) {
	f = &Finder{
		log: log, limit: loglimit.New(50, 10*time.Second), memory: memory{dir: dir}, pace: Usual,
		changed: make(chan struct{}, 1), wake: make(chan struct{}, 1), access: map[string]*apiserver.Kubeconfig{},
	}
	f.take = func(p *part, e registry.Event) registry.Output {
		out, _ := f.step(p, e) // it is no order
		return out
	}
	var err error
	if f.restore, err = f.memory.load(); err != nil {
		f.memory.unread.Store(true)
		if !errors.Is(err, syscall.ENOTDIR) { // else state.dir is a file, and the state reports it
			log.Error("found clusters not read from disk", "err", err)
		}
	}
	return f, err == nil
}

// Changed returns a channel that has an element when Upstreams may return others.
func (f *Finder) Changed() <-chan struct{} { return f.changed }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Upstreams returns the upstreams of the found clusters, in order, as they would be with the config cfg. The
// error names a cluster that does not fit its template.
func (f *Finder) Upstreams(cfg *config.Config) (all []config.Upstream, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disconnect()
	next := f.next(cfg, func(p *part, e registry.Event) registry.Output {
		out, _ := p.registry.Step(time.Now(), e) // it is no order
		return out
	})
	for _, p := range next.parts {
		for _, one := range p.registry.Clusters() {
			u, err := upstreamOf(p.cfg, one.Name, one.ID, f.accessOf(one.ID))
			if err != nil {
				return nil, fmt.Errorf("clusters %s: cluster %s: upstream.%w", p.cfg.Name, one.ID, err)
			}
			all = append(all, u)
		}
	}
	return all, nil
}

// order passes an order to the registry of the part with a name.
func (f *Finder) order(name string, order registry.Event) (registry.Output, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.parts, func(p *part) bool { return p.cfg.Name == name })
	if i < 0 {
		return registry.Output{}, fmt.Errorf("%w %q", ErrUnknown, name)
	}
	out, err := f.step(f.parts[i], order)
	if out.Set {
		f.policies()
	}
	return out, err
}

// upstreamOf returns the upstream of a found cluster.
func upstreamOf(c config.Clusters, name, id string, access *apiserver.Kubeconfig) (config.Upstream, error) {
	section := *c.Upstream.Source.(*kubernetes.Config) // the config has been checked
	section.Found = access
	return c.For(name, id, &section)
}

// accessOf returns the Kubeconfig of a cluster. It stays the same when another part takes over the cluster,
// so that the upstream does not change. The caller holds mu.
func (f *Finder) accessOf(id string) *apiserver.Kubeconfig {
	if f.access[id] == nil {
		f.access[id] = apiserver.NewKubeconfig("its kubeconfig was not read since the start of the relay")
	}
	return f.access[id]
}

// disconnect drops the Kubeconfigs of clusters that no part follows. The caller holds mu.
func (f *Finder) disconnect() {
	followed := f.followed()
	maps.DeleteFunc(f.access, func(id string, _ *apiserver.Kubeconfig) bool { return !followed[id] })
}

// Adopt replaces the config, and starts the readers again.
func (f *Finder) Adopt(cfg *config.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.parts {
		if p.stop != nil {
			p.stop()
			p.stop = nil
		}
	}
	before, formers := f.parts, f.formers(cfg)
	f.set, f.restore = f.next(cfg, f.take), nil
	for i, p := range f.parts {
		if was := formers[i].Name; formers[i].part != nil && was != p.cfg.Name {
			f.log.Info("clusters renamed", "clusters", p.cfg.Name, "before", was)
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(formers, func(one former) bool { return one.part == p }) {
			f.tellEnd(p)
		}
	}
	for _, p := range f.parts {
		if f.run != nil {
			f.run(p)
		}
	}
	signal(f.changed)
	signal(f.wake)
}

// step passes an event to the registry of a part. The caller holds mu.
func (f *Finder) step(p *part, e registry.Event) (registry.Output, error) {
	out, err := p.registry.Step(time.Now(), e)
	for _, n := range out.Notes {
		f.limit.Log(f.log, n.Level, n.Message, append([]any{"clusters", p.cfg.Name}, n.Args...)...)
	}
	p.due = out.Wake
	for _, c := range p.registry.Clusters() {
		switch access := f.accessOf(c.ID); {
		case len(c.Kubeconfig) > 0:
			access.Set(c.Kubeconfig, trustOf(p.cfg))
		case c.State != registry.Found:
			access.Miss("its kubeconfig is gone, and kubeconfigs are not kept over a restart: what it gave is served")
		case c.Problem != "":
			access.Miss(c.Problem)
		}
	}
	if out.Set {
		signal(f.changed)
	}
	if out.Changed || !out.Wake.IsZero() {
		signal(f.wake)
	}
	return out, err
}

// told receives the entries or the error of a reader.
func (f *Finder) told(p *part, reading int, entries []registry.Entry, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if reading != p.reading || p.stop == nil {
		return
	}
	first := !p.answered()
	var out registry.Output
	if err != nil {
		out, _ = f.step(p, registry.Failed{Err: err}) // it is no order
	} else {
		p.readAt, p.entries = time.Now(), entries
		out = f.list(p)
	}
	if out.Set || first {
		f.policies()
	}
}

// Run reads the parts of the config until ctx ends, and then returns nil. It is called once.
func (f *Finder) Run(ctx context.Context) error {
	var running sync.WaitGroup
	f.mu.Lock()
	f.run = func(p *part) {
		p.reading++
		reading := p.reading
		ctx, cancel := context.WithCancel(ctx)
		p.stop = cancel
		cfg := p.cfg
		running.Go(func() {
			upstreams.Restart(ctx, f.log.With("clusters", cfg.Name), func(ctx context.Context) error {
				r := readerOf(cfg, f.pace)
				defer r.client.Close()
				r.follow(ctx, func(entries []registry.Entry, err error) { f.told(p, reading, entries, err) })
				return nil
			}, func(err error) { f.told(p, reading, nil, err) })
		})
	}
	for _, p := range f.parts {
		f.run(p)
	}
	f.mu.Unlock()
	for ctx.Err() == nil {
		timer := time.NewTimer(f.turn())
		select {
		case <-ctx.Done():
		case <-f.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	f.mu.Lock()
	f.run = nil
	for _, p := range f.parts {
		p.stop()
		p.stop = nil
	}
	f.mu.Unlock()
	running.Wait()
	f.turn()
	return nil
}

// turn runs expired timers, writes the list of clusters, and returns the pause until the next turn.
func (f *Finder) turn() time.Duration {
	f.mu.Lock()
	wait := time.Hour
	now, removed := time.Now(), false
	for _, p := range f.parts {
		if !p.due.IsZero() && !now.Before(p.due) {
			out, _ := f.step(p, registry.Tick{}) // it is no order
			removed = removed || out.Set
		}
	}
	if removed {
		f.policies()
	}
	for _, p := range f.parts {
		if !p.due.IsZero() {
			wait = min(wait, max(p.due.Sub(now), time.Millisecond))
		}
	}
	all, known := f.present()
	f.mu.Unlock()
	if f.memory.unread.Load() && !known {
		return wait
	}
	if err := f.memory.save(all); err != nil {
		f.limit.Warn(f.log, "found clusters not written to disk", "err", err)
		wait = min(wait, retry)
	}
	return wait
}

// Once reads every part of a config once, and returns the upstreams of the found clusters. Commands use it
// that run no relay.
func Once(ctx context.Context, cfg *config.Config) ([]config.Upstream, error) {
	f, _ := New("", slog.New(slog.DiscardHandler))
	f.Adopt(cfg)
	for _, p := range f.parts {
		r := readerOf(p.cfg, f.pace)
		entries, err := r.list(ctx)
		r.client.Close()
		if err != nil {
			return nil, fmt.Errorf("clusters %s: %w", p.cfg.Name, err)
		}
		p.stop = func() {}
		f.told(p, p.reading, entries, nil)
	}
	return f.Upstreams(cfg)
}

// Release makes the held clusters of a part orphaned, and returns their number.
func (f *Finder) Release(name string) (int, error) {
	out, err := f.order(name, registry.Release{})
	return out.Released, err
}

// Remove removes an orphaned or held cluster of a part.
func (f *Finder) Remove(name, id string) error {
	_, err := f.order(name, registry.Remove{ID: id})
	return err
}
