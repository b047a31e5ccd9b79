package state

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// errClosed says that a Keeper has ended.
var errClosed = errors.New("the state is closed")

// pending is what is to be written of one follower.
type pending struct {
	batch
	follower *follower
	// whole says that the follower's keys are known to be all.
	whole bool

	after   ledger
	expires time.Time
}

// flush writes what has changed. The caller is busy.
func (k *Keeper) flush() error {
	if k.closed {
		return errClosed
	}
	var err error
	if k.db.Load() == nil {
		err = k.attach()
	} else {
		err = k.rescue()
	}
	if err == nil {
		err = k.writeAll(k.collect())
	}
	if err != nil {
		k.failed(err)
		return fmt.Errorf("state %s: %w", k.path, err)
	}
	k.succeeded()
	return nil
}

// collect asks all sources for their changes. Those of which there is nothing to write are
// left out.
func (k *Keeper) collect() (out []*pending, forget []string) {
	k.mu.Lock()
	forget = sortedNames(k.forget)
	clear(k.forget) // what is to be forgotten from here on is more recent than what is collected
	all := append([]*follower(nil), k.leaving...)
	for _, name := range sortedNames(k.followed) {
		all = append(all, k.followed[name])
	}
	for _, h := range k.kept {
		h.saved = nil // who comes now reads it again
	}
	k.mu.Unlock()
	now := time.Now()
	for _, f := range all {
		changes, meta := f.source.TakeChanges() // without a lock, because it is not ours
		k.mu.Lock()
		f.taken = true
		if p := k.pendingOf(f, changes, meta, now); p != nil {
			out = append(out, p)
		} else {
			k.hasLeft(f)
		}
		k.mu.Unlock()
	}
	return out, forget
}

// pendingOf returns what is to be written of a follower, nil when nothing is. The caller holds
// mu.
func (k *Keeper) pendingOf(f *follower, changes []Change, meta Meta, now time.Time) *pending {
	if f.lost {
		return nil
	}
	h := k.kept[f.name]
	if h == nil {
		h = &held{}
	}
	p := &pending{batch: batch{name: f.name, meta: meta, changes: changes, orphans: h.orphans}, follower: f}
	if meta.Whole {
		f.seen = map[string]struct{}{}
	}
	if f.seen != nil {
		for _, c := range changes {
			key := string(appendKey(nil, c.Key))
			if c.Record == nil {
				delete(f.seen, key)
			} else {
				f.seen[key] = struct{}{}
			}
		}
		if meta.Synced || f.given {
			p.whole, p.only = true, f.seen
		} else {
			p.meta = meta.over(h.meta)
		}
	}
	if len(changes) == 0 && len(p.orphans) == 0 && !p.whole && p.meta.equal(h.meta) && !k.bounds.exceeded(&h.ledger, h.expires, now) {
		return nil
	}
	return p
}

// over returns what is to be said of a source that does not know yet all that it has, over
// what was said before.
func (m Meta) over(before Meta) Meta {
	m.Synced = before.Synced
	if m.LastContact.Before(before.LastContact) {
		m.LastContact = before.LastContact
	}
	if m.HeldSince.IsZero() {
		m.HeldSince = before.HeldSince
	}
	if m.Frozen == nil {
		m.Frozen = before.Frozen
	}
	if m.ServeWithout.IsZero() {
		m.ServeWithout = before.ServeWithout
	}
	if m.Fingerprint != before.Fingerprint && !before.LastContact.IsZero() {
		m.Fingerprint = "" // of neither
	}
	return m
}

func (m Meta) equal(o Meta) bool {
	return m.Synced == o.Synced && m.LastContact.Equal(o.LastContact) && m.HeldSince.Equal(o.HeldSince) && m.HeldRan == o.HeldRan && m.Held == o.Held && m.ServeWithout.Equal(o.ServeWithout) && m.Fingerprint == o.Fingerprint &&
		(m.Frozen == nil) == (o.Frozen == nil) &&
		(m.Frozen == nil || m.Frozen.equal(*o.Frozen))
}

func (f Frozen) equal(o Frozen) bool {
	return f.Since.Equal(o.Since) && f.Until.Equal(o.Until) && f.Revision == o.Revision && f.Reason == o.Reason
}

// writeAll writes what is pending: in one transaction, or in one for each source when it is
// much. What could not be written is given back.
func (k *Keeper) writeAll(all []*pending, forget []string) error {
	if due, _ := k.markDue(); len(all) == 0 && len(forget) == 0 && !k.unsure && !due {
		return nil
	}
	changes := 0
	for _, p := range all {
		changes += len(p.changes) + len(p.only)
	}
	groups := [][]*pending{all}
	if changes > maxTogether {
		groups = nil
		for _, p := range all {
			groups = append(groups, []*pending{p})
		}
	}
	for i, group := range groups {
		if err := k.writeGroup(group, forget); err != nil {
			k.mu.Lock()
			for _, name := range forget {
				k.forget[name] = struct{}{}
			}
			k.mu.Unlock()
			for _, group := range groups[i:] {
				for _, p := range group {
					if len(p.changes) > 0 {
						p.follower.source.GiveBack(p.changes)
					}
				}
			}
			return err
		}
		forget = nil
	}
	return nil
}

