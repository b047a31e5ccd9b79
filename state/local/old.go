package local

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"meshrelay/state"
	"meshrelay/state/local/boltfile"
	"meshrelay/state/local/statepb"
)

// relay.db is the state of earlier releases. It is read once, verified, and left as it is, so
// that such a release can start with it again. Its buckets are "meta" (format, upstreams,
// served), and "sources", with one for each upstream: "meta" (a ledger), "resources",
// "history" (chapters, by revision) and "undo" (by revision and resource: what the resource was
// before, empty if it was not there). Each value has a checksum before it that covers the key.

const oldFormat = 1

// oldFile is what relay.db holds.
type oldFile struct {
	file *os.File
	from *statepb.Imported // what to note of the file
	// sources are those that are whole, by name.
	sources map[string]*oldSource
	format  uint64
	served  *bool // nil in a file of builds that did not write it
	// written and found count the sources that there should be, and that there are.
	written, found *statepb.Mark
	damage         error
}

// oldSource is what relay.db holds of an upstream.
type oldSource struct {
	ledger    *statepb.Ledger
	resources map[string]span // by key
	chapters  []*statepb.Chapter
	first     uint64    // revision of chapters
	undo      []oldUndo // by revision, and then by key
}

// oldUndo is what a resource was before a revision.
type oldUndo struct {
	revision uint64
	key      string
	was      span
}

// span is where a value is in the file, without its checksum; empty when there is none.
type span struct {
	at  int64
	len int
}

