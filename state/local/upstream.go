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

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"meshrelay/internal/owner"
	"meshrelay/state"
	"meshrelay/state/local/statepb"
)

const (
	// minGrowth is the number of bytes by which a log grows at least before it is rewritten.
	minGrowth = 1 << 20
	// minPart is the least number of resources that a goroutine decodes.
	minPart = 500
)

// place is where a log has the frame of a resource. It is zero for none.
type place struct {
	at          int64
	size        int
	sum, digest uint64
}

// edit is a change of one place.
type edit struct {
	key string
	to  place
}

// row is a revision of the history.
type row struct {
	at, size int64 // of the commit
	batch    int64 // size of the changes and the commit
}

// upstream is the log of one upstream.
type upstream struct {
	name string
	from io.ReaderAt
	// file is from, and info is its state when it was opened; nil for a log in memory. The runtime
	// closes the file when nobody refers to it any more, so that readers need no file of their own.
	file *os.File
	info os.FileInfo

	// places are the resources as of the last commit, live is their size in bytes, and sum is the sum
	// of their checksums.
	places map[string]place
	live   int64
	sum    uint64
	ledger *statepb.Ledger // of the last commit
	rows   []row           // the revisions, the oldest first
	end    int64           // of the last commit
	base   int64           // size after the last rewrite of this process

	// damage is the first error of the log. After it, the history is unusable. lost is set when the
	// resources are unusable, too.
	damage error
	lost   bool
	// suspect is set when the last batch may or may not be durable.
	suspect bool
}

// openUpstream opens and reads the log of an upstream. Without the right to write, it opens the log for
// reading.
func openUpstream(dir, name string) (*upstream, error) {
	path := filepath.Join(dir, logName(name))
	f, info, err := owner.Open(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		f, info, err = owner.Open(path, os.O_RDONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	u := readUpstream(name, f, info.Size())
	u.file, u.info = f, info
	return u, nil
}

// readUpstream reads a log. It notes errors in damage and lost.
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
		u.broken(corruptf("it ends at byte %d instead of %d", u.end, durable))
	}
	if n := revisions(u.ledger); n != uint64(len(u.rows)) {
		u.broken(corruptf("it has %d revisions instead of %d", len(u.rows), n))
	}
	if u.damage != nil {
		u.rows = nil
	}
	return u
}

func newUpstream(name string, from io.ReaderAt) *upstream {
	return &upstream{name: name, from: from, places: map[string]place{}, ledger: &statepb.Ledger{}, end: headLen}
}

// replay reads the frames of a log. A broken frame before durable is damage. replay continues after it,
// because later frames may have every present resource.
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
			edits = append(edits, edit{string(f.key), f.place(at)})
		default:
			u.apply(edits)
			edits = edits[:0]
			u.commit(f.record, at, int64(f.size))
		}
		at += int64(f.size)
	}
}

// broken notes the first error of the log.
func (u *upstream) broken(err error) { u.damage = cmp.Or(u.damage, err) }

// apply applies edits to the places.
func (u *upstream) apply(edits []edit) {
	if len(u.places) == 0 {
		u.places = make(map[string]place, len(edits))
	}
	for _, e := range edits {
		old := u.places[e.key]
		u.sum += e.to.sum - old.sum
		u.live += int64(e.to.size - old.size)
		if e.to == (place{}) {
			delete(u.places, e.key)
		} else {
			u.places[e.key] = e.to
		}
	}
}

// commit reads a commit, and compares its counts and sums with the log.
func (u *upstream) commit(b []byte, at, size int64) {
	c := &statepb.Commit{}
	if err := proto.Unmarshal(b, c); err != nil {
		u.broken(corruptf("byte %d: %v", at, err))
	}
	before := u.end
	u.ledger, u.end = cmp.Or(c.Ledger, &statepb.Ledger{}), at+size
	l := u.ledger
	if u.lost = uint64(len(u.places)) != l.Count || u.sum != l.Digest; u.lost {
		u.broken(corruptf("it has %d resources instead of %d, or others", len(u.places), l.Count))
	}
	if c.Revision != nil {
		u.rows = append(u.rows, row{at, size, u.end - before})
	}
	u.rows = u.rows[len(u.rows)-int(min(revisions(l), uint64(len(u.rows)))):]
}

