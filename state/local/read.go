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
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"meshrelay/internal/owner"
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
	out := &state.File{Path: path, Format: FormatVersion}
	if d.damage != nil {
		out.Damage = d.damage.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(d.logs)) {
		u := d.logs[name]
		if u.lost {
			continue
		}
		saved, err := u.load(u.inOrder())
		revisions, err2 := u.history()
		if err := cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("%s: upstream %s: %w", path, name, err)
		}
		out.Size += u.end
		out.Sources = append(out.Sources, state.Contents{Name: name, Saved: saved, Bytes: u.live, Revisions: revisions})
	}
	return out, nil
}

// ReadBackup reads a tar archive that Backup has written.
func ReadBackup(r io.Reader) (*state.File, error) {
	dir, err := os.MkdirTemp("", "relay-state-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the system removes it
	damage := ""
	from := tar.NewReader(r)
	h, err := from.Next()
	for ; err == nil; h, err = from.Next() {
		switch {
		case strings.HasSuffix(h.Name, ".json"): // an Extra
		case h.Name != indexName && h.Name != logName(upstreamOf(h.Name)):
			damage = corruptf("%.100q is not a file of a state", h.Name).Error()
		default:
			err := owner.Replace(filepath.Join(dir, h.Name), func(f *os.File) error { //nolint:gosec // the name is one of the two above
				_, err := io.CopyN(f, from, h.Size)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	file, err := ReadFile(Path(dir))
	if err == nil {
		file.Damage = cmp.Or(damage, file.Damage)
	}
	return file, err
}

// Replace replaces the whole content of an upstream in a directory. It fails while a relay uses the
// directory.
func Replace(dir string, history state.History, name string, saved state.Saved) error {
	s := New(dir, nil)
	defer s.Close()
	_, err := s.Open()
	if err == nil {
		b := state.Batch{Meta: saved.Meta, Now: time.Now(), History: history}
		b.Meta.Whole = true
		for i := range saved.Records {
			b.Changes = append(b.Changes, state.Change{Key: saved.Records[i].Resource.Key(), Record: &saved.Records[i]})
		}
		_, err = s.Apply(name, b)
	}
	if err != nil {
		return fmt.Errorf("state %s: %w", Path(dir), err)
	}
	return nil
}
