package state

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"meshrelay/mirror"
)

const (
	// maxNamed bounds the keys that a revision names.
	maxNamed = 10
	// fullPages is how full pages are made that nothing is put into later.
	fullPages = 0.95
)

// bounds are those of a history.
type bounds struct {
	revisions int
	age       time.Duration // 0: any
	bytes     uint64        // 0: any
}

// exceeded reports whether there is something to prune. expires is when the oldest revision
// is too old.
func (b bounds) exceeded(l *ledger, expires, now time.Time) bool {
	n := l.revisions()
	return n > max(b.revisions, 1) || n > 0 && b.revisions == 0 ||
		n > 1 && (b.bytes > 0 && l.historyBytes > b.bytes || b.age > 0 && !expires.IsZero() && !now.Before(expires))
}

// batch is what a transaction makes of what is kept of a source.
type batch struct {
	name    string
	meta    Meta
	changes []Change
	// orphans are keys to be deleted unless there is a change of them.
	orphans [][]byte
	// only, unless it is nil, are the keys besides which none stays.
	only map[string]struct{}
	// after is the revision after which those of a source begin that the file does not have.
	after uint64
}

// writer writes what has changed of one source, within a transaction.
type writer struct {
	bounds
	now  time.Time
	name string

	bucket, resources, history, undo *bbolt.Bucket
	ledger                           ledger
	chapter                          chapter
	revised                          bool // there is a new revision
}

// write applies a batch. It returns the ledger as it is after it, and when the oldest
// revision is too old. What is as it was is not written.
func (w *writer) write(tx *bbolt.Tx, b *batch) (ledger, time.Time, error) {
	w.ledger.newest = b.after
	if err := w.open(tx, b.name); err != nil {
		return ledger{}, time.Time{}, err
	}
	type change struct {
		key    []byte
		record *Record
		id     mirror.Key
	}
	changes := make([]change, 0, len(b.changes)+len(b.orphans))
	for _, c := range b.changes {
		if key := appendKey(nil, c.Key); len(key) <= bbolt.MaxKeySize-8 {
			changes = append(changes, change{key, c.Record, c.Key})
		}
	}
	for _, key := range append(slices.Clone(b.orphans), w.others(b.only)...) {
		id, _ := parseKey(key) // it is only shown
		changes = append(changes, change{key, nil, id})
	}
	// In order, because that is how pages are filled best. A change comes before an orphan of
	// the same key.
	slices.SortStableFunc(changes, func(a, b change) int { return bytes.Compare(a.key, b.key) })
	changes = slices.CompactFunc(changes, func(a, b change) bool { return bytes.Equal(a.key, b.key) })
	for _, c := range changes {
		if err := w.put(c.key, c.id, c.record); err != nil {
			return ledger{}, time.Time{}, err
		}
	}
	w.ledger.meta, w.chapter.By = b.meta, b.meta.By
	if err := w.close(); err != nil {
		return ledger{}, time.Time{}, err
	}
	expires, err := w.expiry()
	return w.ledger, expires, err
}

// open finds what there is of a source, or begins it.
func (w *writer) open(tx *bbolt.Tx, name string) (err error) {
	w.name = name
	sources, err := tx.CreateBucketIfNotExists([]byte(sourcesBucket))
	if err == nil {
		w.bucket = sources.Bucket([]byte(name))
	}
	if err == nil && w.bucket == nil {
		w.bucket, err = sources.CreateBucket([]byte(name))
		err = errors.Join(err, enroll(tx, func(r *roster) { r.add([]byte(name)) }))
	}
	if err == nil {
		w.resources, err = w.bucket.CreateBucketIfNotExists([]byte(resourcesBucket))
	}
	if err == nil {
		w.history, err = w.bucket.CreateBucketIfNotExists([]byte(historyBucket))
	}
	if err == nil {
		w.undo, err = w.bucket.CreateBucketIfNotExists([]byte(undoBucket))
	}
	if err != nil {
		return err
	}
	// From the file, not from memory: after an error it may not be known which transaction
	// was the last.
	if v := w.bucket.Get([]byte(ledgerKey)); v != nil {
		payload, _, err := unseal(ledgerSeal(name), v)
		if err == nil {
			w.ledger, err = parseLedger(payload)
		}
		if err != nil {
			return corruptf("upstream %s: what it says of itself: %v", name, err)
		}
	}
	if w.ledger.count == 0 {
		w.resources.FillPercent = fullPages
	}
	w.history.FillPercent, w.undo.FillPercent = fullPages, fullPages
	return nil
}

