package local

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// maxNamed bounds the keys that a revision names.
const maxNamed = 10

// writer appends to a log, in large writes. The upstream changes when the batch is taken.
type writer struct {
	*upstream
	to    io.WriterAt
	at    int64 // of the next write
	buf   []byte
	edits []edit
	count int // of resources after the edits
	total uint64
	// replaced is the size of what the edits have made garbage of, or history.
	replaced int64
	// next and revised are what the upstream has with the commit.
	next    *statepb.Ledger
	revised []row
}

// newWriter begins a log.
func newWriter(u *upstream, to io.WriterAt) *writer { return &writer{upstream: u, to: to, at: headLen} }

// where is where the next frame begins.
func (w *writer) where() int64 { return w.at + int64(len(w.buf)) }

func (w *writer) flush() error {
	if _, err := w.to.WriteAt(w.buf, w.at); err != nil {
		return err
	}
	w.at, w.buf = w.where(), w.buf[:0]
	return nil
}

// add appends a frame.
func (w *writer) add(key string, record, data []byte, digest uint64) (place, error) {
	if len(w.buf) > bufferLen {
		if err := w.flush(); err != nil {
			return place{}, err
		}
	}
	size := frameHeadLen + len(key) + len(record) + len(data)
	if size > maxFrame {
		return place{}, fmt.Errorf("an entry of %d bytes is too large", size)
	}
	p := place{at: w.where(), size: size, digest: digest}
	w.buf, p.sum = appendFrame(w.buf, []byte(key), record, data, digest)
	return p, nil
}

func (w *writer) addCommit(c *statepb.Commit) (place, error) {
	b, err := proto.Marshal(c)
	if err != nil {
		return place{}, err
	}
	return w.add("", b, nil, 0)
}

// copy appends a frame of another log, and returns its size.
func (w *writer) copy(from *reader, at int64) (int, error) {
	f, err := from.frame(at)
	if err == nil {
		_, err = w.add(string(f.key), f.record, f.data, f.digest)
	}
	return f.size, err
}

// put appends a change of a key, if it is one: with neither record nor data, the key is gone. It
// returns what there was before, and tells how the content has changed: with +, -, ~ or nothing.
func (w *writer) put(key string, record, data []byte, digest uint64) (mark string, err error) {
	old, had := w.places[key]
	gone := len(record)+len(data) == 0
	if gone && !had {
		return "", nil
	}
	p, err := w.add(key, record, data, digest)
	if err != nil {
		return "", err
	}
	if had && p.sum == old.sum {
		w.buf = w.buf[:p.at-w.at]
		return "", nil
	}
	w.edits = append(w.edits, edit{key, p, gone})
	w.total -= old.sum
	w.replaced += int64(old.size)
	if gone {
		w.replaced += int64(p.size)
		w.count--
		return "-", nil
	}
	w.total += p.sum
	switch {
	case !had:
		w.count++
		return "+", nil
	case old.digest != digest:
		return "~", nil
	}
	return "", nil
}

// commit appends the end of a batch.
func (w *writer) commit(l *statepb.Ledger, chapter *statepb.Chapter) (place, error) {
	l.Count, l.Digest = uint64(len(w.places)+w.count), w.sum+w.total
	w.next = l
	return w.addCommit(&statepb.Commit{Ledger: l, Chapter: chapter})
}

// take makes the batch part of the upstream.
func (w *writer) take() {
	w.apply(w.edits)
	w.ledger, w.rows, w.end, w.unusable = w.next, w.revised, w.where(), nil
	w.edits, w.count, w.total, w.replaced = w.edits[:0], 0, 0, 0
}

// finish completes a log that was begun: all of it counts as durable.
func (w *writer) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	_, err := w.to.WriteAt(encodeHead(w.at), 0)
	return err
}

