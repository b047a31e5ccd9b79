// Package local keeps state in a directory on the local disk: a log of its own for each
// upstream, so that damage costs one upstream only, and an index of them.
//
// The package owns the files, their format and the lock. It must not know when something is
// written, nor what the resources are for. It implements state.Store.
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

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// Path returns the file by which a directory of state is known.
func Path(dir string) string { return filepath.Join(dir, indexName) }

// LockPath returns the file of a directory of state that is locked while a relay uses the directory.
func LockPath(dir string) string { return filepath.Join(dir, lockName) }

// Store is a state.Store in a directory.
type Store struct {
	dir string
	log *slog.Logger

	// The following fields belong to the goroutine that calls Open, Apply and the like.
	lockFile *os.File
	index    *statepb.Index // what relay.state holds

	// mu guards what follows, and what the logs have: it is held for writing while that
	// changes, not during I/O.
	mu   sync.RWMutex
	open bool
	// logs are by upstream. They are nil while nothing can be read, and can be read while the
	// directory can not be written.
	logs map[string]*upstream
	info state.Info
}

// New returns the store in a directory, which Open makes when it is not there.
func New(dir string, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{dir: dir, log: log, info: state.Info{Path: Path(dir)}}
}

// Open implements state.Store.
func (s *Store) Open() (*state.Found, error) {
	defer s.lookAside()
	if !s.open {
		return s.attach()
	}
	err := s.check()
	if errors.Is(err, errCorrupt) {
		s.update(func() { s.logs, s.open = nil, false }) // the next call reads all, and sets aside what is damaged
	}
	return nil, err
}

// Close implements state.Store.
func (s *Store) Close() error {
	for _, u := range s.logs {
		u.file.Close() //nolint:errcheck // nil of one in memory
	}
	s.update(func() { s.logs, s.open = nil, false })
	s.lockFile.Close() //nolint:errcheck // nil when there never was one
	s.lockFile = nil
	return nil
}

