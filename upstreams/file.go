package upstreams

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"meshrelay/config"
	"meshrelay/internal/fswatch"
	"meshrelay/mirror"
	"meshrelay/state"
)

const (
	// fileQuiet and fileLongest bound how long a change of a file waits for others.
	fileQuiet   = 100 * time.Millisecond
	fileLongest = time.Second
	// fileRescan is how often everything is read again without a change, and fileBlindRescan
	// where the system does not report changes.
	fileRescan      = time.Minute
	fileBlindRescan = 5 * time.Second
)

// File mirrors a file, or a directory of files, of Kubernetes-style YAML.
type File struct {
	path     string // absolute
	log      *slog.Logger
	store    *mirror.Store
	importer *importer
	gate     *gate
	limits   config.Limits

	scanner *scanner // belongs to Run
	// again has an element when the files are to be read once more.
	again chan struct{}

	// mu guards all below. Only Run writes to them.
	mu   sync.Mutex
	held map[mirror.Key]*heldFile // by the key that the files have
	// fresh says that the files have not all been read, and been free of mistakes, since the
	// start: what is served besides what they say, which is carried, may be in those that are
	// broken.
	fresh   bool
	carried map[mirror.Key]state.Record // by the key under which they are held here
	// asked tells that the gate waits for all files to be read once more.
	asked   bool
	status  Status
	dropped [reasons]int
	bytes   int // of what is held
	panics  uint64
	fault   func(*mirror.Resource) // only tests set it, to panic
}

// known returns the keys of what the files have: first those that are held already, so that
// what is new is refused when there is no room for all.
func (f *File) known(merged map[mirror.Key]*entry) []mirror.Key {
	if len(merged) <= f.limits.MaxResources && f.bytes < f.limits.MaxBytes/2 {
		return slices.Collect(maps.Keys(merged)) // there is room, most likely
	}
	return slices.SortedFunc(maps.Keys(merged), func(a, b mirror.Key) int {
		if x, y := f.has(a), f.has(b); x != y {
			if x {
				return -1
			}
			return 1
		}
		return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), cmp.Compare(a.FullName(), b.FullName()))
	})
}

// has reports whether a resource is held already, perhaps since before the start.
func (f *File) has(key mirror.Key) bool {
	return f.held[key] != nil || f.store.Get(f.importer.keyOf(key)) != nil
}

// room returns an error when a resource is larger than the limits allow, or there is no
// room for it. h is nil for a new one.
func (f *File) room(h *heldFile, r *mirror.Resource) error {
	l, size, held := f.limits, len(r.DeltaEntry()), 0
	if h != nil && h.resource != nil {
		held = len(h.resource.DeltaEntry())
	}
	switch {
	case l.MaxResourceBytes > 0 && size > l.MaxResourceBytes:
		return fmt.Errorf(overLimit+"%d bytes, and limits.maxResourceBytes of the upstream is %d", size, l.MaxResourceBytes)
	case h == nil && l.MaxResources > 0 && len(f.held) >= l.MaxResources:
		return fmt.Errorf(overLimit+"%w limits.maxResources, which is %d", errFull, l.MaxResources)
	case l.MaxBytes > 0 && size > held && f.bytes+size-held > l.MaxBytes:
		return fmt.Errorf(overLimit+"%w limits.maxBytes, which is %d", errFull, l.MaxBytes)
	case held == 0:
		return f.gate.room(l, f.importer.keyOf(r.Key()), len(f.held), f.bytes+size)
	}
	return nil
}

// account makes r what is held.
func (f *File) account(h *heldFile, r *mirror.Resource) {
	if h.resource != nil {
		f.bytes -= len(h.resource.DeltaEntry())
	}
	if h.resource = r; r != nil {
		f.bytes += len(r.DeltaEntry())
	}
}

// kept returns what is kept of a resource that is held as r.
func (h *heldFile) kept(r *mirror.Resource) state.Record {
	return state.Record{Resource: r, Original: h.original, At: h.since.Truncate(time.Second)}
}

// putAll tells the gate all that the files say. The caller holds mu, and is between restate
// and finish.
func (f *File) putAll() {
	put := func(r state.Record) {
		defer func() {
			if p := mirror.Recovered(recover()); p != nil {
				_ = f.costs(r.Resource.Key().String(), p) // what is served of it stays
			}
		}()
		f.gate.put(r)
	}
	for _, r := range f.carried {
		put(r)
	}
	for _, h := range f.held {
		if h.resource != nil {
			put(h.kept(h.resource))
		}
	}
}

// heldFile is a resource of a file and what has become of it.
type heldFile struct {
	from     *mirror.Resource
	resource *mirror.Resource // as it is held; nil when it is left out, or refused from the start
	original *mirror.Resource // as the file has it, and stamped, when that has been reshaped
	dropped  Reason
	detail   string // dropped, in a sentence
	refused  string // why it can not be reshaped
	since    time.Time
}