// revisions returns the number of revisions in a ledger.
func revisions(l *statepb.Ledger) uint64 {
	if l.Oldest == 0 || l.Oldest > l.Newest {
		return 0
	}
	return l.Newest - l.Oldest + 1
}

// kept summarizes the log.
func (u *upstream) kept() state.Kept {
	return state.Kept{Meta: decodeMeta(u.ledger), Records: len(u.places), Sum: u.sum}
}

// inOrder returns the places in the order of the log.
func (u *upstream) inOrder() []place {
	return slices.SortedFunc(maps.Values(u.places), func(a, b place) int { return cmp.Compare(a.at, b.at) })
}

// asOf returns the log up to an offset, at which a commit has to end.
func (u *upstream) asOf(end int64) (*upstream, error) {
	was := newUpstream(u.name, u.from)
	was.replay(end, end)
	if was.damage == nil && was.end != end {
		was.damage = corruptf("no revision ends at byte %d", end)
	}
	return was, was.damage
}

// load reads the resources at some places, in as many goroutines as there are CPUs.
func (u *upstream) load(places []place) (state.Saved, error) {
	records, bad := make([]state.Record, len(places)), make([]error, len(places))
	var group errgroup.Group
	part := max(len(places)/runtime.GOMAXPROCS(0)+1, minPart)
	for first := 0; first < len(places); first += part {
		group.Go(func() error {
			r, d := &reader{from: u.from, size: u.end}, newDecoder()
			for i := first; i < min(first+part, len(places)); i++ {
				f, err := r.frame(places[i].at)
				if err != nil {
					return err
				}
				if records[i], err = d.record(f.key, f.record, f.data); err != nil {
					bad[i] = fmt.Errorf("%q: %w", f.key, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return state.Saved{}, err
	}
	return state.Saved{
		Meta: decodeMeta(u.ledger), Revision: u.ledger.Newest,
		Records:  slices.DeleteFunc(records, func(r state.Record) bool { return r.Resource == nil }),
		Unusable: slices.DeleteFunc(bad, func(err error) bool { return err == nil }),
	}, nil
}

// history returns the revisions, the newest first.
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
		out[len(out)-1-i] = decodeRevision(u.ledger.Oldest+uint64(i), c.Revision)
	}
	return out, nil
}

// isDue reports whether the log has doubled since its last rewrite, so that it is time for the next.
func (u *upstream) isDue() bool { return u.end > 2*max(u.base, u.live)+minGrowth }

// rewrite writes a log without garbage into a file: the resources as of the oldest revision, and the changes since.
// Of the changes of a key between two revisions it keeps the last one.
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
		f, err := r.frame(p.at)
		if err == nil {
			err = w.put(f, false, &state.Revision{})
		}
		if err != nil {
			return err
		}
	}
	if len(u.rows) == 0 {
		l := proto.CloneOf(u.ledger)
		l.Oldest = 0
		if _, err := w.commit(l, nil); err != nil {
			return err
		}
	}
	rows, last := u.rows, map[string]int64{} // offsets of the last changes since the revision before
	for tail < u.end {
		f, err := r.frame(tail)
		if err != nil {
			return err
		}
		next := tail + int64(f.size)
		revises := len(rows) > 0 && rows[0].at == tail
		switch {
		case len(f.key) > 0:
			last[string(f.key)] = tail
		case revises || next >= u.end:
			if err := w.copy(r, append(slices.Sorted(maps.Values(last)), tail)); err != nil {
				return err
			}
			clear(last)
		}
		if revises {
			rows = rows[1:]
		}
		tail = next
	}
	return w.finish()
}

// sync makes an appended batch durable. It first writes the offset of the batch into the head.
func (u *upstream) sync() error {
	if _, err := u.file.WriteAt(encodeHead(u.end), 0); err != nil {
		return err
	}
	if err := u.file.Sync(); err != nil {
		u.suspect = true // the system may never write the changed pages
		return fmt.Errorf("%s: %w", u.file.Name(), owner.WithoutPath(err))
	}
	return nil
}