// openOld opens relay.db, and does not read it yet. The error is that of opening: what is wrong
// with the content is in damage.
func openOld(path string) (*oldFile, *boltfile.File, error) {
	f, err := openOwn(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	o := &oldFile{
		file: f, from: &statepb.Imported{Size: info.Size(), Mtime: info.ModTime().UnixNano()}, sources: map[string]*oldSource{},
		written: &statepb.Mark{}, found: &statepb.Mark{},
	}
	bolt, err := boltfile.Open(f, info.Size())
	if err != nil {
		o.damage = err
		return o, nil, nil //nolint:nilerr // it is in damage
	}
	o.from.Transaction = bolt.Transaction
	return o, bolt, nil
}

func (o *oldFile) note(err error) {
	if o.damage == nil {
		o.damage = err
	}
}

// read reads all of the file. It goes on behind what is damaged, as far as that can be found.
func (o *oldFile) read(f *boltfile.File) {
	o.note(f.Walk(func(key, _ []byte, _ int64, sub *boltfile.Bucket) error {
		switch {
		case sub != nil && string(key) == "meta":
			return f.WalkBucket(sub, o.readMark)
		case sub == nil || string(key) != "sources":
			return nil
		case o.format != oldFormat: // "meta" comes before "sources"
			return corruptf("it has format %d, and not %d", o.format, oldFormat)
		}
		return f.WalkBucket(sub, func(key, _ []byte, _ int64, sub *boltfile.Bucket) error {
			o.found.Number++
			o.found.Digest += xxh3.Hash(key)
			if sub == nil || !state.IsName(string(key)) {
				o.note(corruptf("%.100q is no name of an upstream", key))
				return nil
			}
			s, err := readOldSource(f, sub, string(key))
			if err != nil {
				o.note(fmt.Errorf("upstream %s: %w", key, err))
			}
			if s != nil {
				o.sources[string(key)] = s
			}
			return nil
		})
	}))
	if !proto.Equal(o.found, o.written) {
		o.note(corruptf("it has %d upstreams, or others than were written, which were %d", o.found.Number, o.written.Number))
	}
}

func (o *oldFile) readMark(key, value []byte, _ int64, _ *boltfile.Bucket) error {
	m := &statepb.Mark{}
	if err := unsealInto(m, key, value); err != nil {
		return corruptf("what it tells of itself: %v", err)
	}
	switch string(key) {
	case "format":
		o.format = m.Number
	case "upstreams":
		o.written = m
	case "served":
		served := m.Number != 0
		o.served = &served
	}
	return nil
}

// hasServed reports whether clients were served with this state, and none of it is lost. In a
// file that does not tell, an upstream that has synced shows it.
func (o *oldFile) hasServed() bool {
	if o.damage != nil && (len(o.sources) == 0 || uint64(len(o.sources)) != o.written.Number) {
		return false
	}
	if o.served != nil {
		return *o.served
	}
	for _, s := range o.sources {
		if s.ledger.Synced {
			return true
		}
	}
	return false
}

// readOldSource reads an upstream. It returns nil when the resources are not whole; when only
// the history is not, it returns both.
func readOldSource(f *boltfile.File, b *boltfile.Bucket, name string) (*oldSource, error) {
	s := &oldSource{resources: map[string]span{}}
	var damaged, historyDamaged error
	var digest, size uint64
	undone := map[uint64]*statepb.Chapter{}
	err := f.WalkBucket(b, func(key, value []byte, _ int64, sub *boltfile.Bucket) error {
		switch what := string(key); {
		case what == "meta" && sub == nil:
			s.ledger = &statepb.Ledger{}
			damaged = errors.Join(damaged, unsealInto(s.ledger, []byte("meta\x00"+name), value))
		case what == "resources" && sub != nil:
			damaged = errors.Join(damaged, f.WalkBucket(sub, func(key, value []byte, at int64, _ *boltfile.Bucket) error {
				payload, sum, err := unseal(key, value)
				s.resources[string(key)] = spanOf(at, value)
				digest, size = digest+sum, size+uint64(len(key)+len(value))
				if err == nil && len(payload) == 0 {
					err = errors.New("it is empty")
				}
				return err
			}))
		case what == "history" && sub != nil:
			historyDamaged = errors.Join(historyDamaged, f.WalkBucket(sub, s.readChapter))
		case what == "undo" && sub != nil:
			historyDamaged = errors.Join(historyDamaged, f.WalkBucket(sub, func(key, value []byte, at int64, _ *boltfile.Bucket) error {
				return s.readUndo(undone, key, value, at)
			}))
		}
		return nil
	})
	switch damaged = errors.Join(damaged, err); {
	case damaged != nil:
		return nil, corruptf("%v", damaged)
	case s.ledger == nil:
		return nil, corruptf("it tells nothing of itself")
	case uint64(len(s.resources)) != s.ledger.Count || digest != s.ledger.Digest || size != s.ledger.Bytes:
		return nil, corruptf("it has %d resources of %d bytes, or others than were written, which were %d of %d bytes", len(s.resources), size, s.ledger.Count, s.ledger.Bytes)
	}
	if err := errors.Join(historyDamaged, s.checkHistory(undone)); err != nil {
		s.chapters, s.undo, s.ledger.Oldest = nil, nil, 0
		return s, corruptf("history: %v", err)
	}
	return s, nil
}

func (s *oldSource) readChapter(key, value []byte, _ int64, _ *boltfile.Bucket) error {
	c := &statepb.Chapter{}
	if err := unsealInto(c, key, value); err != nil {
		return err
	}
	if len(key) != 8 {
		return errors.New("what stands in the history is no revision")
	}
	if id := binary.BigEndian.Uint64(key); len(s.chapters) == 0 {
		s.first = id
	} else if id != s.first+uint64(len(s.chapters)) {
		return fmt.Errorf("revision %d is missing", s.first+uint64(len(s.chapters)))
	}
	s.chapters = append(s.chapters, c)
	return nil
}

// readUndo takes in what leads back from a revision, and counts it.
func (s *oldSource) readUndo(undone map[uint64]*statepb.Chapter, key, value []byte, at int64) error {
	if len(key) <= 8 {
		return errors.New("what stands among the undo data is none")
	}
	u := oldUndo{revision: binary.BigEndian.Uint64(key), key: string(key[8:])}
	sum := uint64(0)
	if len(value) > 0 {
		var err error
		if _, sum, err = unseal(key[8:], value); err != nil {
			return fmt.Errorf("revision %d: what was before it: %w", u.revision, err)
		}
		u.was = spanOf(at, value)
	}
	s.undo = append(s.undo, u)
	c := undone[u.revision]
	if c == nil {
		c = &statepb.Chapter{}
		undone[u.revision] = c
	}
	c.Undone, c.UndoBytes, c.UndoDigest = c.Undone+1, c.UndoBytes+uint64(len(key)+len(value)), c.UndoDigest+xxh3.HashSeed(key, sum)
	return nil
}

// checkHistory compares the history with the ledger, and the undo data with the history.
func (s *oldSource) checkHistory(undone map[uint64]*statepb.Chapter) error {
	want := uint64(0)
	if s.ledger.Oldest > 0 {
		want = s.ledger.Newest - s.ledger.Oldest + 1
	}
	if s.ledger.Oldest > s.ledger.Newest || uint64(len(s.chapters)) != want || s.first != s.ledger.Oldest {
		return fmt.Errorf("it has %d revisions, and %d were written", len(s.chapters), want)
	}
	for i, c := range s.chapters {
		id := s.ledger.Oldest + uint64(i)
		u := undone[id]
		if u == nil {
			u = &statepb.Chapter{}
		}
		delete(undone, id)
		if u.Undone != c.Undone || u.UndoBytes != c.UndoBytes || u.UndoDigest != c.UndoDigest {
			return fmt.Errorf("revision %d: what was before it is incomplete", id)
		}
	}
	inOrder := slices.IsSortedFunc(s.undo, func(a, b oldUndo) int { return cmp.Compare(a.revision, b.revision) })
	if len(undone) > 0 || !inOrder {
		return errors.New("it has undo data of revisions that there are not, or out of order")
	}
	return nil
}

// spanOf returns where the payload of a value is.
func spanOf(at int64, value []byte) span { return span{at + 8, max(len(value)-8, 0)} }

// unseal checks a value and returns what is behind its checksum.
func unseal(key, value []byte) (payload []byte, sum uint64, err error) {
	if len(value) < 8 {
		return nil, 0, errors.New("it is too short")
	}
	sum = binary.LittleEndian.Uint64(value)
	if sum != xxh3.HashSeed(value[8:], xxh3.Hash(key)) {
		return nil, sum, fmt.Errorf("%q: its checksum does not match", key)
	}
	return value[8:], sum, nil
}

func unsealInto(m proto.Message, key, value []byte) error {
	payload, _, err := unseal(key, value)
	if err != nil {
		return err
	}
	return proto.Unmarshal(payload, m)
}

// writeLog writes an upstream as a log.
func (o *oldFile) writeLog(name string, to *builder) error {
	s := o.sources[name]
	w := &oldWriter{to: to, from: o.file, content: newContent()}
	w.add(&statepb.Entry{Start: &statepb.Start{Upstream: name}}, nil)
	// What each resource became by a revision is what it was before the next one that has
	// changed it. base is what there was as of the oldest.
	base := maps.Clone(s.resources)
	became := make([]span, len(s.undo))
	for i := len(s.undo) - 1; i >= 0; i-- {
		u := &s.undo[i]
		became[i], base[u.key] = base[u.key], u.was
	}
	for _, key := range slices.Sorted(maps.Keys(base)) {
		w.put(key, base[key])
	}
	l := proto.CloneOf(s.ledger)
	if len(s.chapters) == 0 {
		w.commit(l, nil)
	}
	for i, c := range s.chapters {
		l.Newest = s.ledger.Oldest + uint64(i)
		for len(s.undo) > 0 && s.undo[0].revision == l.Newest {
			w.put(s.undo[0].key, became[0])
			s.undo, became = s.undo[1:], became[1:]
		}
		w.commit(l, c)
	}
	if w.err != nil {
		return w.err
	}
	return to.finish()
}

// oldWriter writes values of relay.db to a log, until something goes wrong.
type oldWriter struct {
	to       *builder
	from     io.ReaderAt
	content  *content
	replaced int
	err      error
}

func (w *oldWriter) add(e *statepb.Entry, record []byte) (size int) {
	if w.err == nil {
		size, w.err = w.to.add(e, record)
	}
	return size
}

// put makes a value what there is under a key.
func (w *oldWriter) put(key string, value span) {
	change := &statepb.Change{Key: []byte(key)}
	b := make([]byte, value.len)
	if value.len > 0 {
		_, err := w.from.ReadAt(b, value.at)
		record := &statepb.Record{}
		// What does not decode is a record that this version can not use. It has no digest.
		if proto.Unmarshal(b, record) == nil && len(record.Digest) >= 8 {
			change.Digest = binary.LittleEndian.Uint64(record.Digest)
		}
		w.err = errors.Join(w.err, err)
	}
	h := hashOf(change.Key)
	old, had := w.content.places[h]
	if !had && value.len == 0 {
		return
	}
	at := w.to.end()
	size := w.add(&statepb.Entry{Change: change}, b)
	w.replaced += old.size
	if value.len == 0 {
		w.replaced += size
	}
	w.content.apply([]edit{{h, place{at, size, sumOf(h, b), change.Digest}, value.len == 0}})
}

// commit ends a revision, or, without a chapter, what there is.
func (w *oldWriter) commit(l *statepb.Ledger, chapter *statepb.Chapter) {
	l.Count, l.Digest, l.Bytes, l.HistoryBytes = uint64(len(w.content.places)), w.content.sum, 0, 0
	if chapter != nil {
		chapter = proto.CloneOf(chapter)
		chapter.Undone, chapter.UndoDigest, chapter.UndoBytes = 0, 0, uint64(w.replaced)
	}
	w.replaced = 0
	w.add(&statepb.Entry{Commit: &statepb.Commit{Ledger: l, Chapter: chapter}}, nil)
}
