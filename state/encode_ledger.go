package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
)

// ledger is what is kept of a source besides its resources. It is also what they, and the
// history, are checked against.
type ledger struct {
	meta Meta
	// count, bytes and digest are of the resources: digest is the sum of their checksums.
	count, bytes, digest uint64
	// newest is the last revision that there was, and oldest the first of those that there
	// are; 0 when there are none. Then newest is the last number that was given.
	newest, oldest uint64
	// historyBytes is what the history takes.
	historyBytes uint64
}

// revisions returns how many revisions there are.
func (l *ledger) revisions() int {
	if l.oldest == 0 {
		return 0
	}
	return int(l.newest - l.oldest + 1)
}

// sameContent reports whether two ledgers are of the same resources.
func (l ledger) sameContent(o ledger) bool { return l.count == o.count && l.digest == o.digest }

// ledgerSeal returns what stands for the key in the checksum of a ledger: it is good for the
// source of that name only.
func ledgerSeal(source string) []byte { return []byte(ledgerKey + "\x00" + source) }

const (
	ledgerSynced       = 1
	ledgerLastContact  = 2
	ledgerFrozen       = 3
	ledgerFingerprint  = 4
	ledgerCount        = 5
	ledgerBytes        = 6
	ledgerDigest       = 7
	ledgerNewest       = 8
	ledgerOldest       = 9
	ledgerHistoryBytes = 10
	ledgerHeldSince    = 11 // older relays pass over it
	ledgerHeldRan      = 12 // and over this
	ledgerServeWithout = 13 // and over this
	ledgerHeld         = 14 // and over this

	frozenSince    = 1
	frozenRevision = 2
	frozenUntil    = 3 // older relays pass over it
	frozenReason   = 4 // and over this
)

func appendLedger(b []byte, l *ledger) []byte {
	b = appendNumber(b, ledgerSynced, numberOf(l.meta.Synced))
	b = appendTime(b, ledgerLastContact, l.meta.LastContact)
	if f := l.meta.Frozen; f != nil {
		v := appendTime(nil, frozenSince, f.Since)
		v = appendNumber(v, frozenRevision, f.Revision)
		v = appendTime(v, frozenUntil, f.Until)
		b = appendBytes(b, ledgerFrozen, appendText(v, frozenReason, f.Reason))
	}
	b = appendText(b, ledgerFingerprint, l.meta.Fingerprint)
	b = appendNumber(b, ledgerCount, l.count)
	b = appendNumber(b, ledgerBytes, l.bytes)
	b = appendFixed(b, ledgerDigest, l.digest)
	b = appendNumber(b, ledgerNewest, l.newest)
	b = appendNumber(b, ledgerOldest, l.oldest)
	b = appendNumber(b, ledgerHistoryBytes, l.historyBytes)
	b = appendTime(b, ledgerHeldSince, l.meta.HeldSince)
	b = appendNumber(b, ledgerHeldRan, uint64(l.meta.HeldRan))
	b = appendTime(b, ledgerServeWithout, l.meta.ServeWithout)
	return appendNumber(b, ledgerHeld, uint64(l.meta.Held))
}

func numberOf(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func parseLedger(b []byte) (l ledger, err error) {
	err = fields(b, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case ledgerLastContact:
			l.meta.LastContact, err = parseTime(v)
		case ledgerHeldSince:
			l.meta.HeldSince, err = parseTime(v)
		case ledgerServeWithout:
			l.meta.ServeWithout, err = parseTime(v)
		case ledgerFrozen:
			l.meta.Frozen, err = parseFrozen(v)
		case ledgerFingerprint:
			l.meta.Fingerprint = string(v)
		}
		return err
	}, func(num protowire.Number, v uint64) {
		switch num {
		case ledgerSynced:
			l.meta.Synced = v != 0
		case ledgerHeldRan:
			l.meta.HeldRan = max(time.Duration(v), 0)
		case ledgerHeld:
			l.meta.Held = int(min(v, math.MaxInt32))
		case ledgerCount:
			l.count = v
		case ledgerBytes:
			l.bytes = v
		case ledgerDigest:
			l.digest = v
		case ledgerNewest:
			l.newest = v
		case ledgerOldest:
			l.oldest = v
		case ledgerHistoryBytes:
			l.historyBytes = v
		}
	})
	if err == nil && (l.oldest > l.newest || l.oldest > 0 && l.newest-l.oldest >= maxRevisions) {
		err = fmt.Errorf("it has revisions %d to %d", l.oldest, l.newest)
	}
	return l, err
}

