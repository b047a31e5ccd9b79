package local

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"meshrelay/state/local/statepb"
)

// maxIndex bounds relay.state.
const maxIndex = 64 << 20

// directory is what is found in a directory of state.
type directory struct {
	// index is what relay.state tells; nil when it is missing or can not be used, which indexErr
	// explains.
	index    *statepb.Index
	indexErr error
	// logs are by upstream, also those that are damaged.
	logs map[string]*upstream
	// lost tells that an upstream, or the index, is damaged or missing.
	lost bool
	// old is relay.db, when it must be taken over or is damaged: then logs have its content.
	old *oldFile
	// imported is what the index is to tell of relay.db.
	imported *statepb.Imported
	size     int64
	// damage is the first thing that is wrong.
	damage error
}

func (d *directory) broken(err error) { d.damage = cmp.Or(d.damage, err) }

func (d *directory) close() {
	for _, u := range d.logs {
		u.file.Close() //nolint:errcheck // nil of one in memory
	}
}

// readDirectory reads all that is in a directory, and changes nothing. It fails when a file can
// not be opened.
func readDirectory(dir string) (*directory, error) {
	d := &directory{logs: map[string]*upstream{}}
	if err := d.read(dir); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *directory) read(dir string) error {
	if _, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // what it has would be taken for missing
	}
	b, err := readIndex(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.size = int64(len(b))
	if err == nil {
		d.index, err = decodeIndex(b)
	}
	if d.indexErr = err; err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.broken(err)
	}
	if err := d.readLogs(dir); err != nil {
		return err
	}
	for _, name := range d.index.GetUpstreams() {
		if d.logs[name] == nil {
			d.lost = true
			d.broken(corruptf("upstream %.100q is missing", name))
		}
	}
	d.lost = d.lost || d.index == nil
	return d.readOld(dir)
}

// readLogs reads the logs, as many at a time as there are CPUs.
func (d *directory) readLogs(dir string) error {
	var names []string
	for _, path := range list(dir, logName("*")) {
		if name := upstreamOf(path); name != "" {
			names = append(names, name)
		}
	}
	logs := make([]*upstream, len(names))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		group.Go(func() (err error) {
			logs[i], err = openUpstream(dir, name)
			return err
		})
	}
	err := group.Wait()
	for _, u := range logs { // also after an error, so that their files are closed
		if u != nil {
			d.add(u, u.info.Size())
		}
	}
	return err
}

func (d *directory) add(u *upstream, size int64) {
	d.size += size
	d.logs[u.name] = u
	d.lost = d.lost || u.lost
	if u.damage != nil {
		d.broken(fmt.Errorf("upstream %s: %w", u.name, u.damage))
	}
}

// readOld reads relay.db unless this file was read before.
func (d *directory) readOld(dir string) error {
	was := d.index.GetImported()
	d.imported = was // the file may come back
	o, err := openOld(filepath.Join(dir, oldName), was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && o == nil {
		return nil
	}
	if err != nil {
		return err
	}
	d.imported = o.from
	switch {
	case was != nil && was.Size == o.from.Size && was.Transaction == o.from.Transaction:
		return nil // somebody has touched or copied it
	case d.index == nil && len(d.logs) > 0:
		// The index is lost that would tell. Logs are made after an index is, so that these are
		// not left of a first start that was cut short: they are newer.
		return nil
	}
	d.old = o
	if o.damage != nil {
		d.imported = was // it is set aside
		d.broken(fmt.Errorf("%s: %w", oldName, o.damage))
		if len(d.logs) > 0 {
			o.sources = nil // what is here is whole
			return nil
		}
	}
	d.close()
	d.logs = map[string]*upstream{}
	for name, s := range o.sources {
		m, err := s.log(name)
		if err != nil {
			return fmt.Errorf("%s: upstream %s: %w", o.path, name, err)
		}
		d.add(readUpstream(name, m.reader(), int64(len(m))), int64(len(m)))
	}
	return nil
}

// served reports whether clients were served with this state, and nothing of it is lost.
func (d *directory) served() bool {
	if d.old != nil && d.old.sources != nil {
		return d.old.hasServed()
	}
	return d.index.GetServed() && !d.lost
}

// readIndex reads relay.state.
func readIndex(dir string) ([]byte, error) {
	f, _, err := openOwn(filepath.Join(dir, indexName), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxIndex))
}

