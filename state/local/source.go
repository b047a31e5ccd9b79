package local

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

const (
	// maxNamed bounds the keys that a revision names.
	maxNamed = 10
	// minGarbage is how much of a log may be needless before the log is written anew. Above
	// that, half of it may be.
	minGarbage = 1 << 20
)

// source is the log of one upstream, open for writing.
type source struct {
	*content
	path string
	file *os.File
	info os.FileInfo
	// unusable are the keys of records that this build can not use. They are removed with the
	// next batch. Readers find them: they belong to the mutex of the Store.
	unusable [][]byte
	// suspect tells that it is not known what of the last batch is durable.
	suspect bool
	// tired is the size below which the log is not written anew, because that has failed.
	tired int64
}

// openSource takes the log at a path into use. It is not read when it was, as p.
func openSource(path string, p *part) (*source, error) {
	f, err := openOwn(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, file: f}
	if s.info, err = f.Stat(); err == nil && p != nil && p.info != nil && p.damage == nil && os.SameFile(p.info, s.info) {
		s.content = p.content
	} else if err == nil {
		s.content = replay(f, s.info.Size())
	}
	if err == nil && s.damage != nil {
		err = s.damage
	}
	if err == nil && s.info.Size() > s.end {
		err = f.Truncate(s.end) // a torn batch
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// createSource makes a log without resources.
func createSource(path, name string) (*source, error) {
	err := replaceFile(path, func(f *os.File) error {
		b := newLog(f)
		if _, err := b.add(&statepb.Entry{Start: &statepb.Start{Upstream: name}}, nil); err != nil {
			return err
		}
		return b.finish()
	})
	if err != nil {
		return nil, err
	}
	return openSource(path, nil)
}

// writer makes a batch of changes part of a source.
type writer struct {
	*source
	unusable [][]byte
	to       *builder
	edits    []edit
	revision state.Revision
	replaced int64 // bytes
	revised  bool  // content has changed
}

// apply makes a batch durable. It returns the content after it, of which the places are yet to
// be edited; nil when there is nothing to write.
func (s *source) apply(b *state.Batch, unusable [][]byte) (*content, []edit, error) {
	w := &writer{source: s, unusable: unusable, to: &builder{to: s.file, salt: s.head.salt, at: s.end}}
	w.revision = state.Revision{Time: b.Now, By: b.Meta.By}
	next, err := w.batch(b)
	if err == nil && next != nil {
		if err = w.to.flush(); err == nil {
			err = s.sync()
		}
	}
	if err != nil {
		if terr := s.file.Truncate(s.end); terr != nil {
			s.suspect = true
		}
		return nil, nil, err
	}
	if next != nil {
		next.head.sequence++
	}
	return next, w.edits, nil
}

// sync makes what was appended durable. Until it returns, the head tells where the log ended
// before.
func (s *source) sync() error {
	h := head{s.head.salt, s.head.sequence + 1, s.end}
	if _, err := s.file.WriteAt(h.encode(), int64(h.sequence%2)*slotLen); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		s.suspect = true // what is in the file now need not be on the disk, ever
		return err
	}
	return nil
}

// batch appends what a batch changes.
func (w *writer) batch(b *state.Batch) (*content, error) {
	seen := make(map[hash]struct{}, len(b.Changes))
	for _, c := range b.Changes {
		key := appendKey(nil, c.Key)
		seen[hashOf(key)] = struct{}{}
		if err := w.put(key, c.Key, c.Record); err != nil {
			return nil, err
		}
	}
	for _, key := range w.unusable {
		if _, again := seen[hashOf(key)]; !again {
			if err := w.remove(key); err != nil {
				return nil, err
			}
		}
	}
	if b.Meta.Whole {
		if err := w.removeOthers(seen); err != nil {
			return nil, err
		}
	}
	return w.commit(b)
}

// put appends a change of a key, if it is one.
func (w *writer) put(key []byte, id mirror.Key, r *state.Record) error {
	h := hashOf(key)
	old, had := w.places[h]
	if r == nil && !had {
		return nil
	}
	var record []byte
	to := place{at: w.to.end()}
	if r != nil {
		var err error
		if record, err = encodeRecord(id, r); err != nil {
			return err
		}
		digest := r.Resource.Digest()
		to.sum, to.digest = sumOf(h, record), binary.LittleEndian.Uint64(digest[:])
		if had && to.sum == old.sum && to.digest == old.digest {
			return nil
		}
	}
	size, err := w.to.add(&statepb.Entry{Change: &statepb.Change{Key: key, Digest: to.digest}}, record)
	if err != nil {
		return err
	}
	to.size = size
	w.edits = append(w.edits, edit{h, to, r == nil})
	w.replaced += int64(old.size)
	mark := ""
	// The content makes a revision, not what only the protocol of the source gives.
	switch {
	case !had:
		w.revision.Added++
		mark = "+"
	case r == nil:
		w.replaced += int64(size)
		w.revision.Removed++
		mark = "-"
	case old.digest != to.digest:
		w.revision.Changed++
		mark = "~"
	default:
		return nil
	}
	w.revised = true
	if len(w.revision.Keys) < maxNamed {
		w.revision.Keys = append(w.revision.Keys, mark+id.String())
	}
	return nil
}

func (w *writer) remove(key []byte) error {
	id, _ := parseKey(key) // it is only shown
	return w.put(key, id, nil)
}

// removeOthers removes the keys that are not among some.
func (w *writer) removeOthers(some map[hash]struct{}) error {
	r := &reader{from: w.file, size: w.end, head: w.head}
	var others []place
	for h, p := range w.places {
		if _, stays := some[h]; !stays {
			others = append(others, p)
		}
	}
	slices.SortFunc(others, func(a, b place) int { return cmp.Compare(a.at, b.at) })
	for _, p := range others {
		e, _, _, err := r.entry(p.at)
		if err != nil {
			return err
		}
		if err := w.remove(e.GetChange().GetKey()); err != nil {
			return err
		}
	}
	return nil
}

// commit appends the end of the batch.
func (w *writer) commit(b *state.Batch) (*content, error) {
	next := *w.content
	sum := w.sum
	for _, e := range w.edits {
		sum += e.to.sum - w.places[e.key].sum
	}
	l := encodeMeta(b.Meta)
	l.Count = uint64(len(w.places) + w.revision.Added - w.revision.Removed)
	l.Digest, l.Newest, l.Oldest = sum, w.ledger.GetNewest(), w.ledger.GetOldest()
	next.rows = slices.Clone(w.rows)
	commit := &statepb.Commit{Ledger: l}
	if w.revised {
		l.Newest++
		if b.History.Revisions > 0 {
			w.revision.Resources = int(l.Count)
			commit.Chapter = encodeRevision(&w.revision, w.replaced)
			next.rows = append(next.rows, row{b.Now, 0, int64(proto.Size(commit.Chapter)), w.replaced})
		}
	}
	next.rows = prune(next.rows, b)
	l.Oldest = 0
	if n := len(next.rows); n > 0 {
		l.Oldest = l.Newest - uint64(n) + 1
	}
	if len(w.edits) == 0 && l.Oldest == w.ledger.GetOldest() && b.Meta.Equal(decodeMeta(w.ledger)) {
		return nil, nil
	}
	at := w.to.end()
	size, err := w.to.add(&statepb.Entry{Commit: commit}, nil)
	if err != nil {
		return nil, err
	}
	if commit.Chapter != nil && len(next.rows) > 0 {
		last := &next.rows[len(next.rows)-1]
		last.at, last.size = at, int64(size)
	}
	next.ledger, next.end = l, w.to.end()
	return &next, nil
}

// prune returns the revisions that stay: the oldest go, as far as the bounds demand.
func prune(rows []row, b *state.Batch) []row {
	if b.History.Revisions <= 0 {
		return nil
	}
	size := historySize(rows)
	for len(rows) > 1 {
		h := b.History
		if len(rows) <= h.Revisions && (h.MaxBytes <= 0 || size <= int64(h.MaxBytes)) &&
			(h.MaxAge <= 0 || b.Now.Before(rows[1].time.Add(h.MaxAge))) {
			break
		}
		size -= rows[0].size + rows[1].replaced
		rows = rows[1:]
	}
	return rows
}

// historySize is what a log has because of its history, in bytes.
func historySize(rows []row) (n int64) {
	for i, r := range rows {
		n += r.size
		if i > 0 {
			n += r.replaced
		}
	}
	return n
}

// garbage reports whether the log is to be written anew because of what is not needed in it.
func (c *content) garbage() bool {
	needed := headLen + c.live + historySize(c.rows)
	return c.end > 2*needed+minGarbage
}

// rewrite writes the log anew, with what is needed of it, and opens it. The present file stays
// open.
func (s *source) rewrite() (*source, error) {
	err := replaceFile(s.path, func(f *os.File) error { return copyLog(newLog(f), s.content, s.file) })
	if err != nil {
		return nil, err
	}
	return openSource(s.path, nil)
}

// copyLog writes what is needed of a log: the resources as of the oldest revision that is kept,
// and then all changes.
func copyLog(to *builder, c *content, from io.ReaderAt) error {
	if _, err := to.add(&statepb.Entry{Start: &statepb.Start{Upstream: c.name}}, nil); err != nil {
		return err
	}
	r := &reader{from: from, size: c.end, head: c.head}
	oldest := c
	if len(c.rows) > 0 {
		var err error
		if oldest, err = replayTo(from, c.rows[0].at+c.rows[0].size); err != nil {
			return err
		}
	}
	for _, p := range oldest.inOrder() {
		if _, err := to.copyFrame(r, p.at); err != nil {
			return err
		}
	}
	if len(c.rows) == 0 {
		l := proto.CloneOf(c.ledger)
		l.Oldest = 0
		if _, err := to.add(&statepb.Entry{Commit: &statepb.Commit{Ledger: l}}, nil); err != nil {
			return err
		}
		return to.finish()
	}
	for at := c.rows[0].at; at < c.end; {
		size, err := to.copyFrame(r, at)
		if err != nil {
			return err
		}
		at += int64(size)
	}
	return to.finish()
}
