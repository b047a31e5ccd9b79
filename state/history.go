package state

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"meshrelay/mirror"
)

// Errors of questions about the past, to be checked with errors.Is.
var (
	ErrUnknownSource   = errors.New("nothing is kept of that upstream")
	ErrUnknownRevision = errors.New("no such revision is kept")
	ErrNotInUse        = errors.New("the state can not be read now")
)

// view calls f with the bucket of a source, or with an empty ledger when there is nothing yet.
func (k *Keeper) view(source string, f func(b *bbolt.Bucket, l *ledger) error) error {
	err := k.read(func(tx *bbolt.Tx) error {
		return viewSource(tx, source, f)
	})
	if errors.Is(err, ErrUnknownSource) && k.follows(source) {
		err = f(nil, &ledger{}) // there is nothing yet
	}
	if err != nil {
		return fmt.Errorf("upstream %s: %w", source, err)
	}
	return nil
}

func (k *Keeper) follows(source string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.followed[source] != nil
}

// read calls f within a transaction.
func (k *Keeper) read(f func(tx *bbolt.Tx) error) error {
	db := k.db.Load()
	if db == nil {
		return ErrNotInUse
	}
	err := guard(func() error { return db.View(f) })
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		err = ErrNotInUse // since then
	}
	return err
}

func viewSource(tx *bbolt.Tx, source string, f func(b *bbolt.Bucket, l *ledger) error) error {
	sources := tx.Bucket([]byte(sourcesBucket))
	if sources == nil || source == "" {
		return ErrUnknownSource
	}
	b := sources.Bucket([]byte(source))
	if b == nil {
		return ErrUnknownSource
	}
	payload, _, err := unseal(ledgerSeal(source), b.Get([]byte(ledgerKey)))
	if err != nil {
		return corruptf("what it says of itself: %v", err)
	}
	l, err := parseLedger(payload)
	if err != nil {
		return corruptf("what it says of itself: %v", err)
	}
	return f(b, &l)
}

// History returns the revisions of a source, the newest first.
func (k *Keeper) History(source string) (out []Revision, err error) {
	err = k.view(source, func(b *bbolt.Bucket, l *ledger) error {
		if l.oldest == 0 {
			return nil
		}
		history := b.Bucket([]byte(historyBucket))
		for id := l.newest; id >= l.oldest; id-- {
			c, _, err := getChapter(history, id)
			if err != nil {
				return err
			}
			out = append(out, c.Revision)
		}
		return nil
	})
	return out, err
}

// At returns all that a source had as of a revision. It fails with ErrUnknownSource, or with
// ErrUnknownRevision when there is no such revision, or none any more.
func (k *Keeper) At(source string, revision uint64) (out []Record, err error) {
	err = k.view(source, func(b *bbolt.Bucket, l *ledger) (err error) {
		switch {
		case l.oldest == 0:
			return fmt.Errorf("%w: %d, and there are none", ErrUnknownRevision, revision)
		case revision < l.oldest || revision > l.newest:
			return fmt.Errorf("%w: %d, and there are %d to %d", ErrUnknownRevision, revision, l.oldest, l.newest)
		}
		out, err = recordsAt(b, revision)
		return err
	})
	return out, err
}

// recordsAt returns what was there as of a revision: what is there now, but for what has
// changed since, which was as the first change after the revision has it.
func recordsAt(b *bbolt.Bucket, revision uint64) (out []Record, err error) {
	before := map[string][]byte{} // into the file
	if undo := b.Bucket([]byte(undoBucket)); undo != nil {
		c := undo.Cursor()
		for key, value := c.Seek(revisionKey(revision + 1)); key != nil; key, value = c.Next() {
			if len(key) <= 8 {
				return nil, corruptf("what stands among the undo data is none")
			}
			if _, known := before[string(key[8:])]; !known {
				before[string(key[8:])] = value
			}
		}
	}
	add := func(key, value []byte) error {
		payload, _, err := unseal(key, value)
		if err != nil {
			return corruptf("resource %q: %v", key, err)
		}
		id, err := parseKey(key)
		if err != nil {
			return corruptf("resource %q: %v", key, err)
		}
		r, err := parseRecord(id, payload)
		if err != nil {
			return fmt.Errorf("%s can not be used by this version of the relay: %w", id, err)
		}
		out = append(out, r)
		return nil
	}
	if resources := b.Bucket([]byte(resourcesBucket)); resources != nil {
		c := resources.Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			if _, differs := before[string(key)]; differs {
				continue
			}
			if err := add(key, value); err != nil {
				return nil, err
			}
		}
	}
	for key, value := range before {
		if len(value) == 0 {
			continue // there was none
		}
		if err := add([]byte(key), value); err != nil {
			return nil, err
		}
	}
	sortRecords(out)
	return out, nil
}

// loadAgain reads what is kept of a source.
func (k *Keeper) loadAgain(source string) (s Saved, err error) {
	err = k.read(func(tx *bbolt.Tx) error {
		return viewSource(tx, source, func(b *bbolt.Bucket, l *ledger) error {
			s.Meta, s.Revision = l.meta, l.newest
			s.Records, err = recordsAt(b, l.newest)
			return err
		})
	})
	if errors.Is(err, ErrNotInUse) || errors.Is(err, ErrUnknownSource) {
		return Saved{}, nil
	}
	return s, err
}

// Backup writes a copy of the file, as of one instant, while it is in use. A writer that
// blocks holds up nobody, but has the file grow.
func (k *Keeper) Backup(w io.Writer) error {
	err := k.read(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(&interruptible{w, k.closing})
		return err
	})
	if err != nil {
		select {
		case <-k.closing: // whatever bbolt has made of that
			err = errClosed
		default:
		}
		return fmt.Errorf("state %s: %w", k.path, err)
	}
	return nil
}

// interruptible is a writer that ends when the Keeper does.
type interruptible struct {
	io.Writer
	closing <-chan struct{}
}

func (i *interruptible) Write(p []byte) (int, error) {
	select {
	case <-i.closing:
		return 0, errClosed
	default:
		return i.Writer.Write(p)
	}
}

// sortRecords puts records into the order in which they are to be sent.
func sortRecords(records []Record) {
	slices.SortFunc(records, func(a, b Record) int {
		x, y := a.Resource.Key(), b.Resource.Key()
		return cmp.Or(mirror.CompareKinds(x.Kind, y.Kind), cmp.Compare(a.Resource.FullName(), b.Resource.FullName()))
	})
}
