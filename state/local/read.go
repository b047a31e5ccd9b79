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

	"google.golang.org/protobuf/proto"

	"meshrelay/state"
)

// view returns the present state of a log, without its places. Without a log it is empty.
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
	saved, bad, err := u.saved(places)
	if err != nil {
		return state.Saved{}, fmt.Errorf("%s: %w", logName(name), err)
	}
	s.update(func() {
		if u := s.logs[name]; u != nil {
			u.unusable = len(bad)
		}
	})
	if saved.Unusable = len(bad); len(bad) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(bad)))
		s.log.Error("stored resources not decoded", "upstream", name, "resources", len(bad), "first", first, "err", bad[first])
	}
	return saved, nil
}

// saved reads the resources at the places of the log. bad has the errors of records that this build can
// not decode, by key.
func (u *upstream) saved(places []place) (_ state.Saved, bad map[string]error, _ error) {
	records, bad, err := records(u.from, u.end, places)
	return state.Saved{Meta: decodeMeta(u.ledger), Records: records, Revision: u.ledger.Newest}, bad, err
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
	oldest := u.ledger.Oldest
	switch {
	case oldest == 0:
		return nil, fmt.Errorf("%w: %d, there are none", state.ErrUnknownRevision, revision)
	case revision < oldest || revision > u.ledger.Newest:
		return nil, fmt.Errorf("%w: %d, there are %d to %d", state.ErrUnknownRevision, revision, oldest, u.ledger.Newest)
	}
	row := u.rows[revision-oldest]
	was, err := u.asOf(row.at + row.size)
	if err != nil {
		return nil, err
	}
	saved, bad, err := was.saved(was.inOrder())
	for key, bad := range bad {
		err = fmt.Errorf("%q does not decode: %w", key, bad)
	}
	return saved.Records, err
}

// Backup implements state.Store. The copy is a tar archive: the index, the logs, and the other files.
func (s *Store) Backup(w io.Writer, others ...state.Extra) error {
	s.mu.RLock()
	index, open := proto.CloneOf(s.index), s.open
	names := slices.Sorted(maps.Keys(s.logs))
	logs := make([]upstream, len(names))
	for i, name := range names {
		logs[i] = *s.logs[name]
	}
	s.mu.RUnlock()
	if !open {
		return state.ErrNotInUse
	}
	index.Upstreams = names
	b, err := encodeIndex(index)
	if err != nil {
		return err
	}
	to := tar.NewWriter(w)
	add := func(name string, head []byte, rest io.Reader, size int64) error {
		if err := to.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: time.Now()}); err != nil {
			return err
		}
		_, err := io.Copy(to, io.MultiReader(bytes.NewReader(head), rest))
		return err
	}
	if err := add(indexName, b, bytes.NewReader(nil), int64(len(b))); err != nil {
		return err
	}
	for _, u := range logs {
		if err := add(logName(u.name), encodeHead(u.end), io.NewSectionReader(u.from, headLen, u.end-headLen), u.end); err != nil {
			return err
		}
	}
	for _, o := range others {
		if err := add(o.Name, o.Text, bytes.NewReader(nil), int64(len(o.Text))); err != nil {
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
	err := checkUse(dir)
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
	out := &state.File{Path: path, Size: d.size, Format: formatVersion}
	if d.damage != nil {
		out.Damage = d.damage.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(d.logs)) {
		u := d.logs[name]
		if u.lost {
			continue
		}
		saved, _, err := u.saved(u.inOrder())
		revisions, err2 := u.history()
		if err := cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("%s: upstream %s: %w", path, name, err)
		}
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
	defer os.RemoveAll(dir) //nolint:errcheck // the system removes it
	damage := ""
	for from := tar.NewReader(r); ; {
		h, err := from.Next()
		switch {
		case errors.Is(err, io.EOF):
			file, err := ReadFile(Path(dir))
			if err == nil {
				file.Damage = cmp.Or(damage, file.Damage)
			}
			return file, err
		case err != nil:
			return nil, err
		}
		if strings.HasSuffix(h.Name, ".json") {
			continue // an Extra
		}
		name := indexName
		if h.Name != name {
			name = logName(upstreamOf(h.Name))
		}
		if h.Name != name {
			damage = corruptf("%.100q is not a file of a state", h.Name).Error()
			continue
		}
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			_, err = io.CopyN(f, from, h.Size)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return nil, err
		}
	}
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
