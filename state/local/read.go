package local

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// view returns a copy of a log without its places, empty when there is no log.
func (s *Store) view(name string) (*upstream, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.logs == nil {
		return nil, state.ErrNotInUse
	}
	v := *cmp.Or(s.logs[name], newUpstream(name, nil))
	v.places = nil
	return &v, nil
}

// Load implements state.Store.
func (s *Store) Load(name string) (state.Saved, error) {
	s.mu.RLock()
	u := *cmp.Or(s.logs[name], newUpstream(name, nil))
	places := u.inOrder()
	s.mu.RUnlock()
	saved, err := u.load(places)
	if err != nil {
		return state.Saved{}, fmt.Errorf("%s: %w", logName(name), err)
	}
	if n := len(saved.Unusable); n > 0 {
		s.log.Error("stored resources not decoded", "upstream", name, "resources", n, "err", saved.Unusable[0])
	}
	return saved, nil
}

// History implements state.Store.
func (s *Store) History(name string) ([]state.Revision, error) {
	u, err := s.view(name)
	if err != nil {
		return nil, err
	}
	return u.history()
}

// At implements state.Store.
func (s *Store) At(name string, revision uint64) ([]state.Record, error) {
	u, err := s.view(name)
	if err != nil {
		return nil, err
	}
	oldest, newest := u.ledger.Oldest, u.ledger.Newest
	if len(u.rows) == 0 {
		return nil, fmt.Errorf("%w: %d, there are none", state.ErrUnknownRevision, revision)
	}
	if revision < oldest || revision > newest {
		return nil, fmt.Errorf("%w: %d, there are %d to %d", state.ErrUnknownRevision, revision, oldest, newest)
	}
	row := u.rows[revision-oldest]
	was, err := u.asOf(row.at + row.size)
	if err != nil {
		return nil, err
	}
	saved, err := was.load(was.inOrder())
	return saved.Records, errors.Join(err, errors.Join(saved.Unusable...))
}

// Backup implements state.Store. The copy is a tar archive: the index, the other files, and the logs.
func (s *Store) Backup(w io.Writer, others ...state.Extra) error {
	s.mu.RLock()
	open, names := s.open, slices.Sorted(maps.Keys(s.logs))
	index := &statepb.Index{Served: s.index.GetServed(), Upstreams: names}
	var logs []upstream
	for _, name := range names {
		logs = append(logs, *s.logs[name])
	}
	s.mu.RUnlock()
	if !open {
		return state.ErrNotInUse
	}
	b, err := encodeIndex(index)
	if err != nil {
		return err
	}
	to := tar.NewWriter(w)
	add := func(name string, size int64, content ...io.Reader) error {
		if err := to.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: time.Now()}); err != nil {
			return err
		}
		_, err := io.Copy(to, io.MultiReader(content...))
		return err
	}
	for _, o := range append([]state.Extra{{Name: indexName, Text: b}}, others...) {
		if err := add(o.Name, int64(len(o.Text)), bytes.NewReader(o.Text)); err != nil {
			return err
		}
	}
	for _, u := range logs {
		head := bytes.NewReader(encodeHead(u.end))
		if err := add(logName(u.name), u.end, head, io.NewSectionReader(u.from, headLen, u.end-headLen)); err != nil {
			return err
		}
	}
	return to.Close()
}

// ReadFile reads the state in the directory of a Path, and changes nothing. It fails with ErrInUse
// while a relay uses the directory.
func ReadFile(path string) (*state.File, error) {
	dir := filepath.Dir(path)
	d := &directory{}
	err := checkUse(dir, lockPatience)
	if err == nil {
		d, err = readDirectory(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer d.close()
	if errors.Is(d.indexErr, fs.ErrNotExist) && len(d.logs) == 0 {
		return nil, d.indexErr
	}
	out := &state.File{}
	if d.damage != nil {
		out.Damage = d.damage.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(d.logs)) {
		u := d.logs[name]
		if u.lost {
			continue
		}
		saved, err := u.load(u.inOrder())
		if err != nil {
			return nil, fmt.Errorf("%s: upstream %s: %w", path, name, err)
		}
		out.Sources = append(out.Sources, state.Contents{Name: name, Saved: saved, Bytes: u.live, Revisions: len(u.rows)})
	}
	return out, nil
}