// NewFile returns a source that has not read anything yet.
func NewFile(cfg config.Upstream, provenance config.Provenance, store *mirror.Store, log *slog.Logger) (*File, error) {
	f, err := newFile(cfg, provenance, newGate(cfg, store, log.With("upstream", cfg.Name)), log)
	if err == nil {
		f.gate.follows(f)
	}
	return f, err
}

func newFile(cfg config.Upstream, provenance config.Provenance, gate *gate, log *slog.Logger) (*File, error) {
	im, err := newImporter(cfg, provenance)
	if err != nil {
		return nil, err
	}
	path := cfg.File.Path
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &File{
		path: path, log: log.With("upstream", cfg.Name), gate: gate, store: gate.store, importer: im, limits: cfg.Limits, fresh: true,
		scanner: newScanner(cfg.Name), again: make(chan struct{}, 1),
		held: map[mirror.Key]*heldFile{},
		status: Status{
			Name: cfg.Name, ClusterID: cfg.ClusterID, Type: "file", Required: cfg.Required,
			State: StateConnecting, Since: time.Now(), Address: cfg.File.Path,
		},
	}, nil
}

// Run implements Source: it reads the path, and again whenever something changes
// there. A path that can not be read is tried again; what it gave stays.
func (f *File) Run(ctx context.Context) error {
	defer f.gate.contact(false) // so that it is known on disk until when there was
	pause := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, MaxInterval: 15 * time.Second, RandomizationFactor: 0.1, Multiplier: 1.5}
	pause.Reset()
	for {
		err := f.followSafely(ctx, pause.Reset)
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

// followSafely is follow, with a panic as an error: the files are read again.
func (f *File) followSafely(ctx context.Context, good func()) (err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			err = f.costs(f.path, p)
		}
	}()
	return f.follow(ctx, good)
}

// costs counts and logs a panic, and returns it as an error of the resource. The caller holds
// mu.
func (f *File) costs(resource string, p *mirror.Panic) error {
	f.panics++
	sayPanic(f.log, resource, f.panics, p)
	return p
}

// follow reads and watches until the path can not be read or ctx ends. It calls good
// after each reading. Each call watches anew: what comes back at a path is not what
// was watched there.
func (f *File) follow(ctx context.Context, good func()) error {
	w := fswatch.New(fswatch.Options{Quiet: fileQuiet, Longest: fileLongest, Rescan: fileRescan, Poll: fileBlindRescan})
	defer w.Close()
	for {
		// Watches first, so that what changes during the reading is noticed.
		found, err := listFiles(f.path)
		if err != nil {
			return err
		}
		blind := w.Watch(f.path, found.dirs...)
		if blind != nil {
			blind = fmt.Errorf("files are read every %v, as they can not be watched: %w", fileBlindRescan, blind)
		}
		repeating := f.isAsked()
		if err := f.scanner.scan(f.path); err != nil {
			return err
		}
		f.apply(blind)
		if repeating {
			f.repeated()
		}
		good()
		if _, err := w.Wait(ctx, f.scanner.unsettled || f.scanner.recent && f.isFresh(), f.again); err != nil {
			return nil // ctx has ended
		}
	}
}

// repeat implements Source.
func (f *File) repeat(bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = true
	select {
	case f.again <- struct{}{}:
	default:
	}
}

// isAsked reports whether what is read from now on is what the gate has asked for.
func (f *File) isAsked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// repeated tells the gate that all files have been read once more. Files that are broken or
// being written may have what seems to be gone: then the next reading counts.
func (f *File) repeated() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.scanner.clean() && !f.scanner.unsettled {
		f.asked = false
		f.gate.repeated()
	}
}

func (f *File) isFresh() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fresh
}