// write makes a batch durable, and removes what is unusable. It returns nil when there is nothing
// to write.
func (u *upstream) write(b *state.Batch, unusable []string) (*writer, error) {
	w := newWriter(u, u.file)
	w.at = u.end
	changed, err := w.batch(b, unusable)
	if err == nil && changed {
		if err = w.flush(); err == nil {
			err = u.sync()
		}
	}
	if err != nil {
		if u.file.Truncate(u.end) != nil {
			u.suspect = true
		}
		return nil, err
	}
	if !changed {
		return nil, nil
	}
	return w, nil
}

// batch appends a batch, and removes the keys that are gone, or, of a whole one, all that are not
// in it. It reports whether that changes anything.
func (w *writer) batch(b *state.Batch, gone []string) (bool, error) {
	revision := state.Revision{Time: b.Now, By: b.Meta.By}
	counts := map[string]*int{"+": &revision.Added, "-": &revision.Removed, "~": &revision.Changed}
	put := func(key, name string, record, data []byte, digest uint64) error {
		mark, err := w.put(key, record, data, digest)
		if n := counts[mark]; n != nil {
			if *n++; len(revision.Keys) < maxNamed {
				revision.Keys = append(revision.Keys, mark+name)
			}
		}
		return err
	}
	seen := make(map[string]struct{}, len(b.Changes))
	for _, c := range b.Changes {
		key := string(encodeKey(c.Key))
		seen[key] = struct{}{}
		var record, data []byte
		var digest uint64
		if c.Record != nil {
			var err error
			if record, err = encodeRecord(c.Key, c.Record); err != nil {
				return false, err
			}
			sum := c.Record.Resource.Digest()
			data, digest = c.Record.Resource.Any(), little.Uint64(sum[:])
		}
		if err := put(key, c.Key.String(), record, data, digest); err != nil {
			return false, err
		}
	}
	if b.Meta.Whole {
		gone = slices.Sorted(maps.Keys(w.places))
	}
	for _, key := range gone {
		if _, stays := seen[key]; !stays {
			id, _ := parseKey([]byte(key)) // it is only shown
			if err := put(key, id.String(), nil, nil, 0); err != nil {
				return false, err
			}
		}
	}
	return w.seal(b, &revision)
}

// seal appends the commit of a batch, which makes a revision when content has changed.
func (w *writer) seal(b *state.Batch, revision *state.Revision) (bool, error) {
	l := encodeMeta(b.Meta)
	l.Newest, w.revised = w.ledger.Newest, slices.Clone(w.rows)
	var chapter *statepb.Chapter
	if len(revision.Keys) > 0 {
		l.Newest++
		if b.History.Revisions > 0 {
			revision.Resources = len(w.places) + w.count
			chapter = encodeRevision(revision, w.replaced)
			w.revised = append(w.revised, row{b.Now, 0, int64(proto.Size(chapter)), w.replaced})
		}
	}
	w.revised = prune(w.revised, b)
	if n := len(w.revised); n > 0 {
		l.Oldest = l.Newest - uint64(n) + 1
	}
	if len(w.edits) == 0 && l.Oldest == w.ledger.Oldest && sameMeta(b.Meta, decodeMeta(w.ledger)) {
		return false, nil
	}
	p, err := w.commit(l, chapter)
	if chapter != nil {
		last := &w.revised[len(w.revised)-1]
		last.at, last.size = p.at, int64(p.size)
	}
	return true, err
}

// prune returns the revisions that stay: the oldest go, as far as the bounds demand.
func prune(rows []row, b *state.Batch) []row {
	h := b.History
	if h.Revisions <= 0 {
		return nil
	}
	size := historySize(rows)
	for len(rows) > 1 && (len(rows) > h.Revisions || h.MaxBytes > 0 && size > int64(h.MaxBytes) ||
		h.MaxAge > 0 && !b.Now.Before(rows[1].time.Add(h.MaxAge))) {
		size -= rows[0].size + rows[1].replaced
		rows = rows[1:]
	}
	return rows
}
