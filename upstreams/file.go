package upstreams

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"meshrelay/config"
	"meshrelay/mirror"
)

// File mirrors a file, or a directory of files, of Kubernetes-style YAML.
type File struct {
	path  string // absolute
	log   *slog.Logger
	store *mirror.Store

	// scanner and served belong to Run.
	scanner *scanner
	served  map[mirror.Key]*mirror.Resource

	mu     sync.Mutex // guards status
	status Status
}

// NewFile returns a source that has not read anything yet.
func NewFile(cfg config.Upstream, store *mirror.Store, log *slog.Logger) *File {
	path := cfg.File.Path
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &File{
		path: path, log: log.With("upstream", cfg.Name), store: store,
		scanner: newScanner(cfg.Name),
		served:  map[mirror.Key]*mirror.Resource{},
		status: Status{
			Name: cfg.Name, ClusterID: cfg.ClusterID, Type: "file",
			State: StateConnecting, Since: time.Now(), Address: cfg.File.Path,
		},
	}
}

// Run implements Source: it reads the path, and again whenever something changes
// there. A path that can not be read is tried again; what it gave stays.
func (f *File) Run(ctx context.Context) error {
	pause := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, MaxInterval: 15 * time.Second, RandomizationFactor: 0.1, Multiplier: 1.5}
	pause.Reset()
	for {
		err := f.follow(ctx, pause.Reset)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		f.failed(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// follow reads and watches until the path can not be read or ctx ends. It calls good
// after each reading. Each call watches anew: what comes back at a path is not what
// was watched there.
func (f *File) follow(ctx context.Context, good func()) error {
	w := newWatch(f.path)
	defer w.close()
	for {
		// Watches first, so that what changes during the reading is noticed.
		found, err := listFiles(f.path)
		if err != nil {
			return err
		}
		blind := w.cover(found.dirs)
		if err := f.scanner.scan(f.path); err != nil {
			return err
		}
		f.apply(blind)
		good()
		if err := w.wait(ctx, f.scanner.unsettled); err != nil {
			return nil // ctx has ended
		}
	}
}

// apply brings the store to what the files say. blind is why changes may be noticed
// late, or nil.
func (f *File) apply(blind error) {
	merged, problems, total := f.scanner.merge()
	next := make(map[mirror.Key]*mirror.Resource, len(merged))
	changes := 0
	for key, e := range merged {
		if have := f.served[key]; have != e.resource {
			stored, differs := f.store.Put(e.resource)
			e.resource = stored // equal content is not held twice
			if differs {
				changes++
			}
		}
		next[key] = e.resource
	}
	for key := range f.served {
		if next[key] == nil {
			f.store.Remove(key)
			changes++
		}
	}
	f.served = next

	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	problems = slices.Clone(problems[:min(len(problems), maxRefused)])
	for _, p := range problems {
		if !slices.Contains(st.Refused, p) {
			f.log.Warn("refused", "resource", p.Resource, "err", p.Reason)
		}
	}
	st.Refused, st.RefusedTotal = problems, total
	lastError := ""
	if blind != nil {
		lastError = blind.Error()
		if st.LastError != lastError {
			f.log.Warn("changes of files are noticed late", "path", f.path, "err", blind)
		}
	}
	st.LastError = lastError
	if changes > 0 || !st.Synced {
		st.LastUpdate = time.Now()
		f.log.Info("files read", "path", f.path, "resources", len(next), "changes", changes, "refused", total)
	}
	if st.State != StateSynced {
		st.State, st.Since = StateSynced, time.Now()
	}
	if !st.Synced {
		st.Synced = true
		f.store.SetSynced()
	}
}

func (f *File) failed(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	if st.LastError != err.Error() {
		f.log.Warn("path can not be read; what it gave stays in force", "path", f.path, "err", err)
	}
	st.LastError = err.Error()
	if st.State != StateFailed {
		st.State, st.Since = StateFailed, time.Now()
	}
}

// Status implements Source.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.status
	st.Refused = slices.Clone(st.Refused)
	st.Resources = countsByName(f.store)
	return st
}