// apply brings the store to what the files say. blind is why changes may be noticed
// late, or nil.
func (f *File) apply(blind error) {
	merged, problems, total := f.scanner.merge()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate.begin()
	gone := f.gate.departures
	ended := false
	defer func() {
		if !ended { // of a panic, which is told of elsewhere
			f.gate.end(true)
		}
	}()
	changes := 0
	var unshaped []Refusal
	for _, key := range f.known(merged) {
		e, h := merged[key], f.held[key]
		if h == nil {
			if err := f.room(nil, e.resource); err != nil {
				unshaped = append(unshaped, Refusal{Resource: key.String(), Reason: err.Error()})
				continue
			}
			h = &heldFile{}
			f.held[key] = h
		}
		if h.from != e.resource {
			if err := f.room(h, e.resource); err != nil {
				h.refused = err.Error()
			} else if f.take(key, h, e.resource) {
				changes++
			}
		}
		if h.refused != "" {
			unshaped = append(unshaped, Refusal{Resource: key.String(), Reason: h.refused})
		}
	}
	slices.SortFunc(unshaped, func(a, b Refusal) int { return cmp.Compare(a.Resource, b.Resource) })
	problems, total = append(problems, unshaped...), total+len(unshaped)
	for key, h := range f.held {
		if merged[key] != nil {
			continue
		}
		here := f.importer.keyOf(key)
		if _, carried := f.carried[here]; carried || h.resource != nil {
			f.gate.remove(here)
		}
		delete(f.carried, here)
		f.account(h, nil)
		f.dropped[h.dropped]--
		delete(f.held, key)
	}
	settles := f.fresh && (len(f.carried) == 0 || f.scanner.clean())
	// What is gone is judged together: here, or below, or when that has settled.
	ended = true
	changes += f.gate.end(settles || f.fresh && (f.scanner.recent || f.scanner.unsettled))
	if settles {
		f.fresh, f.carried = false, nil
	}
	if f.gate.contact(true) || settles {
		f.gate.restate()
		if settles { // it is as an answer of a new stream
			f.gate.opening, f.gate.openedAt = true, gone
		}
		f.putAll()
		if f.fresh {
			f.gate.keepRest()
		}
		changes += f.gate.finish(false, false)
	}

	st := &f.status
	problems = slices.Clone(problems[:min(len(problems), maxRefused)])
	for _, p := range problems {
		if !slices.Contains(st.Refused, p) {
			f.log.Warn("refused", "resource", p.Resource, "err", p.Reason)
		}
	}
	if len(problems) == 0 && len(st.Refused) > 0 {
		f.log.Info("nothing is refused any more", "path", f.path)
	}
	if st.State == StateFailed {
		f.log.Info("path can be read again", "path", f.path)
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
		f.log.Info("files read", "path", f.path, "resources", len(f.held), "changes", changes, "refused", total)
	}
	if st.State != StateSynced {
		st.State, st.Since = StateSynced, time.Now()
	}
	if !st.Synced {
		st.Synced = true
		f.store.SetSynced()
	}
}

// take makes r, as the files have it, what is held, left out or reshaped, and reports
// whether that is a change to clients. What can not be reshaped leaves what is held.
func (f *File) take(key mirror.Key, h *heldFile, r *mirror.Resource) (changed bool) {
	h.from, h.refused = r, ""
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			h.refused, changed = f.costs(key.String(), p).Error(), false
		}
	}()
	if f.fault != nil {
		f.fault(r)
	}
	here := f.importer.keyOf(key)
	reason, detail := f.importer.check(r, nil, false)
	if reason == imported {
		stamped := r.Stamped(f.importer.stamp)
		held, reshaped, err := f.importer.reshape(stamped, nil)
		if err != nil {
			h.refused = err.Error()
			return false
		}
		h.original = nil
		if reshaped {
			h.original = stamped
		}
		delete(f.carried, here)
		stored, differs := f.gate.put(h.kept(held))
		f.account(h, stored)
		changed = differs
	} else if _, carried := f.carried[here]; carried || h.resource != nil {
		delete(f.carried, here)
		f.gate.remove(here)
		changed = true
		f.account(h, nil)
	}
	f.dropped[h.dropped]--
	f.dropped[reason]++
	if changed || h.since.IsZero() || h.dropped != reason {
		h.since = time.Now()
	}
	h.dropped, h.detail = reason, detail
	return changed
}

// LeftOut implements Source.
func (f *File) LeftOut() []LeftOut {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []LeftOut
	for key, h := range f.held {
		if h.dropped != imported {
			out = append(out, leftOut(f.importer.source, key, h.dropped, h.detail))
		}
	}
	return sortLeftOut(out)
}

// Trace implements Source.
func (f *File) Trace(key mirror.Key) []Trace {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Trace
	for original, h := range f.held {
		if original.Kind != key.Kind || original != key && f.importer.keyOf(original) != key {
			continue
		}
		out = append(out, Trace{
			Upstream: f.importer.source, Original: original, Key: f.importer.keyOf(original),
			Reason: h.dropped.String(), Detail: h.detail, Refused: h.refused,
			Resource: h.resource, Since: h.since, From: h.from,
		})
	}
	if t, ok := f.gate.trace(key); ok && len(out) == 0 {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Trace) int { return cmp.Compare(a.Original.FullName(), b.Original.FullName()) })
	return out
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
	f.gate.contact(false)
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
	st.Dropped, st.Panics = droppedByName(f.dropped), f.panics
	for _, p := range st.Refused {
		if strings.HasPrefix(p.Reason, overLimit) {
			st.OverLimit++
		}
	}
	f.gate.status(&st)
	return st
}