// update changes what mu guards.
func (s *Store) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// attach takes the directory into use. When it can not be written, what it has can be read.
func (s *Store) attach() (*state.Found, error) {
	err := s.prepare()
	if errors.Is(err, state.ErrInUse) || errors.Is(err, errNotOurs) {
		return nil, err
	}
	d, readErr := readDirectory(s.dir)
	if readErr != nil {
		return nil, cmp.Or(err, readErr)
	}
	if err == nil {
		err = s.repair(d)
	}
	if err != nil && (s.logs != nil || len(d.logs) == 0) {
		d.close()
		return nil, err // what can be read is known
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
	note, err := checkDir(s.dir)
	s.update(func() { s.info.Note = note })
	if err != nil {
		return err
	}
	if s.lockFile == nil {
		if s.lockFile, err = lockDir(s.dir); err != nil {
			return cmp.Or(shareDir(s.dir), err)
		}
	}
	for _, path := range list(s.dir, tempPrefix+"*") {
		os.Remove(path) //nolint:errcheck // of a relay that was killed; the next start tries again
	}
	return nil
}

// check sees to it that the files are still those that are open, and writes those anew that
// somebody has removed, or put others in the place of.
func (s *Store) check() error {
	b, err := readIndex(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if index, bad := decodeIndex(b); bad != nil || !proto.Equal(index, s.index) {
		s.lockFile.Close() // it may be gone, too
		s.lockFile = nil
		if err := s.prepare(); err != nil {
			return err
		}
		if err := s.displace(indexName, err == nil); err != nil {
			return err
		}
		if err := s.writeIndex(s.index); err != nil {
			return err
		}
	}
	for name, u := range s.logs {
		info, err := os.Stat(filepath.Join(s.dir, logName(name)))
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(info, u.info):
			if err := s.displace(logName(name), err == nil); err != nil {
				return err
			}
		case u.suspect:
		case err == nil && info.Size() < u.end:
			return fmt.Errorf("%s: %w", u.file.Name(), corruptf("it was cut off while it was in use"))
		default:
			continue // other errors tell nothing of the file
		}
		if err := s.rewrite(name); err != nil {
			return err
		}
	}
	return nil
}

// displace makes room for a file that was removed while it was in use, or that another one has
// taken the place of.
func (s *Store) displace(name string, there bool) error {
	s.log.Warn("state file rewritten, was removed or replaced while in use", "path", filepath.Join(s.dir, name))
	if !there {
		return nil
	}
	return s.setAside(name, errDisplaced)
}

// replaceLog writes a new log for an upstream, in place of the old one if there is one, and opens
// it.
func (s *Store) replaceLog(name string, write func(*os.File) error) (*upstream, error) {
	if err := replaceFile(filepath.Join(s.dir, logName(name)), write); err != nil {
		return nil, err
	}
	u, err := openUpstream(s.dir, name)
	if err == nil {
		err = u.damage
	}
	return u, err
}

// rewrite writes the log of an upstream anew, and takes it into use.
func (s *Store) rewrite(name string) error {
	u := s.logs[name]
	next, err := s.replaceLog(name, u.rewrite)
	if err != nil {
		return err
	}
	next.unusable = u.unusable
	s.update(func() { s.logs[name] = next })
	return nil
}

// writeIndex makes an index durable, and the one in use.
func (s *Store) writeIndex(index *statepb.Index) error {
	b, err := encodeIndex(index)
	if err != nil {
		return err
	}
	err = replaceFile(s.info.Path, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err == nil {
		s.update(func() { s.index = index })
	}
	return err
}

// changeIndex makes a change of the index durable.
func (s *Store) changeIndex(change func(*statepb.Index)) error {
	index := proto.CloneOf(s.index)
	change(index)
	return s.writeIndex(index)
}

// SetServed implements state.Store.
func (s *Store) SetServed() error {
	if !s.open {
		return state.ErrNotInUse
	}
	return s.changeIndex(func(index *statepb.Index) { index.Served = true })
}

// Forget implements state.Store.
func (s *Store) Forget(name string) error {
	u := s.logs[name]
	if !s.open || u == nil {
		return nil
	}
	err := s.changeIndex(func(index *statepb.Index) {
		index.Upstreams = slices.DeleteFunc(index.Upstreams, func(n string) bool { return n == name })
	})
	if err != nil {
		return err
	}
	s.update(func() { delete(s.logs, name) })
	if err := remove(u.file.Name()); err != nil {
		return err
	}
	return syncDir(s.dir)
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
	s.mu.RLock()
	gone := u.unusable
	s.mu.RUnlock()
	w, err := u.write(&b, gone)
	if err != nil || w == nil {
		return u.kept(), err
	}
	s.update(w.take)
	kept := u.kept()
	kept.Wrote = true
	if u.garbage() {
		if err := s.rewrite(name); err != nil {
			u.tired = u.end + minGarbage
			s.log.Warn("state file not compacted", "path", u.file.Name(), "err", err)
		}
	}
	return kept, nil
}

// create begins to keep an upstream.
func (s *Store) create(name string) (*upstream, error) {
	if !state.IsName(name) {
		return nil, fmt.Errorf("%.100q is no name of an upstream", name)
	}
	u, err := s.replaceLog(name, func(f *os.File) error { return newWriter(nil, f).finish() })
	if err != nil {
		return nil, err
	}
	err = s.changeIndex(func(index *statepb.Index) {
		index.Upstreams = slices.Sorted(slices.Values(append(index.Upstreams, name)))
	})
	if err == nil {
		s.update(func() { s.logs[name] = u })
	}
	return u, err
}

// lookAside notes which files are set aside. Info only tells: a disk that hangs must not make
// those hang who ask how the relay is.
func (s *Store) lookAside() {
	found := list(s.dir, "*."+asideCorrupt+"-*", "*."+asideUnknown+"-*")
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
		info.Unusable += len(u.unusable)
	}
	return info
}
