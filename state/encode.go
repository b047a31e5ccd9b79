package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/mirror"
)

// Values on disk are protobuf messages, written and read by hand, behind a checksum. What a
// reader does not know it skips: a later version may add fields. Fields are never given
// another meaning; what can not be said by adding a field is a new format version.
//
// Keys of resources are the length of the kind as a varint, the kind as "group/Kind", and
// the full name, so that a kind's resources stand together.

// sumLen is the length of the checksum before each value. It covers the key, too.
const sumLen = 8

var (
	errSum   = errors.New("its checksum does not match")
	errShort = errors.New("it is too short")
)

// seal puts the checksum before a value, whose first sumLen bytes are left free for it.
func seal(key, value []byte) (sum uint64) {
	sum = xxh3.HashSeed(value[sumLen:], xxh3.Hash(key))
	binary.LittleEndian.PutUint64(value, sum)
	return sum
}

// unseal checks a value and returns what is in it.
func unseal(key, value []byte) (payload []byte, sum uint64, err error) {
	if len(value) < sumLen {
		return nil, 0, errShort
	}
	sum = sumOf(value)
	if sum != xxh3.HashSeed(value[sumLen:], xxh3.Hash(key)) {
		return nil, 0, errSum
	}
	return value[sumLen:], sum, nil
}

func sumOf(value []byte) uint64 {
	if len(value) < sumLen {
		return 0
	}
	return binary.LittleEndian.Uint64(value)
}

// appendKey appends the key of a resource.
func appendKey(b []byte, k mirror.Key) []byte {
	n := len(k.Kind.Group) + 1 + len(k.Kind.Kind)
	b = protowire.AppendVarint(b, uint64(n))
	b = append(append(append(b, k.Kind.Group...), '/'), k.Kind.Kind...)
	if k.Kind != mirror.MeshConfig {
		b = append(append(b, k.Namespace...), '/')
	}
	return append(b, k.Name...)
}

// parseKey is the inverse of appendKey.
func parseKey(b []byte) (mirror.Key, error) {
	n, m := protowire.ConsumeVarint(b)
	if m < 0 || n > uint64(len(b)-m) {
		return mirror.Key{}, errors.New("no key of a resource")
	}
	group, kind, ok := strings.Cut(string(b[m:m+int(n)]), "/")
	if !ok {
		return mirror.Key{}, errors.New("no kind in the key of a resource")
	}
	k := mirror.Key{Kind: mirror.Kind{Group: group, Kind: kind}}
	full := string(b[m+int(n):])
	if k.Kind == mirror.MeshConfig {
		k.Name = full
		return k, nil
	}
	var err error
	k.Namespace, k.Name, err = mirror.ParseFullName(full)
	return k, err
}

// fields walks the top level of a message.
func fields(b []byte, bytes func(protowire.Number, []byte) error, number func(protowire.Number, uint64)) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch typ {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			if err := bytes(num, v); err != nil {
				return err
			}
			b = b[n:]
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			number(num, v)
			b = b[n:]
		case protowire.Fixed64Type:
			v, n := protowire.ConsumeFixed64(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			number(num, v)
			b = b[n:]
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
		}
	}
	return nil
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendFixed(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), v)
}

// appendTime appends a point in time, nothing when it is zero.
func appendTime(b []byte, num protowire.Number, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	var v []byte
	v = appendNumber(v, 1, protowire.EncodeZigZag(t.Unix()))
	v = appendNumber(v, 2, uint64(t.Nanosecond()))
	return appendBytes(b, num, v)
}

func parseTime(b []byte) (time.Time, error) {
	var seconds int64
	var nanos uint64
	err := fields(b, skip, func(num protowire.Number, v uint64) {
		switch num {
		case 1:
			seconds = protowire.DecodeZigZag(v)
		case 2:
			nanos = min(v, 999_999_999)
		}
	})
	return time.Unix(seconds, int64(nanos)).UTC(), err
}

func skip(protowire.Number, []byte) error { return nil }

// Numbers of the fields of a record, and of the resources within it.
const (
	recordResource = 1
	recordOriginal = 2
	recordTypeURL  = 3
	recordVersion  = 4
	recordHash     = 5
	recordAt       = 6
	recordDigest   = 7

	resourceAny           = 1
	resourceSource        = 2
	resourceCluster       = 3
	resourceSourceVersion = 4
	resourceKind          = 5 // "group/Kind", if it is not that of the key
)

