package local

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

// minGarbage is how much of a log may be needless before the log is written anew. Above that,
// half of it may be.
const minGarbage = 1 << 20

// minPart is how many resources a goroutine decodes at least.
const minPart = 500

// place is where a log has a resource.
type place struct {
	at          int64
	size        int // of the frame
	sum, digest uint64
}

// edit is a change of one place.
type edit struct {
	key  string
	to   place
	gone bool
}

// row is a revision of the history.
type row struct {
	time     time.Time
	at, size int64 // of the commit
	// replaced is the size of what the log only has because of the revision before this one.
	replaced int64
}

// upstream is the log of one upstream.
type upstream struct {
	name string
	from io.ReaderAt
	// file is from, and info tells of it; nil of a log that is in memory or in a backup. It is
	// closed when nobody has it any more, so that readers need no file of their own.
	file *os.File
	info os.FileInfo

	// places are of the resources as of the last commit, live is their size, and sum is the sum
	// of their checksums.
	places map[string]place
	live   int64
	sum    uint64
	ledger *statepb.Ledger // of the last commit
	// rows are the revisions that are kept, the oldest first.
	rows []row
	end  int64 // of the last commit

	// damage is what is wrong with the log. The resources are still whole when lost is
	// false; the history is not.
	damage error
	lost   bool
	// unusable are the keys of records that this build can not use. They are removed with the
	// next batch.
	unusable []string
	// suspect tells that it is not known what of the last batch is durable.
	suspect bool
	// tired is the size below which the log is not written anew, because that has failed.
	tired int64
}

