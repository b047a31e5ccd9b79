// Package file brings what a file has, or a directory of files, of Kubernetes-style YAML.
//
// It owns how files are found, watched and read. The package must not know what is served of what it
// brings, nor what else there is.
package file

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"meshrelay/config"
	"meshrelay/internal/fswatch"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

func init() {
	upstreams.Register(upstreams.Kind{
		Name: "file",
		Has:  func(u config.Upstream) bool { return u.File != nil },
		New:  func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) { return New(u, env), nil },
	})
}

const (
	// maxRefused bounds the refusals that a status lists.
	maxRefused = 100
	// quiet and longest bound how long a change of a file waits for others.
	quiet   = 100 * time.Millisecond
	longest = time.Second
	// rescan is how often everything is read again without a change, and blindRescan where the
	// system does not report changes.
	rescan      = time.Minute
	blindRescan = 5 * time.Second
)

// Source brings what a file, or a directory of files, has.
type Source struct {
	path    string // absolute
	log     *slog.Logger
	scanner *scanner // belongs to Run
	// again has an element when the files are to be read once more.
	again chan struct{}
	// settled reports whether all files were read once, to the end and without mistakes.
	settled bool
	// told are the kinds of which the feed was told something, and refused what it refuses of
	// them. All belong to Run.
	told    map[mirror.Kind]struct{}
	refused []upstreams.Refusal

	mu sync.Mutex // guards all below
	// st has the fields of the status that only the source knows. Its refusals are those of the
	// files themselves.
	st upstreams.Status
	// asked reports whether all files are to be read once more because the feed has asked for it.
	asked bool
}

// New returns a source that has not read anything yet. A path that is not there is waited for.
func New(cfg config.Upstream, env upstreams.Env) *Source {
	path := cfg.File.Path
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &Source{
		path: path, log: env.Log, scanner: newScanner(cfg.Name), again: make(chan struct{}, 1), told: map[mirror.Kind]struct{}{},
		st: upstreams.Status{State: upstreams.StateConnecting, Since: time.Now(), Address: cfg.File.Path},
	}
}

// Run implements upstreams.Source: it reads the path, and again whenever something changes there. A
// path that can not be read is tried again; what it gave stays.
func (s *Source) Run(ctx context.Context, feed upstreams.Feed) error {
	pause := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, MaxInterval: 15 * time.Second, RandomizationFactor: 0.1, Multiplier: 1.5}
	pause.Reset()
	for {
		err := s.followSafely(ctx, feed, pause.Reset)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		s.fail(feed, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// followSafely is follow, with a panic as an error: the files are read again.
func (s *Source) followSafely(ctx context.Context, feed upstreams.Feed, good func()) (err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			feed.Panicked(s.path, p)
			err = p
		}
	}()
	return s.follow(ctx, feed, good)
}

// follow reads and watches until the path can not be read or ctx ends. It calls good after each
// reading. Each call watches anew: what comes back at a path is not what was watched there.
func (s *Source) follow(ctx context.Context, feed upstreams.Feed, good func()) error {
	w := fswatch.New(fswatch.Options{Quiet: quiet, Longest: longest, Rescan: rescan, Poll: blindRescan})
	defer w.Close()
	for {
		// Watches first, so that what changes during the reading is noticed.
		found, err := listFiles(s.path)
		if err != nil {
			return err
		}
		blind := w.Watch(s.path, found.dirs...)
		if blind != nil {
			blind = fmt.Errorf("files are read every %v, as they can not be watched: %w", blindRescan, blind)
		}
		if err := s.read(feed, blind); err != nil {
			return err
		}
		good()
		s.settled = s.settled || s.scanner.clean()
		soon := s.scanner.unsettled || s.scanner.recent && !s.settled
		if _, err := w.Wait(ctx, soon, s.again); err != nil {
			return nil // ctx has ended
		}
	}
}

// Read reads the path once. Run does that by itself. It reports whether the path can be read.
func (s *Source) Read(feed upstreams.Feed) bool {
	err := s.read(feed, nil)
	s.fail(feed, err)
	return err == nil
}

