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

const (
	// maxNamed bounds the keys that a revision names.
	maxNamed = 10
	// bufferLen is the number of bytes after which a writer writes.
	bufferLen = 1 << 20
)

// writer appends frames to a log. The upstream in it changes with take.
type writer struct {
	*upstream
	to  io.WriterAt
	at  int64 // of the next write
	buf []byte

	edits []edit // of the batch
	count int    // of resources that the edits add
	total uint64 // of checksums that the edits add
	// next and revised are the ledger and the rows after the batch.
	next    *statepb.Ledger
	revised []row
}

// newWriter returns a writer that appends to a log.
func newWriter(u *upstream, to io.WriterAt) *writer { return &writer{upstream: u, to: to, at: u.end} }

// offset returns the offset of the next frame.
func (w *writer) offset() int64 { return w.at + int64(len(w.buf)) }

func (w *writer) flush() error {
	if _, err := w.to.WriteAt(w.buf, w.at); err != nil {
		return err
	}
	w.at, w.buf = w.offset(), w.buf[:0]
	return nil
}

// add appends a frame, and sets its checksum and size.
func (w *writer) add(f *frame) error {
	if len(w.buf) > bufferLen {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if size := frameHeadLen + len(f.key) + len(f.record) + len(f.data); size > maxFrame {
		return fmt.Errorf("an entry of %d bytes is too large", size)
	}
	w.buf = appendFrame(w.buf, f)
	return nil
}

// copy appends the frames at some offsets of another log.
func (w *writer) copy(from *reader, offsets []int64) error {
	for _, at := range offsets {
		f, err := from.frame(at)
		if err == nil {
			err = w.add(&f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// put appends the change of a key, and counts it in a revision, unless only endpoints differ. It appends nothing
// when the log has the same frame already.
func (w *writer) put(f frame, endpoints bool, r *state.Revision) error {
	old, had := w.places[string(f.key)]
	if f.removal() && !had {
		return nil
	}
	at := w.offset()
	if err := w.add(&f); err != nil {
		return err
	}
	if had && f.sum == old.sum {
		w.buf = w.buf[:at-w.at]
		return nil
	}
	to := f.place(at)
	w.edits = append(w.edits, edit{string(f.key), to})
	w.total += to.sum - old.sum
	mark := ""
	switch {
	case f.removal():
		w.count--
		r.Removed++
		mark = "-"
	case !had:
		w.count++
		r.Added++
		mark = "+"
	case old.digest != f.digest && !endpoints:
		r.Changed++
		mark = "~"
	}
	if mark != "" && len(r.Keys) < maxNamed {
		key, _ := parseKey(f.key) // the name is only shown
		r.Keys = append(r.Keys, mark+key.String())
	}
	return nil
}

// commit appends the end of a batch. It returns the size of the frame.
func (w *writer) commit(l *statepb.Ledger, r *statepb.Revision) (int, error) {
	l.Count, l.Digest = uint64(len(w.places)+w.count), w.sum+w.total
	w.next = l
	b, err := proto.Marshal(&statepb.Commit{Ledger: l, Revision: r})
	if err != nil {
		return 0, err
	}
	f := frame{record: b}
	err = w.add(&f)
	return f.size, err
}

// take makes the batch part of the upstream.
func (w *writer) take() {
	w.apply(w.edits)
	w.ledger, w.rows, w.end = w.next, w.revised, w.offset()
	w.edits, w.count, w.total = w.edits[:0], 0, 0
}

// finish writes the rest of a new log, and its head.
func (w *writer) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	_, err := w.to.WriteAt(encodeHead(w.at), 0)
	return err
}

// write makes a batch durable. It returns nil when the batch changes nothing.
func (u *upstream) write(b *state.Batch) (*writer, error) {
	w := newWriter(u, u.file)
	changed, err := w.batch(b)
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

// batch appends a batch and its commit. It reports whether that changes anything.
func (w *writer) batch(b *state.Batch) (bool, error) {
	revision := &state.Revision{Time: b.Now, By: b.Meta.By}
	seen := make(map[string]bool, len(b.Changes))
	for _, c := range b.Changes {
		f := frame{key: encodeKey(c.Key)}
		seen[string(f.key)] = true
		if c.Record != nil {
			var err error
			if f.record, err = encodeRecord(c.Key, c.Record); err != nil {
				return false, err
			}
			sum := c.Record.Resource.Digest()
			f.data, f.digest = c.Record.Resource.Any(), little.Uint64(sum[:])
		}
		if err := w.put(f, c.Endpoints, revision); err != nil {
			return false, err
		}
	}
	if b.Meta.Whole {
		for _, key := range slices.Sorted(maps.Keys(w.places)) {
			if seen[key] {
				continue
			}
			if err := w.put(frame{key: []byte(key)}, false, revision); err != nil {
				return false, err
			}
		}
	}
	return w.seal(b, revision)
}

// seal appends the commit of a batch, with a revision when content has changed. It reports whether
// the batch changes anything.
func (w *writer) seal(b *state.Batch, revision *state.Revision) (bool, error) {
	l := encodeMeta(b.Meta)
	l.Newest, w.revised = w.ledger.Newest, slices.Clone(w.rows)
	var r *statepb.Revision
	if len(revision.Keys) > 0 {
		l.Newest++
		if b.History.Revisions > 0 {
			revision.Resources = len(w.places) + w.count
			r = encodeRevision(revision)
			w.revised = append(w.revised, row{batch: w.offset() - w.end})
		}
	}
	w.revised = prune(w.revised, b)
	if n := len(w.revised); n > 0 {
		l.Oldest = l.Newest - uint64(n) + 1
	}
	if len(w.edits) == 0 && l.Oldest == w.ledger.Oldest && sameMeta(b.Meta, decodeMeta(w.ledger)) {
		return false, nil
	}
	size, err := w.commit(l, r)
	if r != nil {
		last := &w.revised[len(w.revised)-1]
		last.at, last.size = w.offset()-int64(size), int64(size)
	}
	return true, err
}

// prune removes the oldest revisions that exceed the bounds of the history. Its size is that of the changes since the
// oldest one.
func prune(rows []row, b *state.Batch) []row {
	h := b.History
	if h.Revisions <= 0 {
		return nil
	}
	size := int64(0)
	for _, r := range rows[min(1, len(rows)):] {
		size += r.batch
	}
	for len(rows) > 1 && (len(rows) > h.Revisions || h.MaxBytes > 0 && size > int64(h.MaxBytes)) {
		rows = rows[1:]
		size -= rows[0].batch
	}
	return rows
}
