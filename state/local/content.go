package local

import (
	"cmp"
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// hash tells keys of resources apart.
type hash = [16]byte

func hashOf(key []byte) hash { return xxh3.Hash128(key).Bytes() }

// place is where a log has the record of a resource.
type place struct {
	at   int64
	size int // of the frame
	// sum is of the record, and digest of its content alone.
	sum, digest uint64
}

// sumOf is the checksum of a record under a key.
func sumOf(key hash, record []byte) uint64 {
	return xxh3.HashSeed(record, binary.LittleEndian.Uint64(key[:]))
}

// row is a revision of the history.
type row struct {
	time time.Time
	at   int64 // of the commit
	size int64 // of the commit
	// replaced is the size of what the log only has because of the revision before this one.
	replaced int64
}

// content is what a log has.
type content struct {
	name  string
	head  head
	index *statepb.Index // of relay.state
	// places are of the resources as of the last commit, live is their size, and sum is the
	// sum of their checksums.
	places map[hash]place
	live   int64
	sum    uint64
	ledger *statepb.Ledger // of the last commit
	// rows are the revisions that are kept, the oldest first.
	rows []row
	// end is behind the last commit.
	end int64
	// damage is what is wrong with the log. The resources are whole all the same when lost is
	// false; the history is not.
	damage error
	lost   bool
}

// edit is a change of one place.
type edit struct {
	key  hash
	to   place
	gone bool
}

// apply makes edits part of a content.
func (c *content) apply(edits []edit) {
	for _, e := range edits {
		old := c.places[e.key] // zero if there is none
		c.sum, c.live = c.sum-old.sum, c.live-int64(old.size)
		if e.gone {
			delete(c.places, e.key)
			continue
		}
		c.places[e.key] = e.to
		c.sum, c.live = c.sum+e.to.sum, c.live+int64(e.to.size)
	}
}

// replay reads a log. What is wrong with it is in the content.
func replay(from io.ReaderAt, size int64) *content {
	c := newContent()
	r, err := newReader(from, size)
	c.head = r.head
	if err != nil {
		c.damage, c.lost = err, true
		return c
	}
	c.replay(r, r.head.durable)
	c.check(r.head.durable)
	return c
}

// replayTo reads a log that is whole up to a place.
func replayTo(from io.ReaderAt, end int64) (*content, error) {
	c := newContent()
	r, err := newReader(from, end)
	if err != nil {
		return nil, err
	}
	c.head = r.head
	c.replay(r, end)
	return c, c.damage
}

func newContent() *content {
	return &content{places: map[hash]place{}, ledger: &statepb.Ledger{}, end: headLen}
}

// replay takes in the frames. What is broken before durable is damage: the rest is read all the
// same, because it may have every resource that counts.
func (c *content) replay(r *reader, durable int64) {
	var edits []edit
	for at := int64(headLen); at < r.size; {
		e, record, size, err := r.entry(at)
		if size == 0 && at >= durable {
			break // a torn batch
		}
		if err != nil {
			c.broken(err)
		}
		if size == 0 {
			at = r.after(at + 1)
			continue
		}
		switch {
		case e.GetStart() != nil:
			c.name, c.end = e.GetStart().Upstream, at+int64(size)
		case e.GetIndex() != nil:
			c.index, c.end = e.GetIndex(), at+int64(size)
		case e.GetChange() != nil:
			key := hashOf(e.GetChange().Key)
			edits = append(edits, edit{key, place{at, size, sumOf(key, record), e.GetChange().Digest}, len(record) == 0})
		case e.GetCommit() != nil:
			c.apply(edits)
			edits = edits[:0]
			c.commit(e.GetCommit(), at, int64(size))
		}
		at += int64(size)
	}
}

func (c *content) broken(err error) {
	if c.damage == nil {
		c.damage = err
	}
}

func (c *content) commit(commit *statepb.Commit, at, size int64) {
	c.ledger, c.end = commit.GetLedger(), at+size
	if ch := commit.GetChapter(); ch != nil {
		c.rows = append(c.rows, row{decodeTime(ch.Time), at, size, int64(ch.UndoBytes)})
	}
	n := 0
	if o := c.ledger.GetOldest(); o > 0 && o <= c.ledger.GetNewest() {
		n = int(min(c.ledger.GetNewest()-o+1, uint64(len(c.rows))))
	}
	c.rows = c.rows[len(c.rows)-n:]
}

// check compares what was found with what the last commit tells that there is.
func (c *content) check(durable int64) {
	l := c.ledger
	switch {
	case c.end < durable || uint64(len(c.places)) != l.GetCount() || c.sum != l.GetDigest():
		c.broken(corruptf("it has %d resources, or others than were written, which were %d", len(c.places), l.GetCount()))
		c.lost = true
	case c.revisions() != len(c.rows):
		c.broken(corruptf("it has %d revisions, and %d were written", len(c.rows), c.revisions()))
	}
	if c.damage != nil {
		c.rows = nil
	}
}

// revisions returns how many revisions the ledger tells of.
func (c *content) revisions() int {
	if c.ledger.GetOldest() == 0 {
		return 0
	}
	return int(c.ledger.GetNewest() - c.ledger.GetOldest() + 1)
}

// kept describes a content.
func (c *content) kept() state.Kept {
	return state.Kept{Meta: decodeMeta(c.ledger), Records: len(c.places), Sum: c.sum, Revisions: len(c.rows)}
}

// inOrder returns the places as they follow one another in the log.
func (c *content) inOrder() []place {
	return slices.SortedFunc(maps.Values(c.places), func(a, b place) int { return cmp.Compare(a.at, b.at) })
}

// unusable is a record that this version of the relay does not take.
type unusable struct {
	key []byte
	err error
}

// records reads the resources at the places of a content.
func (c *content) records(from io.ReaderAt) (out []state.Record, bad []unusable, err error) {
	r := &reader{from: from, size: c.end, head: c.head}
	out = make([]state.Record, 0, len(c.places))
	for _, p := range c.inOrder() {
		e, b, _, err := r.entry(p.at)
		if err != nil {
			return nil, nil, err
		}
		record, err := decodeRecord(e.GetChange().GetKey(), b)
		if err != nil {
			bad = append(bad, unusable{e.GetChange().GetKey(), err})
			continue
		}
		out = append(out, record)
	}
	return out, bad, nil
}

// history reads the revisions of a content, the newest first.
func (c *content) history(from io.ReaderAt) ([]state.Revision, error) {
	r := &reader{from: from, size: c.end, head: c.head}
	out := make([]state.Revision, len(c.rows))
	for i, row := range c.rows {
		e, _, _, err := r.entry(row.at)
		if err != nil {
			return nil, err
		}
		if e.GetCommit().GetChapter() == nil {
			return nil, corruptf("byte %d is no revision", row.at)
		}
		out[len(out)-1-i] = decodeRevision(c.ledger.GetOldest()+uint64(i), e.GetCommit().GetChapter())
	}
	return out, nil
}
