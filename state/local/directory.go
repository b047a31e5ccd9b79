package local

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"meshrelay/internal/owner"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// maxIndex bounds relay.state, in bytes.
const maxIndex = 64 << 20

// directory is the content of a directory of state.
type directory struct {
	// index is nil when it is missing or damaged, with the reason in indexErr.
	index    *statepb.Index
	indexErr error
	logs     map[string]*upstream // by upstream, with damaged ones
	// lost is set when an upstream, or the index, is damaged or missing.
	lost   bool
	damage error // the first one
}

func (d *directory) broken(err error) { d.damage = cmp.Or(d.damage, err) }

// served reports whether clients were served with this state and no part of it is lost.
func (d *directory) served() bool { return d.index.GetServed() && !d.lost }

func (d *directory) close() {
	for _, u := range d.logs {
		u.file.Close()
	}
}

// readDirectory reads a directory, and changes nothing. It fails when a file can not be opened or has
// a later format. A missing directory is empty.
func readDirectory(dir string) (*directory, error) {
	if _, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	d := &directory{logs: map[string]*upstream{}}
	d.index, d.indexErr = readIndex(dir)
	switch {
	case errors.Is(d.indexErr, errCorrupt):
		d.broken(d.indexErr)
	case d.indexErr != nil && !errors.Is(d.indexErr, fs.ErrNotExist):
		return nil, d.indexErr
	}
	if err := d.readLogs(dir); err != nil {
		d.close()
		return nil, err
	}
	d.lost = d.lost || d.index == nil
	for _, name := range d.index.GetUpstreams() {
		if d.logs[name] == nil {
			d.lost = true
			d.broken(corruptf("upstream %.100q is missing", name))
		}
	}
	return d, nil
}

// readLogs reads the logs in as many goroutines as there are CPUs.
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
	for _, u := range logs { // also after an error, so that close finds them
		if u == nil {
			continue
		}
		d.logs[u.name] = u
		d.lost = d.lost || u.lost
		if u.damage != nil {
			d.broken(fmt.Errorf("upstream %s: %w", u.name, u.damage))
		}
		if errors.Is(u.damage, state.ErrLaterFormat) {
			err = cmp.Or(err, fmt.Errorf("%s: %w", u.file.Name(), u.damage))
		}
	}
	return err
}

// readIndex reads relay.state, which is like a log with one frame.
func readIndex(dir string) (*statepb.Index, error) {
	f, info, err := owner.Open(filepath.Join(dir, indexName), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	index := &statepb.Index{}
	if _, err = readHead(f); err == nil {
		var entry frame
		r := &reader{from: f, size: min(info.Size(), maxIndex)}
		if entry, err = r.frame(headLen); err == nil && proto.Unmarshal(entry.record, index) != nil {
			err = invalidEntry(headLen)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return index, nil
}

func encodeIndex(index *statepb.Index) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(index)
	return appendFrame(encodeHead(headLen), &frame{record: b}), err
}

// repair sets damaged files aside, and writes new ones with their whole parts. A kill loses nothing more:
// a file has both names until repair replaces it.
func (s *Store) repair(d *directory) error {
	for _, path := range list(s.dir, "*"+owner.TempSuffix+"*") { // of a relay that was killed
		os.Remove(path) // the next start tries again
	}
	index := &statepb.Index{Served: d.served()}
	s.update(func() { s.index = d.index })
	if errors.Is(d.indexErr, errCorrupt) {
		if err := s.setAside(indexName, d.indexErr); err != nil {
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
	if d.indexErr == nil && proto.Equal(index, s.index) {
		return nil
	}
	return s.writeIndex(index)
}

// repairLog cuts off a torn batch, replaces a damaged log, or removes a lost one.
func (s *Store) repairLog(d *directory, name string) error {
	u := d.logs[name]
	if u.damage == nil {
		if u.info.Size() > u.end {
			return u.file.Truncate(u.end) // a torn batch
		}
		return nil
	}
	if err := s.setAside(logName(name), u.damage); err != nil {
		return err
	}
	defer u.file.Close()
	if u.lost {
		delete(d.logs, name)
		return remove(u.file.Name())
	}
	next, err := s.replaceLog(name, u.rewrite)
	if err == nil {
		d.logs[name] = next
	}
	return err
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
