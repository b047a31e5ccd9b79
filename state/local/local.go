// Package local keeps state in a directory on the local disk: a log of its own for each
// upstream, so that damage costs one upstream only, and an index of them.
//
// The package owns the files, their format and the lock. It must not know when something is
// written, nor what the resources are for. It implements state.Store.
package local

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// asideEvery is how often it is looked which files that were set aside are there still.
const asideEvery = 10 * time.Second

// Path returns the file by which a directory of state is known.
func Path(dir string) string { return filepath.Join(dir, indexName) }

// Store is a state.Store in a directory.
type Store struct {
	dir string
	log *slog.Logger

	// What follows belongs to the goroutine that calls Open, Apply and the like.
	lockFile  *os.File
	indexFile *os.File // open, so that no other file can pass for it
	indexInfo os.FileInfo
	asideSeen time.Time

	// mu guards what follows: it is held for writing while that changes, not during I/O.
	mu       sync.RWMutex
	open     bool
	index    *statepb.Index
	sources  map[string]*source
	readable *directory // while the directory can be read and not written; nil otherwise
	info     state.Info
}

// New returns the store in a directory, which Open makes when it is not there.
func New(dir string, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{dir: dir, log: log, index: &statepb.Index{}, sources: map[string]*source{}, info: state.Info{Path: Path(dir)}}
}

// Open implements state.Store.
func (s *Store) Open() (found *state.Found, err error) {
	defer s.lookAside()
	if s.open {
		err := s.check()
		if errors.Is(err, errCorrupt) {
			s.detach() // the next call reads all, and sets aside what is damaged
		}
		return nil, err
	}
	if found, err = s.attach(); err == nil {
		return found, nil
	}
	if !errors.Is(err, state.ErrInUse) && !errors.Is(err, errNotOurs) && s.readable == nil {
		found = s.readOnly()
	}
	return found, err
}

// Close implements state.Store.
func (s *Store) Close() error {
	s.detach()
	s.unlock()
	s.indexFile.Close() //nolint:errcheck // nil when there never was one
	return nil
}

func (s *Store) unlock() {
	if s.lockFile != nil {
		s.lockFile.Close()
		s.lockFile = nil
	}
}

// attach takes the directory into use.
func (s *Store) attach() (*state.Found, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	note, err := checkDir(s.dir)
	s.mu.Lock()
	s.info.Note = note
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.lockFile == nil {
		if s.lockFile, err = lockDir(s.dir); err != nil {
			return nil, err
		}
	}
	removeTemps(s.dir)
	d, err := readDirectory(s.dir)
	if err != nil {
		return nil, err
	}
	defer d.close()
	index, err := s.repair(d)
	if err != nil {
		return nil, err
	}
	sources := map[string]*source{}
	for _, name := range index.Upstreams {
		if sources[name], err = openSource(filepath.Join(s.dir, logName(name)), d.parts[name]); err != nil {
			delete(sources, name)
			closeAll(sources)
			return nil, err
		}
	}
	if err := s.holdIndex(); err != nil {
		closeAll(sources)
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread()
	s.open, s.index, s.sources, s.info.Unusable = true, index, sources, 0
	found := &state.Found{Sources: map[string]state.Kept{}, Served: index.Served}
	for name, src := range sources {
		found.Sources[name] = src.kept()
	}
	return found, nil
}

func closeAll(sources map[string]*source) {
	for _, src := range sources {
		src.file.Close()
	}
}

// unread closes what was read only. The caller holds mu.
func (s *Store) unread() {
	if s.readable != nil {
		s.readable.close()
		s.readable = nil
	}
}

// detach gives the files up, but for the lock.
func (s *Store) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread()
	closeAll(s.sources)
	s.open, s.sources = false, map[string]*source{}
}

// readOnly takes in what is in a directory that can not be written.
func (s *Store) readOnly() *state.Found {
	if _, err := checkDir(s.dir); err != nil {
		return nil
	}
	if shareDir(s.dir) != nil {
		return nil
	}
	d, err := readDirectory(s.dir)
	if err != nil {
		return nil
	}
	if err := d.convertOld(); err != nil || len(d.parts) == 0 {
		d.close()
		return nil
	}
	s.log.Info("state can be read and not written", "path", s.info.Path, "upstreams", len(d.parts))
	found := &state.Found{Sources: map[string]state.Kept{}, Served: d.served()}
	for name, p := range d.parts {
		if !p.lost {
			found.Sources[name] = p.kept()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readable = d
	return found
}

// check sees to it that the files are still those that are open, and writes those anew that
// somebody has removed, or put others in the place of.
func (s *Store) check() error {
	info, err := os.Stat(s.info.Path)
	if moved := isMoved(info, err, s.indexInfo); moved {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return err
		}
		s.unlock() // the lock may be gone, too
		if s.lockFile, err = lockDir(s.dir); err != nil {
			return err
		}
		if err := s.displace(indexName, info); err != nil {
			return err
		}
		if err := s.writeIndex(s.index); err != nil {
			return err
		}
	}
	for name, src := range s.sources {
		info, err := os.Stat(src.path)
		moved := isMoved(info, err, src.info)
		switch {
		case moved:
			if err := s.displace(logName(name), info); err != nil {
				return err
			}
		case src.suspect:
		case err == nil && info.Size() < src.end:
			return fmt.Errorf("%s: %w", src.path, corruptf("it was cut off while it was in use"))
		default:
			continue
		}
		if err := s.rewrite(name); err != nil {
			return err
		}
	}
	return nil
}

// isMoved reports whether a file is not the one that is in use.
func isMoved(info os.FileInfo, err error, used os.FileInfo) bool {
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) // other errors tell nothing of the file
	}
	return !os.SameFile(info, used)
}