// enroll changes what a file says of which sources it has.
func enroll(tx *bbolt.Tx, change func(r *roster)) error {
	top, err := tx.CreateBucketIfNotExists([]byte(topBucket))
	if err != nil {
		return err
	}
	var r roster
	if v := top.Get([]byte(rosterKey)); v != nil {
		payload, _, err := unseal([]byte(rosterKey), v)
		if err == nil {
			r, err = parseRoster(payload)
		}
		if err != nil {
			return corruptf("what it says of its upstreams: %v", err)
		}
	}
	change(&r)
	value := appendRoster(make([]byte, sumLen), r)
	seal([]byte(rosterKey), value)
	return top.Put([]byte(rosterKey), value)
}

// others returns the keys that are not among some.
func (w *writer) others(some map[string]struct{}) (out [][]byte) {
	if some == nil {
		return nil
	}
	for c, key := cursorFrom(w.resources, nil); key != nil; key, _ = c.Next() {
		if _, stays := some[string(key)]; !stays {
			out = append(out, bytes.Clone(key))
		}
	}
	return out
}

func cursorFrom(b *bbolt.Bucket, prefix []byte) (*bbolt.Cursor, []byte) {
	c := b.Cursor()
	var key []byte
	if prefix == nil {
		key, _ = c.First()
	} else {
		key, _ = c.Seek(prefix)
	}
	return c, key
}

// put makes a record what is kept under a key, or removes what is, when it is nil.
func (w *writer) put(key []byte, id mirror.Key, r *Record) error {
	old := w.resources.Get(key)
	if r == nil && old == nil {
		return nil
	}
	var value []byte
	mark := "~"
	if r != nil {
		value = make([]byte, sumLen, sumLen+recordSize(r))
		value = appendRecord(value, id, r)
		seal(key, value)
		if bytes.Equal(old, value) {
			return nil
		}
	}
	// The content is what makes a revision, not what a source's protocol says of it.
	switch {
	case old == nil:
		w.chapter.Added++
		mark = "+"
	case r == nil:
		w.chapter.Removed++
		mark = "-"
	case len(old) > sumLen && digestOf(old[sumLen:]) == r.Resource.Digest():
		mark = ""
	default:
		w.chapter.Changed++
	}
	if mark != "" {
		w.revised = true
		if len(w.chapter.Keys) < maxNamed {
			w.chapter.Keys = append(w.chapter.Keys, mark+id.String())
		}
		if err := w.remember(key, old); err != nil {
			return err
		}
	}
	if old != nil {
		w.ledger.count--
		w.ledger.digest -= sumOf(old)
		w.ledger.bytes -= uint64(len(key) + len(old))
	}
	if r == nil {
		return w.resources.Delete(key)
	}
	w.ledger.count++
	w.ledger.digest += sumOf(value)
	w.ledger.bytes += uint64(len(key) + len(value))
	return w.resources.Put(key, value)
}

// remember writes what leads back to how a resource was, if there is a revision to go back
// to.
func (w *writer) remember(key, old []byte) error {
	if w.ledger.oldest == 0 || w.revisions < 2 {
		return nil
	}
	undoKey := append(revisionKey(w.ledger.newest+1), key...)
	w.chapter.undone++
	w.chapter.undoBytes += uint64(len(undoKey) + len(old))
	w.chapter.undoDigest += undoSum(undoKey, old)
	// A copy: it points into the file, of which the map may change before the end.
	return w.undo.Put(undoKey, bytes.Clone(old))
}

// recordSize returns about how long a record is.
func recordSize(r *Record) int {
	n := len(r.Resource.Any()) + len(r.TypeURL) + len(r.Version) + 160
	if r.Original != nil {
		n += len(r.Original.Any()) + 64
	}
	return n
}

