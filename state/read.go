package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"meshrelay/mirror"
)

// Names of buckets and keys.
const (
	fileName = "relay.db"
	lockName = "relay.lock"

	topBucket     = "meta" // formatKey, rosterKey and servedKey
	formatKey     = "format"
	rosterKey     = "upstreams"
	sourcesBucket = "sources" // a bucket for each

	ledgerKey       = "meta"
	resourcesBucket = "resources" // by appendKey
	historyBucket   = "history"   // chapters, by revisionKey
	undoBucket      = "undo"      // by revisionKey and appendKey: what a resource was before, empty if it was not
)

// formatVersion is the newest format that this build knows, and writes.
const formatVersion = 1

var (
	errNewer = errors.New("the file is of a newer version of the relay")
	errOlder = errors.New("the file is of an older version of the relay")
	// ErrInUse says that another process has the state.
	ErrInUse = errors.New("in use by another process")
)

// lockPatience is how long to wait for another process to let go of a lock, and lockPoll how
// often to look.
const (
	lockPatience = time.Second
	lockPoll     = 25 * time.Millisecond
)

// kept is what a file has of a source.
type kept struct {
	ledger
	records []Record
	// orphans are the keys of records that this build can not use.
	orphans [][]byte
	// chapters are the revisions, the oldest first.
	chapters []chapter
	// noHistory says that the history is damaged, and the resources are not.
	noHistory bool
}

// contents is what a file has.
type contents struct {
	format, want uint64
	// sources are those that are whole, by name.
	sources map[string]*kept
	// err is what is wrong with the file.
	err error
	// size is that of the file, and live what of it is in use, in bytes.
	size, live int64
	// mark tells whether clients were served with it.
	mark servedMark
	// written is which sources there should be, and found which there are, damaged or not.
	written, found roster
	// unusable describes some of the orphans.
	unusable      []string
	unusableCount int
	fault         func(mirror.Key) // only tests set it, to panic
}

// maxDescribed bounds how many mistakes are described one by one.
const maxDescribed = 5

// readFile reads and checks a whole file. What is wrong with it is in the contents. An error
// says that it can not be opened, or that it is of another format than the one given.
func readFile(path string, format uint64) (*contents, error) {
	f, err := openOwn(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := sizeOf(f)
	if err != nil {
		return nil, err
	}
	return readFrom(f, size, format)
}

// sizeOf returns the length of a file, in bytes, or an error when it is something else.
func sizeOf(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a file", f.Name())
	}
	return info.Size(), nil
}

// readFrom is readFile of what has been opened.
func readFrom(f io.ReaderAt, size int64, format uint64) (*contents, error) {
	c := &contents{sources: map[string]*kept{}, size: size, want: format}
	t, err := openTree(f, size)
	if err != nil {
		c.err = err
		return c, nil //nolint:nilerr // it is in the contents
	}
	err = c.read(t)
	c.live = int64(t.used) * int64(t.pageSize)
	if errors.Is(err, errNewer) || errors.Is(err, errOlder) {
		return nil, err
	}
	if c.err == nil {
		c.err = err
	}
	if c.err == nil {
		c.err = t.unusable
	}
	return c, nil
}

