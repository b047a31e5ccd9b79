// Package local implements state.Store in a directory on the local disk: one log for each upstream, so
// that damage costs one upstream only, and an index of the logs.
//
// The package owns the files, their format and the lock. It must not know when the state is written,
// nor the purpose of the resources.
package local

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"meshrelay/internal/owner"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// Path returns the index of a directory of state. Messages name the state by this path.
func Path(dir string) string { return filepath.Join(dir, indexName) }

// LockPath returns the file that a relay locks while it uses a directory of state.
func LockPath(dir string) string { return filepath.Join(dir, lockName) }

// Store is a state.Store in a directory.
type Store struct {
	dir string
	log *slog.Logger

	// The following fields belong to the goroutine that calls Open, Apply and the like.
	lockFile *os.File
	index    *statepb.Index // the content of relay.state

	// mu guards the following fields and the fields of the logs. It is not held during I/O.
	mu   sync.RWMutex
	open bool
	// logs are by upstream, nil while the directory can not be read. open is set while it can be written.
	logs map[string]*upstream
	info state.Info
}

// New returns the store in a directory. Open makes the directory when it is missing.
func New(dir string, log *slog.Logger) *Store {
	return &Store{dir: dir, log: cmp.Or(log, slog.New(slog.DiscardHandler)), info: state.Info{Path: Path(dir)}}
}

// Open implements state.Store.
func (s *Store) Open() (*state.Found, error) {
	defer s.lookAside()
	if !s.open {
		return s.attach()
	}
	err := s.check()
	if errors.Is(err, errCorrupt) {
		s.log.Warn("state read again, files changed while in use", "err", err)
		_ = s.Close() // another directory may have taken its place
		return s.attach()
	}
	return nil, err
}

// Close implements state.Store. The runtime closes the logs when nobody reads them any more.
func (s *Store) Close() error {
	s.update(func() { s.logs, s.open = nil, false })
	s.lockFile.Close() // without effect on nil
	s.lockFile = nil
	return nil
}

// update changes fields that mu guards.
func (s *Store) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// attach opens the directory for use. If it can be read but not written, attach returns its content and the
// error.
func (s *Store) attach() (*state.Found, error) {
	err := s.prepare()
	if errors.Is(err, state.ErrInUse) || errors.Is(err, owner.ErrOthers) {
		return nil, err
	}
	d, readErr := readDirectory(s.dir)
	if errors.Is(readErr, state.ErrLaterFormat) {
		return nil, readErr
	}
	if readErr != nil {
		return nil, cmp.Or(err, readErr)
	}
	if err == nil {
		err = s.repair(d)
	}
	if err != nil && (s.logs != nil || len(d.logs) == 0) {
		d.close()
		return nil, err // the content was returned before
	}
	maps.DeleteFunc(d.logs, func(_ string, u *upstream) bool { return u.lost })
	found := &state.Found{Sources: map[string]state.Kept{}, Served: d.served()}
	for name, u := range d.logs {
		found.Sources[name] = u.kept()
	}
	if err != nil {
		s.log.Info("state opened read-only", "path", s.info.Path, "upstreams", len(d.logs))
	}
	s.update(func() { s.logs, s.open = d.logs, err == nil })
	return found, err
}

// prepare makes the directory and locks it.
func (s *Store) prepare() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	note, err := owner.ClaimDir(s.dir)
	s.update(func() { s.info.Note = note })
	if err != nil || s.lockFile != nil {
		return err
	}
	// The lock is a file of its own, because the others are replaced.
	if s.lockFile, err = owner.Lock(LockPath(s.dir), true, lockPatience); err != nil {
		return cmp.Or(checkUse(s.dir, 0), err)
	}
	return nil
}