// close writes the revision, if there is one, and the ledger, and prunes.
func (w *writer) close() error {
	l := &w.ledger
	if w.revised {
		l.newest++
		if w.revisions > 0 {
			w.chapter.ID, w.chapter.Time, w.chapter.Resources = l.newest, w.now, int(l.count)
			if err := w.putChapter(&w.chapter, true); err != nil {
				return err
			}
			if l.oldest == 0 {
				l.oldest = l.newest
			}
		}
	}
	if err := w.prune(); err != nil {
		return err
	}
	value := appendLedger(make([]byte, sumLen, 256), l)
	seal(ledgerSeal(w.name), value)
	if old := w.bucket.Get([]byte(ledgerKey)); bytes.Equal(old, value) {
		return nil
	}
	return w.bucket.Put([]byte(ledgerKey), value)
}

// putChapter writes a revision, and accounts for it.
func (w *writer) putChapter(c *chapter, isNew bool) error {
	key := revisionKey(c.ID)
	value := appendChapter(make([]byte, sumLen, 256), c)
	seal(key, value)
	if !isNew {
		w.ledger.historyBytes -= uint64(len(key) + len(w.history.Get(key)))
	} else {
		w.ledger.historyBytes += c.undoBytes
	}
	w.ledger.historyBytes += uint64(len(key) + len(value))
	return w.history.Put(key, value)
}

func (w *writer) getChapter(id uint64) (chapter, int, error) { return getChapter(w.history, id) }

func getChapter(history *bbolt.Bucket, id uint64) (chapter, int, error) {
	key := revisionKey(id)
	value := history.Get(key)
	payload, _, err := unseal(key, value)
	var c chapter
	if err == nil {
		c, err = parseChapter(id, payload)
	}
	if err != nil {
		return c, 0, corruptf("revision %d: %v", id, err)
	}
	return c, len(key) + len(value), nil
}

// prune removes the oldest revisions, as far as the bounds demand. The newest stays, which is
// what is in force, unless there is to be no history at all.
func (w *writer) prune() error {
	l := &w.ledger
	for l.oldest > 0 {
		expires, err := w.expiry()
		if err != nil {
			return err
		}
		if !w.exceeded(l, expires, w.now) {
			return nil
		}
		_, size, err := w.getChapter(l.oldest)
		if err != nil {
			return err
		}
		if err := w.history.Delete(revisionKey(l.oldest)); err != nil {
			return err
		}
		l.historyBytes -= uint64(size)
		if l.oldest == l.newest {
			l.oldest = 0
			return nil
		}
		l.oldest++
		if err := w.forgetBefore(l.oldest); err != nil {
			return err
		}
	}
	return nil
}

// forgetBefore removes what leads back from a revision.
func (w *writer) forgetBefore(id uint64) error {
	c, _, err := w.getChapter(id)
	if err != nil || c.undone == 0 {
		return err
	}
	prefix := revisionKey(id)
	keys := make([][]byte, 0, c.undone)
	for cursor, key := cursorFrom(w.undo, prefix); bytes.HasPrefix(key, prefix); key, _ = cursor.Next() {
		keys = append(keys, bytes.Clone(key))
	}
	for _, key := range keys {
		if err := w.undo.Delete(key); err != nil {
			return err
		}
	}
	w.ledger.historyBytes -= c.undoBytes
	c.undone, c.undoBytes, c.undoDigest = 0, 0, 0
	return w.putChapter(&c, false)
}

// expiry returns when the oldest revision is too old, zero when it never is: the age counts
// from when the next one took its place.
func (w *writer) expiry() (time.Time, error) {
	if w.age <= 0 || w.ledger.revisions() < 2 {
		return time.Time{}, nil
	}
	c, _, err := w.getChapter(w.ledger.oldest + 1)
	return c.Time.Add(w.age), err
}

// newestFirst returns the revisions of chapters, which begin with the oldest.
func newestFirst(chapters []chapter) []Revision {
	out := make([]Revision, 0, len(chapters))
	for i := range chapters {
		out = append(out, chapters[len(chapters)-1-i].Revision)
	}
	return out
}

// sortedNames returns the keys of a map in order.
func sortedNames[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}