// maxRevisions bounds the revisions that a file can have of a source.
const maxRevisions = 1 << 24

func parseFrozen(b []byte) (*Frozen, error) {
	f := &Frozen{}
	err := fields(b, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case frozenSince:
			f.Since, err = parseTime(v)
		case frozenUntil:
			f.Until, err = parseTime(v)
		case frozenReason:
			f.Reason = string(v)
		}
		return err
	}, func(num protowire.Number, v uint64) {
		if num == frozenRevision {
			f.Revision = v
		}
	})
	return f, err
}

// chapter is a revision as the history has it.
type chapter struct {
	Revision
	// undone counts what leads back from it to the one before; undoDigest is the sum of
	// those entries' checksums.
	undone, undoBytes, undoDigest uint64
}

const (
	chapterTime       = 1
	chapterAdded      = 2
	chapterChanged    = 3
	chapterRemoved    = 4
	chapterResources  = 5
	chapterKeys       = 6
	chapterUndone     = 7
	chapterUndoBytes  = 8
	chapterUndoDigest = 9
	chapterBy         = 10 // older relays pass over it
)

func appendChapter(b []byte, c *chapter) []byte {
	b = appendTime(b, chapterTime, c.Time)
	b = appendNumber(b, chapterAdded, uint64(c.Added))
	b = appendNumber(b, chapterChanged, uint64(c.Changed))
	b = appendNumber(b, chapterRemoved, uint64(c.Removed))
	b = appendNumber(b, chapterResources, uint64(c.Resources))
	for _, key := range c.Keys {
		b = appendText(b, chapterKeys, key)
	}
	b = appendNumber(b, chapterUndone, c.undone)
	b = appendNumber(b, chapterUndoBytes, c.undoBytes)
	b = appendFixed(b, chapterUndoDigest, c.undoDigest)
	return appendText(b, chapterBy, c.By)
}

func parseChapter(id uint64, b []byte) (c chapter, err error) {
	c.ID = id
	err = fields(b, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case chapterTime:
			c.Time, err = parseTime(v)
		case chapterBy:
			c.By = string(v)
		case chapterKeys:
			c.Keys = append(c.Keys, string(v))
		}
		return err
	}, func(num protowire.Number, v uint64) {
		switch num {
		case chapterAdded:
			c.Added = int(v)
		case chapterChanged:
			c.Changed = int(v)
		case chapterRemoved:
			c.Removed = int(v)
		case chapterResources:
			c.Resources = int(v)
		case chapterUndone:
			c.undone = v
		case chapterUndoBytes:
			c.undoBytes = v
		case chapterUndoDigest:
			c.undoDigest = v
		}
	})
	return c, err
}

// revisionKey is the key of a revision, and what those of its undo entries begin with.
func revisionKey(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }

// undoSum is the checksum of an entry that leads back: under its key, the value that the
// resource had, or nothing when there was none.
func undoSum(key, value []byte) uint64 { return xxh3.HashSeed(key, sumOf(value)) }

// roster is which sources there are: how many, and the sum of their names' checksums.
type roster struct{ count, digest uint64 }

// add counts a name in.
func (r *roster) add(name []byte) {
	r.count++
	r.digest += xxh3.Hash(name)
}

// remove counts a name out.
func (r *roster) remove(name []byte) {
	r.count--
	r.digest -= xxh3.Hash(name)
}

const (
	rosterCount  = 1
	rosterDigest = 2
)

func appendRoster(b []byte, r roster) []byte {
	return appendFixed(appendNumber(b, rosterCount, r.count), rosterDigest, r.digest)
}

func parseRoster(b []byte) (r roster, err error) {
	err = fields(b, skip, func(num protowire.Number, v uint64) {
		switch num {
		case rosterCount:
			r.count = v
		case rosterDigest:
			r.digest = v
		}
	})
	return r, err
}

const formatVersionField = 1

// appendFormat appends what says in which format a file is. It is the same in all of them.
func appendFormat(b []byte, version uint64) []byte {
	return appendNumber(b, formatVersionField, version)
}

func parseFormat(b []byte) (version uint64, err error) {
	err = fields(b, skip, func(num protowire.Number, v uint64) {
		if num == formatVersionField {
			version = v
		}
	})
	if err == nil && version == 0 {
		err = errors.New("it names no version")
	}
	return version, err
}
