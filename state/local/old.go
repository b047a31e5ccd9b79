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
	from *statepb.Imported // what to note of the file
	// sources are those that are whole, by name, nil when the file is not taken over.
	sources map[string]*oldSource
	served  *bool         // nil in a file of builds that did not write it
	written *statepb.Mark // counts the sources that there should be
	damage  error
}

// oldSource is what relay.db holds of an upstream.
type oldSource struct {
	ledger    *statepb.Ledger
	resources map[string][]byte // by key
	chapters  []*statepb.Chapter
	undo      map[uint64]map[string][]byte // what a resource was, by revision and key
}

// openOld reads and checks relay.db. It returns nil when this file was read before.
// The error is that of reading: damage tells what is wrong with the content.
func openOld(path string, was *statepb.Imported) (*oldFile, error) {
	f, info, err := openOwn(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from := &statepb.Imported{Size: info.Size(), Mtime: info.ModTime().UnixNano()}
	if was != nil && was.Size == from.Size && was.Mtime == from.Mtime {
		return nil, nil
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	root, transaction, err := boltfile.Read(data)
	from.Transaction = transaction
	o := &oldFile{path: path, from: from, sources: map[string]*oldSource{}, written: &statepb.Mark{}}
	if o.note(err); err == nil {
		o.check(root)
	}
	return o, nil
}

func (o *oldFile) note(err error) {
	if err != nil && o.damage == nil {
		o.damage = corruptf("%v", err)
	}
}

func (o *oldFile) check(root *boltfile.Bucket) {
	meta, sources := root.Sub("meta"), root.Sub("sources")
	mark := func(name string) *statepb.Mark {
		m := &statepb.Mark{}
		if value, there := meta.Values[name]; there {
			o.note(unsealInto(m, name, value))
		}
		return m
	}
	o.note(cmp.Or(root.Err, meta.Err, sources.Err))
	if format := mark("format").Number; format != oldFormat {
		o.note(fmt.Errorf("it has format %d, and not %d", format, oldFormat))
		return
	}
	o.written = mark("upstreams")
	if _, there := meta.Values["served"]; there {
		served := mark("served").Number != 0
		o.served = &served
	}
	found := &statepb.Mark{}
	for _, name := range slices.Sorted(maps.Keys(sources.Buckets)) {
		found.Number++
		found.Digest += xxh3.HashString(name)
		if !state.IsName(name) {
			o.note(fmt.Errorf("%.100q is no name of an upstream", name))
			continue
		}
		s, err := readOldSource(sources.Buckets[name], name)
		if err != nil {
			o.note(fmt.Errorf("upstream %s: %w", name, err))
		}
		if s != nil {
			o.sources[name] = s
		}
	}
	if !proto.Equal(found, o.written) {
		o.note(fmt.Errorf("it has %d upstreams where %d were written, or others", found.Number, o.written.Number))
	}
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
	return slices.ContainsFunc(slices.Collect(maps.Values(o.sources)), func(s *oldSource) bool { return s.ledger.Synced })
}

// readOldSource reads an upstream. It returns nil when the resources are not whole; when only
// the history is not, it returns both.
func readOldSource(b *boltfile.Bucket, name string) (*oldSource, error) {
	s := &oldSource{ledger: &statepb.Ledger{}, resources: map[string][]byte{}}
	resources := b.Sub("resources")
	err := cmp.Or(b.Err, resources.Err)
	if err == nil {
		err = unsealInto(s.ledger, "meta\x00"+name, b.Values["meta"])
	}
	digest := uint64(0)
	for key, value := range resources.Values {
		payload, sum, bad := unseal(key, value)
		err = cmp.Or(err, bad)
		s.resources[key], digest = payload, digest+sum
	}
	switch n := uint64(len(s.resources)); {
	case err != nil:
		return nil, err
	case n != s.ledger.Count || digest != s.ledger.Digest:
		return nil, fmt.Errorf("it has %d resources where %d were written, or others", n, s.ledger.Count)
	}
	if err := s.readHistory(b.Sub("history"), b.Sub("undo")); err != nil {
		s.chapters, s.undo, s.ledger.Oldest = nil, nil, 0
		return s, fmt.Errorf("history: %w", err)
	}
	return s, nil
}

// readHistory reads the revisions, and compares them with the ledger, and with what was before
// each of them.
func (s *oldSource) readHistory(history, undo *boltfile.Bucket) error {
	if err := cmp.Or(history.Err, undo.Err); err != nil {
		return err
	}
	n, digests := revisions(s.ledger), map[uint64]uint64{}
	if n != uint64(len(history.Values)) {
		return fmt.Errorf("it has %d revisions, and %d were written", len(history.Values), n)
	}
	s.undo = map[uint64]map[string][]byte{}
	for key, value := range undo.Values {
		if len(key) <= 8 {
			return errors.New("an entry of the undo data has no revision")
		}
		id, of := binary.BigEndian.Uint64([]byte(key)), key[8:]
		var was []byte
		var sum uint64
		if len(value) > 0 {
			var err error
			if was, sum, err = unseal(of, value); err != nil {
				return fmt.Errorf("revision %d: %w", id, err)
			}
		}
		if s.undo[id] == nil {
			s.undo[id] = map[string][]byte{}
		}
		s.undo[id][of] = was
		digests[id] += xxh3.HashStringSeed(key, sum)
	}
	for id := s.ledger.Oldest; id < s.ledger.Oldest+n; id++ {
		c := &statepb.Chapter{}
		key := string(binary.BigEndian.AppendUint64(nil, id))
		if err := unsealInto(c, key, history.Values[key]); err != nil {
			return fmt.Errorf("revision %d: %w", id, err)
		}
		if digests[id] != c.UndoDigest {
			return fmt.Errorf("revision %d: its undo data is incomplete", id)
		}
		delete(digests, id)
		s.chapters = append(s.chapters, c)
	}
	if len(digests) > 0 {
		return errors.New("it has undo data of unknown revisions")
	}
	return nil
}

// unseal checks a value and returns what is behind its checksum.
func unseal(key string, value []byte) (payload []byte, sum uint64, err error) {
	if len(value) < 8 {
		return nil, 0, fmt.Errorf("%q: it is missing or too short", key)
	}
	sum = little.Uint64(value)
	if sum != xxh3.HashSeed(value[8:], xxh3.HashString(key)) {
		return nil, sum, fmt.Errorf("%q: its checksum does not match", key)
	}
	return value[8:], sum, nil
}

func unsealInto(m proto.Message, key string, value []byte) error {
	payload, _, err := unseal(key, value)
	if err != nil {
		return err
	}
	return proto.Unmarshal(payload, m)
}

// log returns an upstream as a log. The source can not be used any more.
func (s *oldSource) log(name string) (m memory, err error) {
	// A revision made a resource what it was before the next revision that changed it. The rest
	// is the content as of the oldest revision.
	base, became, chapters := s.resources, s.undo, s.chapters
	for i := range chapters {
		of := became[s.ledger.Newest-uint64(i)]
		for key, was := range of {
			of[key], base[key] = base[key], was
		}
	}
	first := s.ledger.Oldest
	if len(chapters) == 0 { // one commit without a revision
		first, chapters = s.ledger.Newest, []*statepb.Chapter{nil}
	}
	maps.Copy(base, became[first])
	w := newWriter(newUpstream(name, nil), &m)
	l := proto.CloneOf(s.ledger)
	l.Bytes, l.HistoryBytes = 0, 0
	for i, c := range chapters {
		l.Newest = first + uint64(i)
		changes := became[l.Newest]
		if i == 0 {
			changes = base
		}
		for _, key := range slices.Sorted(maps.Keys(changes)) {
			if err := w.putOld(key, changes[key]); err != nil {
				return nil, err
			}
		}
		if c != nil {
			c.Undone, c.UndoDigest, c.UndoBytes = 0, 0, uint64(w.replaced)
		}
		if _, err := w.commit(l, c); err != nil {
			return nil, err
		}
		w.take()
	}
	return m, w.finish()
}

// putOld makes a value what there is under a key. Nothing is a removal, and what does not decode
// a record that this version can not use.
func (w *writer) putOld(key string, b []byte) (err error) {
	var data []byte
	var digest uint64
	r := &statepb.Record{}
	if len(b) > 0 && proto.Unmarshal(b, r) == nil && r.Resource != nil && len(r.Digest) >= 8 {
		digest, data = little.Uint64(r.Digest), r.Resource.Any
		r.Digest, r.Resource.Any = nil, nil
		if b, err = (proto.MarshalOptions{Deterministic: true}).Marshal(r); err != nil {
			return err
		}
	}
	_, err = w.put(key, b, data, digest)
	return err
}
