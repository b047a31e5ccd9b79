package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/semaphore"

	"meshrelay/internal/fswatch"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

const (
	maxFileBytes = 16 << 20
	// maxReading bounds the bytes of the files that all sources read and parse at the same time,
	// but for files of up to freeBytes.
	maxReading   = 2 * maxFileBytes
	freeBytes    = 1 << 20
	turnWait     = 30 * time.Second // of a large file for others
	scanAttempts = 5                // of a path that is replaced while it is read
)

// scanner keeps the last good content of each file of a source. One goroutine uses it.
type scanner struct {
	source string
	files  map[string]*content // by path
	// busy: the last scan left out files that were being written, or read perhaps half of them.
	busy bool
	// changed: the last scan found something else than the one before.
	changed bool
	now     func() time.Time
	read    func(path string) (data []byte, written time.Time, err error)
	// turn bounds the bytes of large files that are read at the same time.
	turn *semaphore.Weighted
	// helpers bounds the goroutines that help to read.
	helpers *semaphore.Weighted
	// ended, unless nil, is closed when the rest is to be left out.
	ended <-chan struct{}
}

func newScanner(source string) *scanner {
	return &scanner{source: source, files: map[string]*content{}, now: time.Now, read: readBounded, turn: semaphore.NewWeighted(maxReading), helpers: newHelpers()}
}

// newHelpers returns a bound that keeps all CPUs busy with one scanner.
func newHelpers() *semaphore.Weighted {
	return semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0) - 1))
}

// over reports whether the rest is to be left out.
func (s *scanner) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// clean reports whether the last scan read all files, to the end, and without mistakes.
func (s *scanner) clean() bool {
	for _, f := range s.files {
		if !f.whole {
			return false
		}
	}
	return !s.busy
}

// content is what a file has.
type content struct {
	digest xxh3.Uint128 // of the text that was read last
	// documents are those of the text, by digest, so that none is parsed again.
	documents map[xxh3.Uint128]*kube.Document
	// good is the last good content, with lines of the file.
	good []kube.Located
	// whole: good is all of a file without mistakes.
	whole    bool
	problems []intake.Refusal // at most kube.MaxProblems
	total    int              // of problems
	// seen and left are the bytes that were looked at, and those that were left out.
	seen, left int
	// writtenSince is since when the file is being written, zero when it is not.
	writtenSince time.Time
}

// scan reads all files again. When the path itself can not be read, scan fails and leaves
// everything as it was. It also fails when the path is replaced again and again while it is
// read: half of one version and half of the next look like deletions.
func (s *scanner) scan(root string) error {
	for range scanAttempts {
		found, err := listFiles(root)
		if err != nil {
			return err
		}
		next, gone, busy := s.readAll(found)
		again, err := listFiles(root)
		if err != nil {
			return err
		}
		if !found.replacedBy(again, gone) {
			s.changed = s.busy || busy || !maps.Equal(s.files, next)
			s.files, s.busy = next, busy
			return nil
		}
	}
	return fmt.Errorf("%s changes again and again while it is read: find the program that writes there", root)
}

// readAll returns the content of all files that were found, by path, the files that have gone
// since, and whether any is being written.
func (s *scanner) readAll(found *listing) (next map[string]*content, gone []string, busy bool) {
	next = make(map[string]*content, len(found.files))
	for i, r := range s.readFiles(found.files) {
		path := found.files[i]
		if errors.Is(r.err, fs.ErrNotExist) {
			gone = append(gone, path)
			continue
		}
		next[path], busy = r.content, busy || r.busy
	}
	// An unreadable directory is not gone.
	for _, lost := range slices.Sorted(maps.Keys(found.unreadable)) {
		next[lost] = s.files[lost].unreadable(lost, found.unreadable[lost])
		for path, last := range s.files {
			if strings.HasPrefix(path, lost+string(os.PathSeparator)) {
				next[path] = last
			}
		}
	}
	return next, gone, busy
}

// reading is what readFile returns.
type reading struct {
	content *content
	busy    bool
	err     error
}

// readFiles reads files, several at the same time. A panic goes on in this goroutine.
func (s *scanner) readFiles(paths []string) []reading {
	all := make([]reading, len(paths))
	var at atomic.Int64
	var panicked atomic.Pointer[mirror.Panic]
	read := func() {
		defer func() {
			if p := mirror.Recovered(recover()); p != nil {
				panicked.Store(p)
			}
		}()
		for i := at.Add(1) - 1; i < int64(len(paths)) && panicked.Load() == nil; i = at.Add(1) - 1 {
			r := &all[i]
			r.content, r.busy, r.err = s.readFile(paths[i])
		}
	}
	var group sync.WaitGroup
	for n := 1; n < len(paths) && s.helpers.TryAcquire(1); n++ {
		group.Go(func() {
			defer s.helpers.Release(1)
			read()
		})
	}
	read()
	group.Wait()
	if p := panicked.Load(); p != nil {
		panic(p)
	}
	return all
}

