package local

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshrelay/state/local/statepb"
)

// repair makes a directory one that is whole, and returns its index. It sets aside what can not
// be used, and carries over what is whole in it. A kill at any moment loses nothing more: what
// is to be replaced has a second name until then.
func (s *Store) repair(d *directory) (*statepb.Index, error) {
	index := &statepb.Index{Imported: d.imported, Served: d.served()}
	if index.Imported == nil {
		index.Imported = d.index.GetImported() // the file may come back
	}
	if d.indexErr != nil && !errors.Is(d.indexErr, fs.ErrNotExist) {
		if err := s.setAside(indexName, kindOf(d.indexErr), d.indexErr); err != nil {
			return nil, err
		}
	}
	if d.restored {
		if err := s.beginRestore(d); err != nil {
			return nil, err
		}
	}
	for _, name := range d.missing {
		s.log.Error("state of an upstream is lost: its file is gone", "upstream", name)
	}
	for _, name := range slices.Sorted(maps.Keys(d.parts)) {
		whole, err := s.repairPart(name, d)
		if err != nil {
			return nil, err
		}
		if whole {
			index.Upstreams = append(index.Upstreams, name)
		}
	}
	if d.old != nil {
		if err := s.takeOver(d, index); err != nil {
			return nil, err
		}
	}
	if d.indexErr == nil && !d.restored && proto.Equal(index, d.index) {
		return index, nil
	}
	return index, s.writeIndex(index)
}

func kindOf(err error) string {
	if errors.Is(err, errNewer) {
		return asideUnknown
	}
	return asideCorrupt
}

// repairPart makes the log of an upstream one that is whole. It reports whether there is one.
func (s *Store) repairPart(name string, d *directory) (whole bool, err error) {
	p := d.parts[name]
	switch {
	case p.damage == nil && !d.restored:
		return true, nil
	case p.lost && d.restored:
		return false, nil
	case p.lost:
		return false, s.remove(name, kindOf(p.damage), p.damage)
	case !d.restored:
		if err := s.setAside(logName(name), asideCorrupt, p.damage); err != nil {
			return false, err
		}
	}
	return true, replaceFile(filepath.Join(s.dir, logName(name)), func(f *os.File) error { return copyLog(newLog(f), p.content, p.from) })
}

// remove sets the log of an upstream aside, and leaves nothing in its place.
func (s *Store) remove(name, kind string, why error) error {
	if err := s.setAside(logName(name), kind, why); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(s.dir, logName(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeLogs sets all logs aside.
func (s *Store) removeLogs(why error) error {
	for _, path := range list(s.dir, logName("*")) {
		if name := upstreamOf(path); name != "" {
			if err := s.remove(name, asideUnknown, why); err != nil {
				return err
			}
		}
	}
	return nil
}

// beginRestore makes room for the logs of a backup, which somebody has put in the place of the
// index.
func (s *Store) beginRestore(d *directory) error {
	s.log.Info("state restored from a backup", "path", s.info.Path, "upstreams", len(d.parts))
	if d.damage != nil {
		if err := s.setAside(indexName, asideCorrupt, d.damage); err != nil {
			return err
		}
	}
	return s.removeLogs(errors.New("a backup takes its place"))
}

// takeOver makes relay.db, of an earlier release, the state. It stays as it is, unless it is
// damaged.
func (s *Store) takeOver(d *directory, index *statepb.Index) error {
	o := d.old
	if o.damage != nil {
		if err := s.setAside(oldName, asideCorrupt, o.damage); err != nil {
			return err
		}
	}
	if o.sources != nil {
		// The index comes first, and names no relay.db: whatever logs there are when this is cut
		// short, the next start begins anew.
		index.Upstreams, index.Imported = nil, nil
		if err := s.writeIndex(index); err != nil {
			return err
		}
		if err := s.removeLogs(errors.New(oldName + " is newer")); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(o.sources)) {
			err := replaceFile(filepath.Join(s.dir, logName(name)), func(f *os.File) error { return o.writeLog(name, newLog(f)) })
			if err != nil {
				return err
			}
			index.Upstreams = append(index.Upstreams, name)
		}
		s.log.Info("state of an earlier release taken over", "path", o.file.Name(), "upstreams", len(index.Upstreams))
		clear(d.parts) // the files are others
	}
	index.Imported = o.from
	if o.damage == nil {
		return nil
	}
	index.Imported = d.index.GetImported()
	if err := os.Remove(filepath.Join(s.dir, oldName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
