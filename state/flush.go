package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
)

// flush opens or checks the store, and writes all changes. The caller holds busy.
func (k *Keeper) flush() error {
	if mirror.IsClosed(k.closing) {
		return errClosed
	}
	err := k.open()
	if err == nil {
		err = k.write()
	}
	k.note(err)
	if err != nil {
		return k.failure(err)
	}
	return nil
}

// write forgets sources, and writes the changes of each followed source and of the journal.
func (k *Keeper) write() error {
	k.mu.Lock()
	all := slices.SortedFunc(maps.Values(k.followed), func(a, b *follower) int { return strings.Compare(a.name, b.name) })
	forget := slices.Sorted(maps.Keys(k.forget))
	markServed := k.served && !k.servedKept
	journal := k.journal
	k.mu.Unlock()
	for _, name := range forget {
		if err := k.store.Forget(name); err != nil {
			return err
		}
		k.mu.Lock()
		delete(k.forget, name)
		k.mu.Unlock()
	}
	if markServed {
		if err := k.store.SetServed(); err != nil {
			return err
		}
		k.mu.Lock()
		k.servedKept = true
		k.mu.Unlock()
	}
	for _, f := range all {
		if err := k.writeOne(f); err != nil {
			return err
		}
	}
	if journal != nil {
		k.noteJournal(k.writeJournal(journal))
	}
	return nil
}

// maxAppends bounds the parts of the journal that one flush writes.
const maxAppends = 200

// writeJournal writes the new lines of the journal.
func (k *Keeper) writeJournal(j Journal) (err error) {
	for range maxAppends {
		lines := j.Take() // without mu: the journal may call the Keeper
		if len(lines) > 0 {
			err = k.store.AppendJournal(lines)
		}
		if j.Done(err == nil); len(lines) == 0 || err != nil {
			break
		}
	}
	return err
}

// noteJournal notes the result of a write of the journal, and logs a change of it. An error of the journal
// fails no flush.
func (k *Keeper) noteJournal(err error) {
	is := ""
	if err != nil {
		is = err.Error()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case is == k.journalError:
	case err != nil:
		k.log.Error("journal of events not written", "err", err)
	default:
		k.log.Info("journal of events written again")
	}
	k.journalError = is
}

// writeOne writes the changes of a source. After an error it gives them back.
func (k *Keeper) writeOne(f *follower) error {
	changes, meta := k.take(f)
	k.mu.Lock()
	forgotten := k.forget[f.name]
	k.mu.Unlock()
	if forgotten {
		return nil // Unfollow was called since the flush began
	}
	has, err := k.store.Apply(f.name, Batch{Meta: meta, Changes: changes, Now: time.Now(), History: k.present().History})
	if err != nil {
		if len(changes) > 0 || meta.Whole {
			f.source.GiveBack(changes)
		}
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if meta.Whole {
		f.behind = false
	}
	if !k.forget[f.name] {
		k.kept[f.name] = has
	}
	return nil
}

// take returns the changes of a source. Resources that only the store has stay in the store until the source
// has synced. Then take returns everything that the source has.
func (k *Keeper) take(f *follower) ([]Change, Meta) {
	changes, meta := f.source.TakeChanges() // without mu: the source may call the Keeper
	if !f.behind || meta.Whole {
		return changes, meta
	}
	if !meta.Synced {
		k.mu.Lock()
		defer k.mu.Unlock()
		return changes, meta.over(k.kept[f.name].Meta)
	}
	by := meta.By
	f.source.MarkAll()
	changes, meta = f.source.TakeChanges()
	meta.Whole, meta.By = true, by
	return changes, meta
}

// over returns the Meta to store for a source that has not synced: the stored one, with the newer values
// of the source.
func (m Meta) over(before Meta) Meta {
	m.Synced = before.Synced
	if m.LastContact.Before(before.LastContact) {
		m.LastContact, m.InContact = before.LastContact, before.InContact
	}
	if m.HeldSince.IsZero() {
		m.HeldSince = before.HeldSince
	}
	m.Frozen = cmp.Or(m.Frozen, before.Frozen)
	if m.ServeWithout.IsZero() {
		m.ServeWithout = before.ServeWithout
	}
	m.Identity = cmp.Or(m.Identity, before.Identity)
	m.RootNamespace = cmp.Or(m.RootNamespace, before.RootNamespace)
	if len(m.Server) == 0 {
		m.Server = before.Server
	}
	if m.Fingerprint != before.Fingerprint && !before.LastContact.IsZero() {
		m.Fingerprint = "" // of neither
	}
	return m
}

// note notes the result of a flush, and logs a change of it.
func (k *Keeper) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := &k.status
	if err == nil {
		if st.LastError != "" {
			k.log.Info("state written again", "failedSince", st.ErrorSince)
		}
		*st, k.failures, k.nextTry = Status{}, 0, time.Time{}
		return
	}
	now := time.Now()
	k.nextTry = now.Add(min(retryFirst<<min(k.failures, 10), retryMost))
	if k.failures++; st.ErrorSince.IsZero() {
		st.ErrorSince = now
	}
	if text := err.Error(); st.LastError != text {
		k.log.Error("state not written", "err", err)
		st.LastError = text
	}
}