// read reads the path and tells what it has. blind is why changes may be noticed late, or nil.
func (s *Source) read(feed upstreams.Feed, blind error) error {
	asked := s.Asked()
	if err := s.scanner.scan(s.path); err != nil {
		return err
	}
	s.tell(feed, blind)
	// Files that are broken or being written may have what seems to be gone: then the next reading
	// counts as the repetition.
	if asked && s.scanner.clean() && !s.scanner.unsettled {
		s.mu.Lock()
		s.asked = false
		s.mu.Unlock()
		feed.Repeated()
	}
	return nil
}

// Repeat implements upstreams.Repeater.
func (s *Source) Repeat(bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = true
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// Asked reports whether the feed waits for all files to be read once more.
func (s *Source) Asked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// tell tells all that the files have. blind is why changes may be noticed late, or nil.
func (s *Source) tell(feed upstreams.Feed, blind error) {
	merged, problems, total := s.scanner.merge()
	result := feed.Update(intake.Received{
		Updates: s.updates(merged), Live: true,
		Unsure: !s.scanner.clean(), More: s.scanner.recent || s.scanner.unsettled,
	})
	changes, unshaped := result.Changed+result.Gone, result.Refused
	s.note(append(slices.Clone(problems[:min(len(problems), maxRefused)]), unshaped...))

	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.st
	st.Refused, st.RefusedTotal = problems[:min(len(problems), maxRefused)], total
	lastError := ""
	if blind != nil {
		lastError = blind.Error()
		if st.LastError != lastError {
			s.log.Warn("changes of files are noticed late", "path", s.path, "err", blind)
		}
	}
	if st.State == upstreams.StateFailed {
		s.log.Info("path can be read again", "path", s.path)
	}
	st.LastError = lastError
	if changes > 0 || st.State == upstreams.StateConnecting {
		s.log.Info("files read", "path", s.path, "resources", len(merged), "changes", changes, "refused", total+result.RefusedTotal)
	}
	s.enter(upstreams.StateSynced)
}

// updates returns all that the files have, by kind, sorted. Kinds that they had before are among
// them.
func (s *Source) updates(merged map[mirror.Key]*entry) []intake.Update {
	byKind := map[mirror.Kind][]*mirror.Resource{}
	for kind := range s.told {
		byKind[kind] = nil
	}
	for key, e := range merged {
		byKind[key.Kind] = append(byKind[key.Kind], e.resource)
		s.told[key.Kind] = struct{}{}
	}
	updates := make([]intake.Update, 0, len(byKind))
	for kind, all := range byKind {
		slices.SortFunc(all, func(a, b *mirror.Resource) int { return cmp.Compare(a.FullName(), b.FullName()) })
		updates = append(updates, intake.Update{Scope: intake.KindScope(kind), Complete: true, Room: len(all), Elements: intake.Resources(all...)})
	}
	slices.SortFunc(updates, func(a, b intake.Update) int { return mirror.CompareKinds(a.Scope.Kind, b.Scope.Kind) })
	return updates
}

// note logs what is refused that was not refused before.
func (s *Source) note(refused []upstreams.Refusal) {
	for _, r := range refused {
		if !slices.Contains(s.refused, r) {
			s.log.Warn("refused", "resource", r.Resource, "err", r.Reason)
		}
	}
	if len(refused) == 0 && len(s.refused) > 0 {
		s.log.Info("nothing is refused any more", "path", s.path)
	}
	s.refused = refused
}

// fail notes that the path can not be read.
func (s *Source) fail(feed upstreams.Feed, err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.st.LastError != err.Error() {
		s.log.Warn("path can not be read; what it gave is served", "path", s.path, "err", err)
	}
	s.st.LastError = err.Error()
	feed.Closed()
	s.enter(upstreams.StateFailed)
}

func (s *Source) enter(state upstreams.State) {
	if s.st.State != state {
		s.st.State, s.st.Since = state, time.Now()
	}
}

// Describe implements upstreams.Describer.
func (s *Source) Describe(st *upstreams.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.State, st.Since, st.Address, st.LastError = s.st.State, s.st.Since, s.st.Address, s.st.LastError
	st.Refused = append(slices.Clone(s.st.Refused), st.Refused...)
	st.Refused = st.Refused[:min(len(st.Refused), maxRefused)]
	st.RefusedTotal += s.st.RefusedTotal
}