// readFile returns the content of a file, and whether it is being written. The error is that there
// is none. A large file is read and parsed in turn with those of all sources.
func (s *scanner) readFile(path string) (c *content, busy bool, err error) {
	info, err := os.Stat(path)
	if err == nil && s.over() {
		return &content{left: int(info.Size())}, false, nil
	}
	if err == nil && info.Size() > freeBytes {
		size := min(info.Size(), maxFileBytes)
		ctx, cancel := context.WithTimeout(context.Background(), turnWait)
		err := s.turn.Acquire(ctx, size)
		cancel()
		if err == nil { // else those before hang, on a mount without its server perhaps
			defer s.turn.Release(size)
		}
	}
	last := s.files[path]
	data, written, err := s.read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, err
	case err != nil:
		return last.unreadable(path, err), false, nil
	case s.beingWritten(last, data, written):
		return last, true, nil
	}
	return s.parse(path, data, last), last == nil && s.now().Sub(written) < fswatch.Quiet, nil
}

// beingWritten reports whether a file that was read before is being written right now: many
// programs empty a file and then fill it, which looks like a deletion in between. After a while,
// a file that never rests counts as it is.
func (s *scanner) beingWritten(last *content, data []byte, written time.Time) bool {
	now := s.now()
	if last == nil || now.Sub(written) >= fswatch.Quiet || last.digest == xxh3.Hash128(data) {
		return false
	}
	if last.writtenSince.IsZero() {
		last.writtenSince = now
	}
	return now.Sub(last.writtenSince) < fswatch.Longest
}

func readBounded(path string) (data []byte, written time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	if info.Size() <= maxFileBytes { // a larger file is not read at all
		var b bytes.Buffer
		b.Grow(int(info.Size()) + bytes.MinRead) // io.ReadAll would take three times the size
		if _, err = b.ReadFrom(io.LimitReader(f, maxFileBytes+1)); err != nil {
			return nil, written, err
		}
		data = b.Bytes()
		if info, err = f.Stat(); err != nil { // it may be written while it is read
			return nil, written, err
		}
	}
	if max(int(info.Size()), len(data)) > maxFileBytes {
		return nil, written, fmt.Errorf("larger than %d MiB: split it into several files", maxFileBytes>>20)
	}
	return data, info.ModTime(), nil
}

// unreadable returns the content of a file that can not be read any more. c may be nil.
func (c *content) unreadable(path string, err error) *content {
	next := &content{}
	if c != nil {
		next.good, next.whole = c.good, c.whole
	}
	next.refuse(path, 0, kube.Problem{Reason: fmt.Sprintf("can not be read, its last content is served: %v", err)})
	return next
}

// parse returns the content of a file after reading data from it. last may be nil.
func (s *scanner) parse(path string, data []byte, last *content) *content {
	digest := xxh3.Hash128(data)
	if last != nil && last.digest == digest && last.documents != nil {
		last.writtenSince = time.Time{}
		return last
	}
	next := &content{digest: digest, documents: map[xxh3.Uint128]*kube.Document{}}
	good, bad := []kube.Located{}, false
	kube.SplitDocuments(data, func(text []byte, line int) {
		if s.over() {
			next.left += len(text)
			return
		}
		next.seen += len(text)
		key := xxh3.Hash128(text)
		doc := next.documents[key]
		if doc == nil && last != nil {
			doc = last.documents[key]
		}
		if doc == nil {
			doc = kube.ParseDocument(text, s.source)
		}
		next.documents[key] = doc
		for _, r := range doc.Resources {
			good = append(good, kube.Located{Resource: r.Resource, Line: line + r.Line})
		}
		for _, p := range doc.Problems {
			next.refuse(path, line, p)
			bad = bad || !p.Foreign
		}
		next.total += doc.MoreProblems
	})
	switch {
	case !bad:
		next.good, next.whole = good, true
	case last == nil:
		next.good = good
	case last.whole:
		next.good, next.whole = last.good, true
	default:
		// The file never was without mistakes, so that its good documents count; the last
		// good content of a document stays when that turns bad.
		next.good = union(good, last.good)
	}
	return next
}

func union(now, before []kube.Located) []kube.Located {
	have := make(map[mirror.Key]bool, len(now))
	for _, r := range now {
		have[r.Key()] = true
	}
	for _, r := range before {
		if !have[r.Key()] {
			now = append(now, r)
		}
	}
	return now
}

// refuse notes a problem of a document that begins on a line, from 1, or of the file.
func (c *content) refuse(path string, line int, p kube.Problem) {
	if c.total++; len(c.problems) >= kube.MaxProblems {
		return
	}
	where := path
	if line > 0 {
		where = fmt.Sprintf("%s:%d", path, line+p.Line)
	}
	if p.What != "" {
		where += " " + p.What
	}
	c.problems = append(c.problems, intake.Refusal{Resource: where, Reason: p.Reason})
}

// merge returns the resources of all files by key, and what is wrong with the files: the first
// problems, and their total. Of two resources with one key it takes the first, in the order of
// paths and documents.
func (s *scanner) merge() (merged map[mirror.Key]*mirror.Resource, problems []intake.Refusal, total int) {
	merged = map[mirror.Key]*mirror.Resource{}
	type place struct {
		path string
		line int
	}
	first := map[mirror.Key]place{}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[path]
		problems = append(problems, f.problems...)
		total += f.total
		for _, r := range f.good {
			key := r.Key()
			if merged[key] == nil {
				merged[key], first[key] = r.Resource, place{path, r.Line}
				continue
			}
			if total++; len(problems) < maxRefused {
				problems = append(problems, intake.Refusal{
					Resource: fmt.Sprintf("%s:%d %s", path, r.Line, key),
					Reason:   fmt.Sprintf("is in %s:%d already, which is kept: remove or rename one of them", first[key].path, first[key].line),
				})
			}
		}
	}
	return merged, problems[:min(len(problems), maxRefused)], total
}