// openUpstream opens the log of an upstream, and reads it, for writing if that is allowed.
func openUpstream(dir, name string) (*upstream, error) {
	path := filepath.Join(dir, logName(name))
	f, info, err := openOwn(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		f, info, err = openOwn(path, os.O_RDONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	u := readUpstream(name, f, info.Size())
	u.file, u.info = f, info
	return u, nil
}

// readUpstream reads a log. What is wrong with it is in damage.
func readUpstream(name string, from io.ReaderAt, size int64) *upstream {
	u := newUpstream(name, from)
	durable, err := readHead(from)
	if err != nil {
		u.damage, u.lost = err, true
		return u
	}
	u.replay(size, durable)
	if u.end < durable {
		u.lost = true
		u.broken(corruptf("it ends at byte %d, and %d were written", u.end, durable))
	}
	if n := revisions(u.ledger); n != uint64(len(u.rows)) {
		u.broken(corruptf("it has %d revisions, and %d were written", len(u.rows), n))
	}
	if u.damage != nil {
		u.rows = nil
	}
	return u
}

func newUpstream(name string, from io.ReaderAt) *upstream {
	return &upstream{name: name, from: from, places: map[string]place{}, ledger: &statepb.Ledger{}, end: headLen}
}

// replay takes in the frames. What is broken before durable is damage: the rest is read all the
// same, because it may have every resource that counts.
func (u *upstream) replay(size, durable int64) {
	r := &reader{from: u.from, size: size}
	var edits []edit
	for at := int64(headLen); at < size; {
		f, err := r.frame(at)
		switch {
		case err != nil && at >= durable:
			return // a torn batch
		case err != nil:
			u.broken(err)
			if f.size == 0 {
				return
			}
		case len(f.key) > 0:
			edits = append(edits, edit{string(f.key), place{at, f.size, f.sum, f.digest}, len(f.record)+len(f.data) == 0})
		default:
			u.apply(edits)
			edits = edits[:0]
			u.commit(f.record, at, int64(f.size))
		}
		at += int64(f.size)
	}
}

func (u *upstream) broken(err error) { u.damage = cmp.Or(u.damage, err) }

// apply makes edits part of what the log has.
func (u *upstream) apply(edits []edit) {
	if len(u.places) == 0 {
		u.places = make(map[string]place, len(edits))
	}
	for _, e := range edits {
		old := u.places[e.key] // zero if there is none
		u.sum, u.live = u.sum-old.sum, u.live-int64(old.size)
		if e.gone {
			delete(u.places, e.key)
			continue
		}
		u.places[e.key] = e.to
		u.sum, u.live = u.sum+e.to.sum, u.live+int64(e.to.size)
	}
}

// commit takes in a commit, which has the numbers of resources and revisions.
func (u *upstream) commit(b []byte, at, size int64) {
	c := &statepb.Commit{}
	if err := proto.Unmarshal(b, c); err != nil {
		u.broken(corruptf("byte %d: %v", at, err))
	}
	u.ledger, u.end = cmp.Or(c.Ledger, &statepb.Ledger{}), at+size
	l := u.ledger
	if u.lost = uint64(len(u.places)) != l.Count || u.sum != l.Digest; u.lost {
		u.broken(corruptf("it has %d resources where %d were written, or others", len(u.places), l.Count))
	}
	if c.Chapter != nil {
		u.rows = append(u.rows, row{decodeTime(c.Chapter.Time), at, size, int64(c.Chapter.UndoBytes)})
	}
	u.rows = u.rows[len(u.rows)-int(min(revisions(l), uint64(len(u.rows)))):]
}

// revisions returns the number of revisions that a ledger has.
func revisions(l *statepb.Ledger) uint64 {
	if l.Oldest == 0 || l.Oldest > l.Newest {
		return 0
	}
	return l.Newest - l.Oldest + 1
}

// kept describes what the log has.
func (u *upstream) kept() state.Kept {
	return state.Kept{Meta: decodeMeta(u.ledger), Records: len(u.places), Sum: u.sum, Revisions: len(u.rows)}
}

// inOrder returns the places as they follow one another in the log.
func (u *upstream) inOrder() []place {
	return slices.SortedFunc(maps.Values(u.places), func(a, b place) int { return cmp.Compare(a.at, b.at) })
}

// asOf returns what the log had up to a place, where a commit ends.
func (u *upstream) asOf(end int64) (*upstream, error) {
	was := newUpstream(u.name, u.from)
	was.replay(end, end)
	if was.damage == nil && was.end != end {
		was.damage = corruptf("byte %d is not the end of a revision", end)
	}
	return was, was.damage
}

// records reads the resources at some places, as many at a time as there are CPUs. It tells what is
// wrong with those that this version of the relay does not take, by key.
func records(from io.ReaderAt, end int64, places []place) (out []state.Record, bad map[string]error, err error) {
	out, bad = make([]state.Record, len(places)), map[string]error{}
	var mu sync.Mutex // of bad
	var group errgroup.Group
	part := max(len(places)/runtime.GOMAXPROCS(0)+1, minPart)
	for first := 0; first < len(places); first += part {
		group.Go(func() error {
			r, d := &reader{from: from, size: end}, &decoder{}
			for i := first; i < min(first+part, len(places)); i++ {
				f, err := r.frame(places[i].at)
				if err != nil {
					return err
				}
				if out[i], err = d.record(f.key, f.record, f.data); err != nil {
					out[i] = state.Record{}
					mu.Lock()
					bad[string(f.key)] = err
					mu.Unlock()
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	return slices.DeleteFunc(out, func(r state.Record) bool { return r.Resource == nil }), bad, nil
}

// history reads the revisions, the newest first.
func (u *upstream) history() ([]state.Revision, error) {
	r := &reader{from: u.from, size: u.end}
	out := make([]state.Revision, len(u.rows))
	for i, row := range u.rows {
		f, err := r.frame(row.at)
		c := &statepb.Commit{}
		if err == nil {
			err = proto.Unmarshal(f.record, c)
		}
		if err != nil {
			return nil, err
		}
		out[len(out)-1-i] = decodeRevision(u.ledger.Oldest+uint64(i), c.Chapter)
	}
	return out, nil
}

// historySize is what a log has because of its history, in bytes.
func historySize(rows []row) (n int64) {
	for i, r := range rows {
		n += r.size
		if i > 0 {
			n += r.replaced
		}
	}
	return n
}

// garbage reports whether the log has so much garbage that it must be rewritten.
func (u *upstream) garbage() bool {
	return u.end > 2*(headLen+u.live+historySize(u.rows))+minGarbage && u.end >= u.tired
}

// rewrite writes what is needed of a log into a file: the resources as of the oldest revision that
// is kept, and then all changes.
func (u *upstream) rewrite(to *os.File) error {
	w := newWriter(newUpstream(u.name, nil), to)
	oldest, tail := u, u.end
	if len(u.rows) > 0 {
		var err error
		if oldest, err = u.asOf(u.rows[0].at + u.rows[0].size); err != nil {
			return err
		}
		tail = u.rows[0].at
	}
	r := &reader{from: u.from, size: u.end}
	for _, p := range oldest.inOrder() {
		if _, err := w.copy(r, p.at); err != nil {
			return err
		}
	}
	if len(u.rows) == 0 {
		l := proto.CloneOf(u.ledger)
		l.Oldest = 0
		if _, err := w.addCommit(&statepb.Commit{Ledger: l}); err != nil {
			return err
		}
	}
	for at := tail; at < u.end; {
		size, err := w.copy(r, at)
		if err != nil {
			return err
		}
		at += int64(size)
	}
	return w.finish()
}

// sync makes what was appended durable. Until it returns, the head tells where the log ended
// before.
func (u *upstream) sync() error {
	if _, err := u.file.WriteAt(encodeHead(u.end), 0); err != nil {
		return err
	}
	if err := u.file.Sync(); err != nil {
		u.suspect = true // what is in the file now need not be on the disk, ever
		return fmt.Errorf("%s: %w", u.file.Name(), withoutPath(err))
	}
	return nil
}