// displace makes room for a file that was removed while it was in use, or that another one has
// taken the place of, which info describes.
func (s *Store) displace(name string, info os.FileInfo) error {
	s.log.Warn("state file written anew, because it was removed or replaced while it was in use", "path", filepath.Join(s.dir, name))
	if info == nil {
		return nil
	}
	return s.setAside(name, asideUnknown, errors.New("it was put there while another one was in use"))
}

// rewrite writes the log of an upstream anew.
func (s *Store) rewrite(name string) error {
	src := s.sources[name]
	next, err := src.rewrite()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next.unusable = src.unusable
	s.sources[name] = next
	src.file.Close()
	return nil
}

// writeIndex makes an index durable, and the one in use.
func (s *Store) writeIndex(index *statepb.Index) error {
	err := replaceFile(s.info.Path, func(f *os.File) error { return indexLog(newLog(f), index) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.index = index
	s.mu.Unlock()
	return s.holdIndex()
}

// holdIndex opens the index that is in use.
func (s *Store) holdIndex() error {
	f, err := openOwn(s.info.Path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	s.indexFile.Close() //nolint:errcheck // nil at first
	s.indexFile = f
	s.indexInfo, err = f.Stat()
	return err
}

func (s *Store) changeIndex(change func(*statepb.Index)) error {
	index := proto.CloneOf(s.index)
	change(index)
	slices.Sort(index.Upstreams)
	return s.writeIndex(index)
}

// indexLog writes an index as a log.
func indexLog(to *builder, index *statepb.Index) error {
	if _, err := to.add(&statepb.Entry{Index: index}, nil); err != nil {
		return err
	}
	return to.finish()
}

// SetServed implements state.Store.
func (s *Store) SetServed() error {
	if !s.open {
		return state.ErrNotInUse
	}
	return s.changeIndex(func(i *statepb.Index) { i.Served = true })
}

// Forget implements state.Store.
func (s *Store) Forget(name string) error {
	src := s.sources[name]
	if !s.open || src == nil {
		return nil
	}
	err := s.changeIndex(func(i *statepb.Index) {
		i.Upstreams = slices.DeleteFunc(i.Upstreams, func(n string) bool { return n == name })
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.sources, name)
	src.file.Close()
	s.mu.Unlock()
	if err := os.Remove(src.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(s.dir)
}

// Apply implements state.Store.
func (s *Store) Apply(name string, b state.Batch) (state.Kept, error) {
	if !s.open {
		return state.Kept{}, state.ErrNotInUse
	}
	src := s.sources[name]
	if src == nil {
		if len(b.Changes) == 0 && b.Meta.Equal(state.Meta{}) {
			return state.Kept{}, nil
		}
		var err error
		if src, err = s.create(name); err != nil {
			return state.Kept{}, err
		}
	}
	s.mu.RLock()
	unusable := src.unusable
	s.mu.RUnlock()
	next, edits, err := src.apply(&b, unusable)
	switch {
	case errors.Is(err, errCorrupt):
		s.detach() // as in Open
		return state.Kept{}, fmt.Errorf("%s: %w", src.path, err)
	case err != nil:
		return state.Kept{}, err
	case next == nil:
		return src.kept(), nil
	}
	s.mu.Lock()
	next.apply(edits)
	src.content = next
	s.info.Unusable -= len(src.unusable)
	src.unusable = nil
	s.mu.Unlock()
	kept := next.kept()
	kept.Wrote = true
	s.compact(name)
	return kept, nil
}

// create begins to keep an upstream.
func (s *Store) create(name string) (*source, error) {
	if !state.IsName(name) {
		return nil, fmt.Errorf("%.100q is no name of an upstream", name)
	}
	src, err := createSource(filepath.Join(s.dir, logName(name)), name)
	if err != nil {
		return nil, err
	}
	err = s.changeIndex(func(i *statepb.Index) { i.Upstreams = append(i.Upstreams, name) })
	if err != nil {
		src.file.Close()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources[name] = src
	return src, nil
}

// compact writes the log of an upstream anew when much of it is garbage.
func (s *Store) compact(name string) {
	src := s.sources[name]
	if !src.garbage() || src.end < src.tired {
		return
	}
	if err := s.rewrite(name); err != nil {
		src.tired = src.end + minGarbage
		s.log.Warn("state file not compacted", "path", src.path, "err", err)
	}
}

// lookAside notes which files are set aside. Info only tells: a disk that hangs must not make
// those hang who ask how the relay is.
func (s *Store) lookAside() {
	if time.Since(s.asideSeen) < asideEvery {
		return
	}
	found := s.findAside()
	s.asideSeen = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.SetAside = found
}

// Info implements state.Store.
func (s *Store) Info() state.Info {
	s.mu.RLock()
	defer s.mu.RUnlock()
	info := s.info
	info.InUse = s.open
	for _, src := range s.sources {
		info.Size += src.end
	}
	return info
}
