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
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

const (
	maxFileBytes = 16 << 20
	// maxReading limits the bytes that all sources read and parse at the same time. Files of up to
	// freeBytes do not count.
	maxReading = 2 * maxFileBytes
	freeBytes  = 1 << 20
	turnWait   = 30 * time.Second // longest wait of a large file for others
	// settle is the time between two equal listings of a path: then it is not being replaced.
	settle = 50 * time.Millisecond
)

// scanner keeps the last good content of each file of a source. It belongs to one goroutine.
type scanner struct {
	source string
	files  map[string]*content // by path
	// busy: in the last scan a program was writing to a file, which may have been read in part.
	busy bool
	// changed: the last scan found other content than the scan before.
	changed bool
	now     func() time.Time
	read    func(found *listing, path string) (data []byte, written time.Time, err error)
	// turn limits the bytes of large files that are read at the same time.
	turn *semaphore.Weighted
	// helpers limits the goroutines that help to read.
	helpers *semaphore.Weighted
	// ended, unless nil, is closed to skip the rest.
	ended <-chan struct{}
	// mixed: objects of kinds that the relay does not serve are no problems.
	mixed bool
}

func newScanner(source string) *scanner {
	return &scanner{source: source, files: map[string]*content{}, now: time.Now, read: readBounded, turn: semaphore.NewWeighted(maxReading), helpers: newHelpers()}
}

// newHelpers returns a limit that lets one scanner use all CPUs.
func newHelpers() *semaphore.Weighted {
	return semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0) - 1))
}

// clean reports whether the last scan read all files completely and without mistakes.
func (s *scanner) clean() bool {
	for _, f := range s.files {
		if !f.whole {
			return false
		}
	}
	return !s.busy
}

// content is the content of a file.
type content struct {
	digest xxh3.Uint128 // of the text as last read
	// documents has the parsed documents by the digest of their text, so that none is parsed twice.
	documents map[xxh3.Uint128]*kube.Document
	// good are the last good resources, with their lines.
	good []kube.Located
	// whole: good is everything in a file without mistakes.
	whole    bool
	problems []records.Refusal // at most kube.MaxProblems
	total    int               // number of problems
	// seen and left are the bytes that were read, and those that were skipped.
	seen, left int
	// writtenSince is when a program began to write the file, zero if none writes.
	writtenSince time.Time
}

// scan reads all files again. It fails, and changes nothing, when it can not read the path itself,
// or when the path is replaced all the time, for fswatch.Longest: half of one version and half of the
// next look like deletions.
func (s *scanner) scan(root string) error {
	for until := time.Now().Add(fswatch.Longest); time.Now().Before(until); {
		listed := time.Now()
		found, err := listFiles(root)
		if err != nil {
			return err
		}
		next, gone, busy := s.readAll(found)
		found.close()
		time.Sleep(settle - time.Since(listed))
		again, err := listFiles(root)
		if err != nil {
			return err
		}
		again.close()
		if !found.replacedBy(again, gone) {
			s.changed = s.busy || busy || !maps.Equal(s.files, next)
			s.files, s.busy = next, busy
			return nil
		}
	}
	return fmt.Errorf("%s changes again and again while it is read: find the program that writes there", root)
}

