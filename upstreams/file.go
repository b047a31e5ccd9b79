package upstreams

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/fsnotify/fsnotify"

	"meshrelay/config"
	"meshrelay/mirror"
)

const (
	// fileQuiet and fileLongest bound how long a change of a file waits for others.
	fileQuiet   = 100 * time.Millisecond
	fileLongest = time.Second
	// fileRescan is how often everything is read again, in case the file system does
	// not tell of changes (network file systems do not).
	fileRescan = time.Minute
)

// File mirrors a file, or a directory of files, of Kubernetes-style YAML.
type File struct {
	path  string
	log   *slog.Logger
	store *mirror.Store

	// scanner and served belong to Run.
	scanner scanner
	served  map[mirror.Key]*mirror.Resource

	mu     sync.Mutex // guards status
	status Status
}

// NewFile returns a source that has not read anything yet.
func NewFile(cfg config.Upstream, store *mirror.Store, log *slog.Logger) *File {
	return &File{
		path: cfg.File.Path, log: log.With("upstream", cfg.Name), store: store,
		scanner: scanner{source: cfg.Name, files: map[string]*parsed{}},
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
	pause := &backoff.ExponentialBackOff{InitialInterval: time.Second, MaxInterval: 30 * time.Second, RandomizationFactor: 0.1, Multiplier: 1.5}
	pause.Reset()
	for {
		err := f.follow(ctx, pause.Reset)
		if ctx.Err() != nil {
			return nil
		}
		f.failed(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// follow reads and watches until that fails or ctx ends. It calls good after each
// reading.
func (f *File) follow(ctx context.Context, good func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	// A path that is a link is watched where the link stands, too: swapping it is how
	// such a path changes.
	if err := watcher.Add(filepath.Dir(f.path)); err != nil {
		return err
	}
	rescan := time.NewTicker(fileRescan)
	defer rescan.Stop()
	for {
		// Watches first, so that what changes during the reading is noticed.
		_, dirs, err := configFiles(f.path)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if err := watcher.Add(dir); err != nil {
				return err
			}
		}
		if err := f.read(); err != nil {
			return err
		}
		good()
		if err := changed(ctx, watcher, rescan.C); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// changed waits for something to change, and then for that to end.
func changed(ctx context.Context, watcher *fsnotify.Watcher, rescan <-chan time.Time) error {
	var quiet, longest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return err
		case <-watcher.Events:
			quiet = time.After(fileQuiet)
			if longest == nil {
				longest = time.After(fileLongest)
			}
		case <-quiet:
			return nil
		case <-longest:
			return nil
		case <-rescan:
			return nil
		}
	}
}

// read brings the store to what the files say.
func (f *File) read() error {
	if err := f.scanner.scan(f.path); err != nil {
		return err
	}
	resources, problems := f.scanner.merge()
	changes := 0
	for key, r := range resources {
		if f.served[key].Equal(r) && f.served[key].SourceVersion() == r.SourceVersion() {
			resources[key] = f.served[key]
			continue
		}
		stored, differs := f.store.Put(r)
		resources[key] = stored
		if differs {
			changes++
		}
	}
	for key := range f.served {
		if resources[key] == nil {
			f.store.Remove(key)
			changes++
		}
	}
	f.served = resources

	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	for _, p := range problems {
		if !contains(st.Refused, p) {
			f.log.Warn("refused; the last good content of the file stays in force", "resource", p.Resource, "err", p.Reason)
		}
	}
	st.RefusedTotal = len(problems)
	st.Refused = problems[:min(len(problems), maxRefused)]
	st.LastError = ""
	if changes > 0 || !st.Synced {
		st.LastUpdate = time.Now()
		f.log.Info("files read", "path", f.path, "resources", len(resources), "changes", changes, "refused", len(problems))
	}
	if st.State != StateSynced {
		st.State, st.Since = StateSynced, time.Now()
	}
	if !st.Synced {
		st.Synced = true
		f.store.SetSynced()
	}
	return nil
}

func contains(have []Refusal, r Refusal) bool {
	for _, h := range have {
		if h == r {
			return true
		}
	}
	return false
}

func (f *File) failed(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := &f.status
	if err == nil {
		return
	}
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
	st.Resources = countsByName(f.store)
	return st
}