// appendRecord appends a record that stands under a key.
func appendRecord(b []byte, key mirror.Key, r *Record) []byte {
	b = appendResource(b, recordResource, key.Kind, r.Resource)
	if r.Original != nil {
		b = appendResource(b, recordOriginal, key.Kind, r.Original)
	}
	b = appendText(b, recordTypeURL, r.TypeURL)
	b = appendText(b, recordVersion, r.Version)
	if r.Hash != [16]byte{} {
		b = appendBytes(b, recordHash, r.Hash[:])
	}
	b = appendTime(b, recordAt, r.At.Truncate(time.Second))
	digest := r.Resource.Digest()
	return appendBytes(b, recordDigest, digest[:])
}

func appendResource(b []byte, num protowire.Number, kind mirror.Kind, r *mirror.Resource) []byte {
	kindText := ""
	if k := r.Kind(); k != kind {
		kindText = k.Group + "/" + k.Kind
	}
	size := 0
	for _, n := range []int{len(r.Any()), len(r.Source()), len(r.Cluster()), len(r.SourceVersion()), len(kindText)} {
		if n > 0 {
			size += 1 + protowire.SizeBytes(n)
		}
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(size))
	b = appendBytes(b, resourceAny, r.Any())
	b = appendText(b, resourceSource, r.Source())
	b = appendText(b, resourceCluster, r.Cluster())
	b = appendText(b, resourceSourceVersion, r.SourceVersion())
	return appendText(b, resourceKind, kindText)
}

// parseRecord is the inverse of appendRecord. It copies b.
func parseRecord(key mirror.Key, b []byte) (r Record, err error) {
	err = fields(b, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case recordResource:
			r.Resource, err = parseResource(key.Kind, v)
			if err == nil && r.Resource.Key() != key {
				err = fmt.Errorf("it is of %s", r.Resource.Key())
			}
		case recordOriginal:
			if r.Original, err = parseResource(key.Kind, v); err != nil {
				err = fmt.Errorf("as the source has it: %w", err)
			}
		case recordTypeURL:
			r.TypeURL = string(v)
		case recordVersion:
			r.Version = string(v)
		case recordHash:
			copy(r.Hash[:], v)
		case recordAt:
			r.At, err = parseTime(v)
		}
		return err
	}, func(protowire.Number, uint64) {})
	if err == nil && r.Resource == nil {
		err = errors.New("there is no resource in it")
	}
	if r.Resource != nil && r.Version == r.Resource.SourceVersion() {
		r.Version = r.Resource.SourceVersion() // held once
	}
	return r, err
}

func parseResource(kind mirror.Kind, b []byte) (*mirror.Resource, error) {
	var data []byte
	var source, cluster, version string
	err := fields(b, func(num protowire.Number, v []byte) error {
		switch num {
		case resourceAny:
			data = v
		case resourceSource:
			source = string(v)
		case resourceCluster:
			cluster = string(v)
		case resourceSourceVersion:
			version = string(v)
		case resourceKind:
			kind.Group, kind.Kind, _ = strings.Cut(string(v), "/")
		}
		return nil
	}, func(protowire.Number, uint64) {})
	if err != nil {
		return nil, err
	}
	return mirror.Restore(kind, data, source, cluster, version)
}

// digestOf returns what tells the content of an encoded record from another's.
func digestOf(record []byte) (digest [16]byte) {
	// What does not parse has no digest, and so differs from what has.
	_ = fields(record, func(num protowire.Number, v []byte) error {
		if num == recordDigest {
			copy(digest[:], v)
		}
		return nil
	}, func(protowire.Number, uint64) {})
	return digest
}

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

	frozenSince    = 1
	frozenRevision = 2
)

func appendLedger(b []byte, l *ledger) []byte {
	b = appendNumber(b, ledgerSynced, numberOf(l.meta.Synced))
	b = appendTime(b, ledgerLastContact, l.meta.LastContact)
	if f := l.meta.Frozen; f != nil {
		v := appendTime(nil, frozenSince, f.Since)
		b = appendBytes(b, ledgerFrozen, appendNumber(v, frozenRevision, f.Revision))
	}
	b = appendText(b, ledgerFingerprint, l.meta.Fingerprint)
	b = appendNumber(b, ledgerCount, l.count)
	b = appendNumber(b, ledgerBytes, l.bytes)
	b = appendFixed(b, ledgerDigest, l.digest)
	b = appendNumber(b, ledgerNewest, l.newest)
	b = appendNumber(b, ledgerOldest, l.oldest)
	return appendNumber(b, ledgerHistoryBytes, l.historyBytes)
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
		if num == frozenSince {
			f.Since, err = parseTime(v)
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
	return appendFixed(b, chapterUndoDigest, c.undoDigest)
}

func parseChapter(id uint64, b []byte) (c chapter, err error) {
	c.ID = id
	err = fields(b, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case chapterTime:
			c.Time, err = parseTime(v)
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
