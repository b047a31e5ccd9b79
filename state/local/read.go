package local

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
)

// view is what a reader sees of an upstream: its log up to now, open.
type view struct {
	*content // a copy, without places
	file     *os.File
}

// view opens the log of an upstream.
func (s *Store) view(name string) (view, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	src := s.sources[name]
	switch {
	case !s.open:
		return view{}, state.ErrNotInUse
	case src == nil:
		return view{}, state.ErrUnknownSource
	}
	f, err := openOwn(src.path, os.O_RDONLY, 0)
	if err != nil {
		return view{}, err
	}
	c := *src.content
	c.places = nil
	return view{&c, f}, nil
}

// Load implements state.Store.
func (s *Store) Load(name string) (state.Saved, error) {
	s.mu.RLock()
	var c content
	var from io.ReaderAt
	src := s.sources[name]
	switch {
	case src != nil:
		c = *src.content
		c.places = maps.Clone(c.places)
	case s.readable != nil && s.readable.parts[name] != nil && !s.readable.parts[name].lost:
		c, from = *s.readable.parts[name].content, s.readable.parts[name].from
	default:
		s.mu.RUnlock()
		return state.Saved{}, nil
	}
	s.mu.RUnlock()
	if from == nil {
		v, err := s.view(name)
		if err != nil {
			return state.Saved{}, err
		}
		defer v.file.Close()
		from = v.file
	}
	records, bad, err := c.records(from)
	if err != nil {
		return state.Saved{}, fmt.Errorf("%s: %w", logName(name), err)
	}
	s.noteUnusable(name, src, bad)
	return state.Saved{Meta: decodeMeta(c.ledger), Records: records, Revision: c.ledger.GetNewest()}, nil
}

// noteUnusable has the records removed that this version can not use: the source does not know
// of them.
func (s *Store) noteUnusable(name string, src *source, bad []unusable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if src == nil || len(bad) == 0 || len(src.unusable) > 0 {
		return
	}
	for _, u := range bad {
		src.unusable = append(src.unusable, u.key)
	}
	s.info.Unusable += len(bad)
	s.log.Error("state has resources that this version of the relay can not use; they are removed",
		"upstream", name, "resources", len(bad), "first", string(bad[0].key), "err", bad[0].err)
}

// History implements state.Store.
func (s *Store) History(name string) ([]state.Revision, error) {
	v, err := s.view(name)
	if err != nil {
		return nil, err
	}
	defer v.file.Close()
	return v.history(v.file)
}

// At implements state.Store. It fails with ErrUnknownRevision when there is no such revision, or
// none any more.
func (s *Store) At(name string, revision uint64) ([]state.Record, error) {
	v, err := s.view(name)
	if err != nil {
		return nil, err
	}
	defer v.file.Close()
	oldest, newest := v.ledger.GetOldest(), v.ledger.GetNewest()
	switch {
	case oldest == 0:
		return nil, fmt.Errorf("%w: %d, and there are none", state.ErrUnknownRevision, revision)
	case revision < oldest || revision > newest:
		return nil, fmt.Errorf("%w: %d, and there are %d to %d", state.ErrUnknownRevision, revision, oldest, newest)
	}
	end := v.end
	if revision < newest {
		end = v.rows[revision+1-oldest].at // what follows the revision up to there is not committed
	}
	c, err := replayTo(v.file, end)
	if err != nil {
		return nil, err
	}
	records, bad, err := c.records(v.file)
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("%q can not be used by this version of the relay: %w", bad[0].key, bad[0].err)
	}
	slices.SortFunc(records, func(a, b state.Record) int { // the order in which they are sent
		x, y := a.Resource.Key(), b.Resource.Key()
		return cmp.Or(mirror.CompareKinds(x.Kind, y.Kind), cmp.Compare(a.Resource.FullName(), b.Resource.FullName()))
	})
	return records, err
}

// Backup implements state.Store. The copy is one file: the index, and the logs behind it.
func (s *Store) Backup(w io.Writer) error {
	s.mu.RLock()
	names, index := slices.Sorted(maps.Keys(s.sources)), s.index
	s.mu.RUnlock()
	var m memory
	if err := indexLog(newLog(&m), index); err != nil {
		return err
	}
	var views []view
	defer func() {
		for _, v := range views {
			v.file.Close()
		}
	}()
	for _, name := range names {
		v, err := s.view(name)
		if errors.Is(err, state.ErrUnknownSource) {
			continue // since then
		}
		if err != nil {
			return err
		}
		views = append(views, v)
	}
	if _, err := w.Write(m); err != nil {
		return err
	}
	for _, v := range views {
		head := append(head{v.head.salt, 1, v.end}.encode(), make([]byte, slotLen)...)
		if _, err := w.Write(head); err != nil {
			return err
		}
		if _, err := io.Copy(w, io.NewSectionReader(v.file, headLen, v.end-headLen)); err != nil {
			return err
		}
	}
	return nil
}

// ReadFile reads the state in the directory of a Path, or a backup, and changes nothing. It
// fails with ErrInUse when a relay has the directory.
func ReadFile(path string) (*state.File, error) {
	d := newDirectory()
	var err error
	if dir := filepath.Dir(path); filepath.Base(path) != indexName {
		err = d.readBackup(path)
	} else if err = shareDir(dir); err == nil {
		d, err = readDirectory(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer d.close()
	if err := d.convertOld(); err != nil {
		return nil, err
	}
	switch {
	case errors.Is(d.indexErr, fs.ErrNotExist) && len(d.parts) == 0 && d.old == nil:
		return nil, d.indexErr
	case errors.Is(d.indexErr, errNewer):
		return nil, fmt.Errorf("%s: %w", path, d.indexErr)
	}
	out := &state.File{Path: path, Size: d.size, Format: formatVersion}
	if d.old != nil {
		out.Path, out.Format = d.old.file.Name(), oldFormat
	}
	if d.damage != nil {
		out.Damage = d.damage.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(d.parts)) {
		p := d.parts[name]
		if p.lost {
			continue
		}
		records, _, err := p.records(p.from)
		revisions, err2 := p.history(p.from)
		if err := cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("%s: upstream %s: %w", path, name, err)
		}
		saved := state.Saved{Meta: decodeMeta(p.ledger), Records: records, Revision: p.ledger.GetNewest()}
		out.Sources = append(out.Sources, state.Contents{Name: name, Saved: saved, Bytes: p.live, Revisions: revisions})
	}
	return out, nil
}

// Replace makes what is kept of an upstream in a directory something else: its whole content. It
// fails when a relay has the directory.
func Replace(dir string, history state.History, name string, saved state.Saved, log *slog.Logger) error {
	s := New(dir, log)
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