// decodeIndex and encodeIndex know relay.state, which is like a log with one frame.
func decodeIndex(b []byte) (*statepb.Index, error) {
	from := memory(b).reader()
	if _, err := readHead(from); err != nil {
		return nil, err
	}
	r := &reader{from: from, size: int64(len(b))}
	f, err := r.frame(headLen)
	index := &statepb.Index{}
	if err == nil {
		err = proto.Unmarshal(f.record, index)
	}
	if err != nil {
		return nil, corruptf("%v", err)
	}
	return index, nil
}

func encodeIndex(index *statepb.Index) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(index)
	if err != nil {
		return nil, err
	}
	out, _ := appendFrame(encodeHead(headLen), nil, b, nil, 0)
	return out, nil
}

// repair makes a directory whole. It sets aside unusable files, and carries over their whole
// parts. A kill at any moment loses nothing more: a file that repair replaces has a second name
// until then.
func (s *Store) repair(d *directory) error {
	index := &statepb.Index{Imported: d.imported, Served: d.served()}
	s.update(func() { s.index = d.index })
	if d.indexErr != nil && !errors.Is(d.indexErr, fs.ErrNotExist) {
		if err := s.setAside(indexName, d.indexErr); err != nil {
			return err
		}
	}
	if d.old != nil {
		if err := s.takeOver(d.old); err != nil {
			return err
		}
	}
	for _, name := range d.index.GetUpstreams() {
		if d.logs[name] == nil {
			s.log.Error("state of upstream lost, file is missing", "upstream", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.logs)) {
		if err := s.repairLog(d, name); err != nil {
			return err
		}
		if d.logs[name] != nil {
			index.Upstreams = append(index.Upstreams, name)
		}
	}
	if d.old != nil && d.old.damage != nil {
		if err := remove(filepath.Join(s.dir, oldName)); err != nil {
			return err
		}
	}
	if d.indexErr == nil && proto.Equal(index, s.index) {
		return nil
	}
	return s.writeIndex(index)
}

// repairLog makes the log of an upstream whole and writable, or removes it.
func (s *Store) repairLog(d *directory, name string) error {
	u := d.logs[name]
	if u.damage != nil && u.file != nil {
		if err := s.setAside(logName(name), u.damage); err != nil {
			return err
		}
	}
	switch {
	case u.lost:
		delete(d.logs, name)
		return remove(filepath.Join(s.dir, logName(name)))
	case u.damage == nil && u.file != nil:
		if u.info.Size() > u.end {
			return u.file.Truncate(u.end) // a torn batch
		}
		return nil
	}
	next, err := s.replaceLog(name, u.rewrite)
	if err == nil {
		u.file.Close() //nolint:errcheck // nil of one in memory
		d.logs[name] = next
	}
	return err
}

// takeOver makes room for what relay.db has. That stays as it is, unless it is damaged.
func (s *Store) takeOver(o *oldFile) error {
	if o.damage != nil {
		if err := s.setAside(oldName, o.damage); err != nil || o.sources == nil {
			return err
		}
	}
	// The index comes first, and names no relay.db: whatever logs there are when this is cut
	// short, the next start begins anew.
	if err := s.writeIndex(&statepb.Index{}); err != nil {
		return err
	}
	for _, path := range list(s.dir, logName("*")) {
		if upstreamOf(path) == "" {
			continue
		}
		if err := errors.Join(s.setAside(filepath.Base(path), errDisplaced), remove(path)); err != nil {
			return err
		}
	}
	s.log.Info("state of an earlier release taken over", "path", o.path, "upstreams", len(o.sources))
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