// writeGroup is one transaction.
func (k *Keeper) writeGroup(group []*pending, forget []string) error {
	start := time.Now()
	markDue, served := k.markDue()
	err := update(k.db.Load(), func(tx *bbolt.Tx) error {
		if markDue {
			if err := putServed(tx, served); err != nil {
				return err
			}
		}
		if k.unsure {
			// The last transaction may be in the file and not be durable: only another one
			// makes sure.
			if err := putFormat(tx, k.format.version); err != nil {
				return err
			}
		}
		for _, name := range forget {
			if err := removeSource(tx, name); err != nil {
				return err
			}
		}
		for _, p := range group {
			var err error
			if p.after, p.expires, err = k.newWriter().write(tx, &p.batch); err != nil {
				return err
			}
		}
		return nil
	})
	k.unsure = err != nil
	if err != nil {
		return err
	}
	k.metrics.flushes.Inc()
	k.metrics.took.Observe(time.Since(start).Seconds())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mark = servedMark{true, served}
	for _, p := range group {
		k.hasLeft(p.follower)
		handed := false
		if h := k.kept[p.name]; h != nil {
			handed = h.handed
		}
		if _, gone := k.forget[p.name]; gone {
			continue // since it was collected
		}
		k.kept[p.name] = &held{ledger: p.after, expires: p.expires, handed: handed}
		if p.whole {
			p.follower.seen = nil
		}
	}
	return nil
}

// hasLeft says that there is nothing more to be had of a follower that leaves. The caller
// holds mu.
func (k *Keeper) hasLeft(f *follower) {
	k.leaving = slices.DeleteFunc(k.leaving, func(o *follower) bool { return o == f })
}

func removeSource(tx *bbolt.Tx, name string) error {
	sources := tx.Bucket([]byte(sourcesBucket))
	if sources == nil || name == "" || sources.Bucket([]byte(name)) == nil {
		return nil
	}
	if err := enroll(tx, func(r *roster) { r.remove([]byte(name)) }); err != nil {
		return err
	}
	return sources.DeleteBucket([]byte(name))
}

// failed notes that the file can not be used or written. Only what is new is logged.
func (k *Keeper) failed(err error) {
	if errors.Is(err, errCorrupt) {
		k.detach() // it is read, and set aside if need be, at the next attempt
	}
	k.failures++
	k.metrics.errors.Inc()
	pause := min(retryFirst<<min(k.failures-1, 10), retryMost)
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.nextTry = now.Add(pause)
	st := &k.status
	if text := err.Error(); st.LastError != text {
		k.log.Error("state is not kept; serving goes on, and a restart would serve what was kept before", "path", k.path, "err", err)
		st.LastError = text
	}
	if st.ErrorSince.IsZero() {
		st.ErrorSince = now
	}
}

// succeeded notes that the file is as it should be.
func (k *Keeper) succeeded() {
	k.failures = 0
	info, err := os.Stat(k.path)
	k.mu.Lock()
	late := time.Since(k.asideSeen) > asideEvery
	k.mu.Unlock()
	if late {
		k.lookAside()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.size = info.Size()
	}
	st := &k.status
	if st.LastError != "" {
		k.log.Info("state is kept again", "path", k.path, "failedSince", st.ErrorSince)
	}
	st.LastError, st.ErrorSince = "", time.Time{}
	st.LastFlush, k.nextTry = time.Now(), time.Time{}
}

// Replace makes what is kept of a source something else: its whole content. It fails when a
// relay has the state.
func Replace(o Options, name string, s Saved) error {
	k := newKeeper(o)
	k.busy <- struct{}{}
	defer k.release()
	defer k.close()
	if err := k.attach(); err != nil {
		return fmt.Errorf("state %s: %w", k.path, err)
	}
	p := &pending{batch: batch{name: name, meta: s.Meta, only: map[string]struct{}{}}, follower: &follower{name: name}}
	for i := range s.Records {
		c := Change{s.Records[i].Resource.Key(), &s.Records[i]}
		p.changes = append(p.changes, c)
		p.only[string(appendKey(nil, c.Key))] = struct{}{}
	}
	if err := k.writeGroup([]*pending{p}, nil); err != nil {
		return fmt.Errorf("state %s: %w", k.path, err)
	}
	return nil
}