// read reads all of a tree. It goes on behind what is damaged, as far as that can be found.
func (c *contents) read(t *tree) error {
	err := t.walk(func(key, _ []byte, sub *bucket) error {
		switch {
		case string(key) == topBucket && sub != nil:
			return c.readTop(t, sub)
		case c.format == 0: // "meta" comes before "sources"
			return corruptf("it says nothing of its format")
		case string(key) == sourcesBucket && sub != nil:
			return t.walkBucket(sub, func(key, _ []byte, sub *bucket) error {
				if sub == nil {
					return nil
				}
				c.found.add(key)
				if !IsName(string(key)) {
					if c.err == nil {
						c.err = corruptf("%.100q is no name of an upstream", key)
					}
					return t.skipBucket(sub, maxTreeDepth)
				}
				name := string(key)
				k, err := readSource(t, sub, c, name)
				if err != nil {
					err = fmt.Errorf("upstream %s: %w", name, err)
					if c.err == nil {
						c.err = err
					}
				}
				if k != nil {
					c.sources[name] = k
				}
				return nil
			})
		case sub != nil:
			return t.skipBucket(sub, maxTreeDepth)
		}
		return nil
	})
	switch {
	case err != nil:
	case c.format == 0:
		err = corruptf("it says nothing of its format")
	case c.found != c.written:
		err = corruptf("it has %d upstreams, or others than were written, which were %d", c.found.count, c.written.count)
	}
	return err
}

func (c *contents) readTop(t *tree, b *bucket) error {
	return t.walkBucket(b, func(key, value []byte, sub *bucket) error {
		if sub != nil {
			return t.skipBucket(sub, maxTreeDepth)
		}
		payload, _, err := unseal(key, value)
		if string(key) == rosterKey {
			if err == nil {
				c.written, err = parseRoster(payload)
			}
			if err != nil {
				return corruptf("what it says of its upstreams: %v", err)
			}
		}
		if string(key) == servedKey {
			if err == nil {
				c.mark, err = parseServed(payload)
			}
			if err != nil {
				return corruptf("what it says of its clients: %v", err)
			}
		}
		if string(key) != formatKey {
			return nil
		}
		if err == nil {
			c.format, err = parseFormat(payload)
		}
		switch {
		case err != nil:
			return corruptf("what it says of its format: %v", err)
		case c.format > c.want:
			return fmt.Errorf("%w: it has format %d, and this version knows %d", errNewer, c.format, c.want)
		case c.format < c.want:
			return fmt.Errorf("%w: it has format %d", errOlder, c.format)
		}
		return nil
	})
}

// readSource reads what there is of one source. It returns nil when its resources are not
// whole; when only its history is not, it returns both.
func readSource(t *tree, b *bucket, c *contents, name string) (*kept, error) {
	k := &kept{}
	var count, digest, size uint64
	var undone map[uint64]*undoTotal
	var damaged, historyDamaged error
	haveLedger := false
	note := func(to *error, err error) {
		if *to == nil {
			*to = err
		}
	}
	err := t.walkBucket(b, func(key, value []byte, sub *bucket) error {
		switch {
		case string(key) == ledgerKey && sub == nil:
			payload, _, err := unseal(ledgerSeal(name), value)
			if err == nil {
				k.ledger, err = parseLedger(payload)
			}
			if err != nil {
				note(&damaged, corruptf("what it says of itself: %v", err))
			}
			haveLedger = true
		case string(key) == resourcesBucket && sub != nil:
			note(&damaged, t.walkBucket(sub, func(key, value []byte, sub *bucket) error {
				if sub != nil {
					return t.skipBucket(sub, maxTreeDepth)
				}
				sum, err := k.readRecord(key, value, c)
				count, digest, size = count+1, digest+sum, size+uint64(len(key)+len(value))
				note(&damaged, err)
				return nil
			}))
		case string(key) == historyBucket && sub != nil:
			note(&historyDamaged, t.walkBucket(sub, func(key, value []byte, sub *bucket) error {
				if sub != nil || len(key) != 8 {
					return corruptf("what stands in the history is no revision")
				}
				payload, _, err := unseal(key, value)
				var ch chapter
				if err == nil {
					ch, err = parseChapter(idOf(key), payload)
				}
				if err != nil {
					return corruptf("revision %d: %v", idOf(key), err)
				}
				k.chapters = append(k.chapters, ch)
				return nil
			}))
		case string(key) == undoBucket && sub != nil:
			undone = map[uint64]*undoTotal{}
			note(&historyDamaged, readUndo(t, sub, undone))
		case sub != nil:
			return t.skipBucket(sub, maxTreeDepth)
		}
		return nil
	})
	note(&damaged, err)
	switch {
	case damaged != nil:
	case !haveLedger:
		damaged = corruptf("it says nothing of itself")
	case count != k.count || digest != k.digest || size != k.bytes:
		damaged = corruptf("it has %d resources of %d bytes, or others than were written, which were %d of %d bytes", count, size, k.count, k.bytes)
	}
	if damaged != nil {
		return nil, damaged
	}
	if historyDamaged == nil {
		historyDamaged = k.checkHistory(undone)
	}
	if historyDamaged != nil {
		k.chapters, k.noHistory = nil, true
	}
	return k, historyDamaged
}

