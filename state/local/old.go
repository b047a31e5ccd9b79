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
	path string
	bolt *boltfile.File
	from *statepb.Imported // what to note of the file
	// sources are those that are whole, by name, and logs is what they become.
	sources map[string]*oldSource
	logs    map[string]memory
	format  uint64
	served  *bool // nil in a file of builds that did not write it
	// written and found count the sources that there should be, and that there are.
	written, found *statepb.Mark
	damage         error
}

// oldSource is what relay.db holds of an upstream.
type oldSource struct {
	ledger    *statepb.Ledger
	resources map[string][]byte // by key
	chapters  []*statepb.Chapter
	first     uint64    // revision of chapters
	undo      []oldUndo // by revision, and then by key
}

// oldUndo is what a resource was before a revision.
type oldUndo struct {
	revision uint64
	key      string
	was      []byte
}

// openOld reads relay.db, and does not check it yet. It returns nil when the file is the one that
// was read before. The error is that of reading: what is wrong with the content is in damage.
func openOld(path string, was *statepb.Imported) (*oldFile, error) {
	f, err := openOwn(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := &statepb.Imported{Size: info.Size(), Mtime: info.ModTime().UnixNano()}
	if was != nil && was.Size == from.Size && was.Mtime == from.Mtime {
		return nil, nil
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	o := &oldFile{path: path, from: from, sources: map[string]*oldSource{}, written: &statepb.Mark{}, found: &statepb.Mark{}}
	if o.bolt, o.damage = boltfile.Open(data); o.damage == nil {
		from.Transaction = o.bolt.Transaction
	}
	return o, nil
}

func (o *oldFile) note(err error) { o.damage = cmp.Or(o.damage, err) }

// read reads all of the file, and makes logs of it in memory. It goes on behind what is damaged,
// as far as that can be found.
func (o *oldFile) read() (logs map[string]memory, err error) {
	if o.bolt != nil {
		o.walk(o.bolt)
	}
	logs = map[string]memory{}
	for name, s := range o.sources {
		var m memory
		if err := s.writeLog(newWriter(newUpstream(name, nil), &m)); err != nil {
			return nil, fmt.Errorf("%s: upstream %s: %w", o.path, name, err)
		}
		logs[name] = m
	}
	return logs, nil
}

func (o *oldFile) walk(f *boltfile.File) {
	o.note(f.Walk(func(key, _ []byte, sub *boltfile.Bucket) error {
		switch {
		case sub != nil && string(key) == "meta":
			return f.WalkBucket(sub, o.readMark)
		case sub == nil || string(key) != "sources":
			return nil
		case o.format != oldFormat: // "meta" comes before "sources"
			return corruptf("it has format %d, and not %d", o.format, oldFormat)
		}
		return f.WalkBucket(sub, func(key, _ []byte, sub *boltfile.Bucket) error {
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

func (o *oldFile) readMark(key, value []byte, _ *boltfile.Bucket) error {
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
	s := &oldSource{resources: map[string][]byte{}}
	var damaged, historyDamaged error
	var digest, size uint64
	undone := map[uint64]*statepb.Chapter{}
	err := f.WalkBucket(b, func(key, value []byte, sub *boltfile.Bucket) error {
		switch what := string(key); {
		case what == "meta" && sub == nil:
			s.ledger = &statepb.Ledger{}
			damaged = errors.Join(damaged, unsealInto(s.ledger, []byte("meta\x00"+name), value))
		case what == "resources" && sub != nil:
			damaged = errors.Join(damaged, f.WalkBucket(sub, func(key, value []byte, _ *boltfile.Bucket) error {
				payload, sum, err := unseal(key, value)
				s.resources[string(key)] = payload
				digest, size = digest+sum, size+uint64(len(key)+len(value))
				if err == nil && len(payload) == 0 {
					err = errors.New("it is empty")
				}
				return err
			}))
		case what == "history" && sub != nil:
			historyDamaged = errors.Join(historyDamaged, f.WalkBucket(sub, s.readChapter))
		case what == "undo" && sub != nil:
			historyDamaged = errors.Join(historyDamaged, f.WalkBucket(sub, func(key, value []byte, _ *boltfile.Bucket) error {
				return s.readUndo(undone, key, value)
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

func (s *oldSource) readChapter(key, value []byte, _ *boltfile.Bucket) error {
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
func (s *oldSource) readUndo(undone map[uint64]*statepb.Chapter, key, value []byte) error {
	if len(key) <= 8 {
		return errors.New("what stands among the undo data is none")
	}
	u := oldUndo{revision: binary.BigEndian.Uint64(key), key: string(key[8:])}
	sum := uint64(0)
	if len(value) > 0 {
		var err error
		if u.was, sum, err = unseal(key[8:], value); err != nil {
			return fmt.Errorf("revision %d: what was before it: %w", u.revision, err)
		}
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
func (s *oldSource) writeLog(w *writer) error {
	// What each resource became by a revision is what it was before the next one that has
	// changed it. base is what there was as of the oldest.
	base := maps.Clone(s.resources)
	became := make([][]byte, len(s.undo))
	for i := len(s.undo) - 1; i >= 0; i-- {
		u := &s.undo[i]
		became[i], base[u.key] = base[u.key], u.was
	}
	for _, key := range slices.Sorted(maps.Keys(base)) {
		if err := w.putOld(key, base[key]); err != nil {
			return err
		}
	}
	l := proto.CloneOf(s.ledger)
	if len(s.chapters) == 0 {
		if err := w.commitOld(l, nil); err != nil {
			return err
		}
	}
	next := 0
	for i, c := range s.chapters {
		l.Newest = s.ledger.Oldest + uint64(i)
		for ; next < len(s.undo) && s.undo[next].revision == l.Newest; next++ {
			if err := w.putOld(s.undo[next].key, became[next]); err != nil {
				return err
			}
		}
		if err := w.commitOld(l, c); err != nil {
			return err
		}
	}
	return w.finish()
}

// putOld makes a value what there is under a key.
func (w *writer) putOld(key string, b []byte) error {
	// Nothing is a removal, and what does not decode a record that this version can not use.
	r := &statepb.Record{}
	if len(b) == 0 || proto.Unmarshal(b, r) != nil || r.Resource == nil || len(r.Digest) < 8 {
		_, err := w.put(key, b, nil, 0)
		return err
	}
	digest, data := little.Uint64(r.Digest), r.Resource.Any
	r.Digest, r.Resource.Any = nil, nil
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err == nil {
		_, err = w.put(key, b, data, digest)
	}
	return err
}

// commitOld ends a revision, or, without a chapter, what there is.
func (w *writer) commitOld(l *statepb.Ledger, c *statepb.Chapter) error {
	l.Bytes, l.HistoryBytes = 0, 0
	if c != nil {
		c = proto.CloneOf(c)
		c.Undone, c.UndoDigest, c.UndoBytes = 0, 0, uint64(w.replaced)
	}
	_, err := w.commit(l, c)
	w.take()
	return err
}