// check fails with errCorrupt if somebody has removed, replaced or truncated an open file. It rewrites a log
// whose last sync failed.
func (s *Store) check() error {
	index, err := readIndex(s.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !proto.Equal(index, s.index):
		return fmt.Errorf("%s: %w", s.info.Path, errChanged)
	case err != nil:
		return err
	}
	for name, u := range s.logs {
		info, err := os.Stat(u.file.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && (!os.SameFile(info, u.info) || info.Size() < u.end):
			return fmt.Errorf("%s: %w", u.file.Name(), errChanged)
		case u.suspect:
			if err := s.rewrite(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceLog writes a new log for an upstream, in the place of the former one, and opens it.
func (s *Store) replaceLog(name string, write func(*os.File) error) (*upstream, error) {
	if err := owner.Replace(filepath.Join(s.dir, logName(name)), write); err != nil {
		return nil, err
	}
	u, err := openUpstream(s.dir, name)
	if err == nil {
		err = u.damage
	}
	return u, err
}

// rewrite writes the log of an upstream again without garbage, and replaces the open file.
func (s *Store) rewrite(name string) error {
	u := s.logs[name]
	next, err := s.replaceLog(name, u.rewrite)
	if err != nil {
		return err
	}
	next.base = next.end
	s.update(func() { s.logs[name] = next })
	return nil
}

// writeIndex makes an index durable, and replaces the open one.
func (s *Store) writeIndex(index *statepb.Index) error {
	b, err := encodeIndex(index)
	if err != nil {
		return err
	}
	err = owner.Replace(s.info.Path, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err == nil {
		s.update(func() { s.index = index })
	}
	return err
}

// SetServed implements state.Store.
func (s *Store) SetServed() error {
	if !s.open {
		return state.ErrNotInUse
	}
	return s.writeIndex(&statepb.Index{Served: true, Upstreams: s.index.Upstreams})
}

// Forget implements state.Store.
func (s *Store) Forget(name string) error {
	u := s.logs[name]
	if !s.open || u == nil {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(s.index.Upstreams), func(n string) bool { return n == name })
	if err := s.writeIndex(&statepb.Index{Served: s.index.Served, Upstreams: others}); err != nil {
		return err
	}
	s.update(func() { delete(s.logs, name) })
	if err := remove(u.file.Name()); err != nil {
		return err
	}
	return owner.SyncDir(s.dir)
}

// Apply implements state.Store.
func (s *Store) Apply(name string, b state.Batch) (state.Kept, error) {
	if !s.open {
		return state.Kept{}, state.ErrNotInUse
	}
	u := s.logs[name]
	if u == nil {
		if len(b.Changes) == 0 && sameMeta(b.Meta, state.Meta{}) {
			return state.Kept{}, nil
		}
		var err error
		if u, err = s.create(name); err != nil {
			return state.Kept{}, err
		}
	}
	w, err := u.write(&b)
	if err != nil || w == nil {
		return u.kept(), err
	}
	s.update(w.take)
	kept := u.kept()
	if u.isDue() {
		if err := s.rewrite(name); err != nil {
			u.base = u.end // later again
			s.log.Warn("state file not compacted", "path", u.file.Name(), "err", err)
		}
	}
	return kept, nil
}

// create writes an empty log for an upstream.
func (s *Store) create(name string) (*upstream, error) {
	if !state.IsName(name) {
		return nil, fmt.Errorf("%.100q is not a valid name of an upstream", name)
	}
	u, err := s.replaceLog(name, func(f *os.File) error { return newWriter(newUpstream(name, nil), f).finish() })
	if err != nil {
		return nil, err
	}
	names := append(slices.Clone(s.index.Upstreams), name)
	slices.Sort(names)
	if err = s.writeIndex(&statepb.Index{Served: s.index.Served, Upstreams: names}); err == nil {
		s.update(func() { s.logs[name] = u })
	}
	return u, err
}

// lookAside lists the files that are set aside. Info does not read the directory, so that it never waits
// for a disk.
func (s *Store) lookAside() {
	found := list(s.dir, "*"+asideMark+"*")
	s.update(func() { s.info.SetAside = found })
}

// Info implements state.Store.
func (s *Store) Info() state.Info {
	s.mu.RLock()
	defer s.mu.RUnlock()
	info := s.info
	info.InUse = s.open
	for _, u := range s.logs {
		info.Size += u.end
	}
	return info
}