// readRecord takes in a record. It returns an error when it is damaged.
func (k *kept) readRecord(key, value []byte, c *contents) (sum uint64, err error) {
	payload, sum, err := unseal(key, value)
	if err != nil {
		return sumOf(value), corruptf("resource %q: %v", key, err)
	}
	var r Record
	id, err := parseKey(key)
	if err == nil {
		r, err = c.parse(id, payload)
	}
	if err != nil {
		// It is what was written: this build is another one than wrote it.
		k.orphans = append(k.orphans, bytes.Clone(key))
		if c.unusableCount++; c.unusableCount <= maxDescribed {
			c.unusable = append(c.unusable, fmt.Sprintf("%q: %v", key, err))
		}
		return sum, nil
	}
	k.records = append(k.records, r)
	return sum, nil
}

// parse is parseRecord, with a panic as an error: the record is set aside like one that this
// build does not know, rather than ending each start.
func (c *contents) parse(key mirror.Key, payload []byte) (r Record, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			r, err = Record{}, p
		}
	}()
	if c.fault != nil {
		c.fault(key)
	}
	return parseRecord(key, payload)
}

// undoTotal sums up what leads back from one revision.
type undoTotal struct{ count, bytes, digest uint64 }

func readUndo(t *tree, b *bucket, undone map[uint64]*undoTotal) error {
	return t.walkBucket(b, func(key, value []byte, sub *bucket) error {
		if sub != nil || len(key) <= 8 {
			return corruptf("what stands among the undo data is none")
		}
		id := idOf(key)
		if len(value) > 0 {
			if _, _, err := unseal(key[8:], value); err != nil {
				return corruptf("revision %d: what was before it: %v", id, err)
			}
		}
		u := undone[id]
		if u == nil {
			u = &undoTotal{}
			undone[id] = u
		}
		u.count, u.bytes, u.digest = u.count+1, u.bytes+uint64(len(key)+len(value)), u.digest+undoSum(key, value)
		return nil
	})
}

// checkHistory checks the history against the ledger, and the undo data against it.
func (k *kept) checkHistory(undone map[uint64]*undoTotal) error {
	if len(k.chapters) != k.revisions() {
		return corruptf("it has %d revisions, and %d were written", len(k.chapters), k.revisions())
	}
	for i := range k.chapters {
		ch := &k.chapters[i]
		if ch.ID != k.oldest+uint64(i) {
			return corruptf("revision %d is missing", k.oldest+uint64(i))
		}
		u := undone[ch.ID]
		if u == nil {
			u = &undoTotal{}
		}
		delete(undone, ch.ID)
		if *u != (undoTotal{ch.undone, ch.undoBytes, ch.undoDigest}) {
			return corruptf("revision %d: what was before it is incomplete", ch.ID)
		}
	}
	if len(undone) > 0 {
		return corruptf("it has undo data of revisions that there are not")
	}
	return nil
}

func (k *kept) saved() Saved {
	return Saved{Meta: k.meta, Records: k.records, Revision: k.newest}
}

// idOf returns the revision of a revisionKey.
func idOf(key []byte) (id uint64) {
	for _, b := range key[:8] {
		id = id<<8 | uint64(b)
	}
	return id
}