// readAll returns the content of the listed files by path, the files that have gone since, and
// whether a program is writing to any.
func (s *scanner) readAll(found *listing) (next map[string]*content, gone []string, busy bool) {
	next = make(map[string]*content, len(found.files))
	for i, r := range s.readFiles(found) {
		path := found.files[i]
		if errors.Is(r.err, fs.ErrNotExist) {
			gone = append(gone, path)
			continue
		}
		next[path], busy = r.content, busy || r.busy
	}
	// An unreadable directory does not count as deleted.
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

// reading is the result of readFile.
type reading struct {
	content *content
	busy    bool
	err     error
}

// readFiles reads several files at the same time. It repeats a panic in the calling goroutine.
func (s *scanner) readFiles(found *listing) []reading {
	paths := found.files
	all := make([]reading, len(paths))
	var at atomic.Int64
	var panicked atomic.Pointer[panics.Panic]
	read := func() {
		for i := at.Add(1) - 1; i < int64(len(paths)) && panicked.Load() == nil; i = at.Add(1) - 1 {
			r := &all[i]
			if p := panics.Try(func() { r.content, r.busy, r.err = s.readFile(found, paths[i]) }); p != nil {
				panicked.Store(p)
			}
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

// readFile returns the content of a file, and whether a program is writing to it. It fails if the
// file is gone. A large file waits for its turn among all sources.
func (s *scanner) readFile(found *listing, path string) (c *content, busy bool, err error) {
	info, err := os.Stat(path)
	if err == nil && mirror.IsClosed(s.ended) {
		return &content{left: int(info.Size())}, false, nil
	}
	if err == nil && info.Size() > freeBytes {
		size := min(info.Size(), maxFileBytes)
		ctx, cancel := context.WithTimeout(context.Background(), turnWait)
		err := s.turn.Acquire(ctx, size)
		cancel()
		if err == nil { // after turnWait it is read anyway: others may hang on a dead mount
			defer s.turn.Release(size)
		}
	}
	last := s.files[path]
	data, written, err := s.read(found, path)
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

// beingWritten reports whether a program is writing to a file that was read before. Many programs
// empty a file first, which looks like a deletion. A file that is written for ever is read after
// fswatch.Longest.
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

func readBounded(found *listing, path string) (data []byte, written time.Time, err error) {
	f, err := found.open(path)
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	if info.Size() <= maxFileBytes { // do not read a larger file at all
		var b bytes.Buffer
		b.Grow(int(info.Size()) + bytes.MinRead) // io.ReadAll would take three times the size
		if _, err = b.ReadFrom(io.LimitReader(f, maxFileBytes+1)); err != nil {
			return nil, written, err
		}
		data = b.Bytes()
		if info, err = f.Stat(); err != nil { // it may have grown during the reading
			return nil, written, err
		}
	}
	if max(int(info.Size()), len(data)) > maxFileBytes {
		return nil, written, fmt.Errorf("larger than %d MiB: split it into several files", maxFileBytes>>20)
	}
	return data, info.ModTime(), nil
}

// unreadable returns the content of a file that can not be read now: the last good one. c may be
// nil.
func (c *content) unreadable(path string, err error) *content {
	next := &content{}
	if c != nil {
		next.good, next.whole = c.good, c.whole
	}
	next.refuse(path, 0, kube.Problem{Reason: fmt.Sprintf("can not be read, its last content is served: %v", err)})
	return next
}

// parse returns the content of a file with this data. last may be nil.
func (s *scanner) parse(path string, data []byte, last *content) *content {
	digest := xxh3.Hash128(data)
	if last != nil && last.digest == digest && last.documents != nil {
		last.writtenSince = time.Time{}
		return last
	}
	next := &content{digest: digest, documents: map[xxh3.Uint128]*kube.Document{}}
	good, bad := []kube.Located{}, false
	kube.SplitDocuments(data, func(text []byte, line int) {
		if mirror.IsClosed(s.ended) {
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
			if !s.mixed || !p.Foreign {
				next.refuse(path, line, p)
			}
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
		// The file was never without mistakes: serve its good documents, and the last good content
		// of documents that have turned bad.
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

// refuse adds a problem of the file, or of a document that begins on a line, counted from 1.
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
	c.problems = append(c.problems, records.Refusal{Resource: where, Reason: p.Reason})
}

// merge returns the resources of all files by key, the first problems of the files, and the number
// of problems. Of two resources with one key, it takes the first, by path and then by document.
func (s *scanner) merge() (merged map[mirror.Key]*mirror.Resource, problems []records.Refusal, total int) {
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
				problems = append(problems, records.Refusal{
					Resource: fmt.Sprintf("%s:%d %s", path, r.Line, key),
					Reason:   fmt.Sprintf("is also in %s:%d, which is kept: remove or rename one of them", first[key].path, first[key].line),
				})
			}
		}
	}
	return merged, problems[:min(len(problems), maxRefused)], total
}
