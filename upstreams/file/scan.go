package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/upstreams"
)

const (
	// maxFileBytes bounds a file of configs.
	maxFileBytes = 16 << 20
	// maxFileProblems bounds what is told of one file.
	maxFileProblems = 100
	// scanAttempts is how often a path that is replaced while it is read is read anew.
	scanAttempts = 5
)

// Read reads a file, or every YAML and JSON file below a directory, as a file
// source does, without watching it. Problems are what is wrong with single files and
// documents, at most a hundred for a file; an error says that the path can not be
// read at all. The resources are in the order in which they are to be sent.
func Read(path, source string) (resources []*mirror.Resource, problems []upstreams.Refusal, err error) {
	s := newScanner(source)
	if err := s.scan(path); err != nil {
		return nil, nil, err
	}
	merged, problems, _ := s.merge()
	for _, e := range merged {
		resources = append(resources, e.resource)
	}
	slices.SortFunc(resources, func(a, b *mirror.Resource) int {
		if c := mirror.CompareKinds(a.Kind(), b.Kind()); c != 0 {
			return c
		}
		return strings.Compare(a.FullName(), b.FullName())
	})
	return resources, problems, nil
}

// scanner keeps the last good content of each file of a source. It belongs to one
// goroutine.
type scanner struct {
	source string
	files  map[string]*fileState // by path
	now    func() time.Time
	read   func(path string) (data []byte, written time.Time, err error)
	// unsettled says that the last scan left out what was being written just then.
	unsettled bool
	// recent says that the last scan read what had been written just then, and perhaps not
	// to the end.
	recent bool
}

// clean reports whether the last scan read all files, to the end, and without mistakes.
func (s *scanner) clean() bool {
	for _, f := range s.files {
		if !f.wholly {
			return false
		}
	}
	return !s.unsettled && !s.recent
}

func newScanner(source string) *scanner {
	return &scanner{source: source, files: map[string]*fileState{}, now: time.Now, read: readBounded}
}

// fileState is what is known of a file.
type fileState struct {
	digest xxh3.Uint128 // of the text that was read last
	// documents are what that text says, by its digest: those whose text has not
	// changed are not parsed again.
	documents map[xxh3.Uint128]*document
	// inForce is the last good content.
	inForce []placed
	// wholly says that inForce is the whole content of a file without mistakes.
	wholly       bool
	problems     []upstreams.Refusal // at most maxFileProblems
	problemCount int
	// restless is since when the file is being written, zero when it is not.
	restless time.Time
}

// placed is a resource and the line of the file on which it begins.
type placed struct {
	*entry
	line int
}

// entry is a resource that a document and the content in force share.
type entry struct{ resource *mirror.Resource }

// scan reads all files again. When the path itself can not be read it fails and
// leaves everything as it was. So it does when the path is replaced while it is read:
// half of one version and half of the next would look like deletions.
func (s *scanner) scan(root string) error {
	for range scanAttempts {
		found, err := listFiles(root)
		if err != nil {
			return err
		}
		s.recent = false
		next, gone, unsettled := s.readAll(found)
		replaced, err := found.replaced(gone)
		if err != nil {
			return err
		}
		if !replaced {
			s.files, s.unsettled = next, unsettled
			return nil
		}
	}
	return fmt.Errorf("%s is replaced again and again while it is read: see what writes there", root)
}

// readAll returns the state of all files that were found, by path, those that were
// gone when they were to be read, and whether any is being written.
func (s *scanner) readAll(found *listing) (next map[string]*fileState, gone []string, unsettled bool) {
	next = make(map[string]*fileState, len(found.files))
	for _, path := range found.files {
		last := s.files[path]
		data, written, err := s.read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			gone = append(gone, path)
		case err != nil:
			next[path] = last.unreadable(path, err)
		case s.beingWritten(last, data, written):
			next[path], unsettled = last, true
		default:
			next[path] = s.parse(path, data, last)
			s.recent = s.recent || last == nil && s.now().Sub(written) < quiet
		}
	}
	// What can not be looked into is not gone.
	for _, lost := range slices.Sorted(maps.Keys(found.unreadable)) {
		next[lost] = s.files[lost].unreadable(lost, found.unreadable[lost])
		for path, last := range s.files {
			if strings.HasPrefix(path, lost+string(os.PathSeparator)) {
				next[path] = last
			}
		}
	}
	return next, gone, unsettled
}

// beingWritten reports whether a file that was read before is being written right now:
// many programs empty a file and then fill it, and what is read in between would look
// like a deletion. A file that never rests is taken as it is after a while.
func (s *scanner) beingWritten(last *fileState, data []byte, written time.Time) bool {
	now := s.now()
	if last == nil || now.Sub(written) >= quiet || last.digest == xxh3.Hash128(data) {
		return false
	}
	if last.restless.IsZero() {
		last.restless = now
	}
	return now.Sub(last.restless) < longest
}

// readBounded returns what is in a file and when that was written.
func readBounded(path string) (data []byte, written time.Time, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	if data, err = io.ReadAll(io.LimitReader(f, maxFileBytes+1)); err != nil {
		return nil, written, err
	}
	if len(data) > maxFileBytes {
		return nil, written, fmt.Errorf("larger than %d MiB: split it into several files", maxFileBytes>>20)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	return data, info.ModTime(), nil
}

// unreadable returns the state of a file that can not be read any more. f may be nil.
func (f *fileState) unreadable(path string, err error) *fileState {
	next := &fileState{}
	if f != nil {
		next.inForce, next.wholly = f.inForce, f.wholly
	}
	next.refuse(path, 0, problem{reason: fmt.Sprintf("can not be read, what it gave stays in force: %v", err)})
	return next
}

// parse returns the state of a file after reading data from it. last may be nil.
func (s *scanner) parse(path string, data []byte, last *fileState) *fileState {
	digest := xxh3.Hash128(data)
	if last != nil && last.digest == digest && last.documents != nil {
		last.restless = time.Time{}
		return last
	}
	next := &fileState{digest: digest, documents: map[xxh3.Uint128]*document{}}
	good, bad := []placed{}, false
	eachDocument(data, func(text []byte, line int) {
		key := xxh3.Hash128(text)
		doc := next.documents[key]
		if doc == nil && last != nil {
			doc = last.documents[key]
		}
		if doc == nil {
			doc = parseDocument(text, s.source)
		}
		next.documents[key] = doc
		for i, e := range doc.entries {
			good = append(good, placed{e, line + doc.lines[i]})
		}
		for _, p := range doc.problems {
			next.refuse(path, line, p)
			bad = bad || !p.foreign
		}
		next.problemCount += doc.moreProblems
	})
	switch {
	case !bad:
		next.inForce, next.wholly = good, true
	case last == nil:
		next.inForce = good
	case last.wholly:
		next.inForce, next.wholly = last.inForce, true
	default:
		// The file never was without mistakes, so that its good documents are in force;
		// what one of them gave stays when that turns bad.
		next.inForce = union(good, last.inForce)
	}
	return next
}

func union(now, before []placed) []placed {
	have := make(map[mirror.Key]bool, len(now))
	for _, p := range now {
		have[p.resource.Key()] = true
	}
	for _, p := range before {
		if !have[p.resource.Key()] {
			now = append(now, p)
		}
	}
	return now
}

func (f *fileState) refuse(path string, line int, p problem) {
	f.problemCount++
	if len(f.problems) >= maxFileProblems {
		return
	}
	where := path
	if line > 0 {
		where = fmt.Sprintf("%s:%d", path, line+p.line)
	}
	if p.what != "" {
		where += " " + p.what
	}
	f.problems = append(f.problems, upstreams.Refusal{Resource: where, Reason: p.reason})
}

// merge returns the resources of all files by key, and what is wrong with them: of
// total problems those that are kept. Of a key that comes twice the first is taken, in
// the order of paths and documents.
func (s *scanner) merge() (merged map[mirror.Key]*entry, problems []upstreams.Refusal, total int) {
	merged = map[mirror.Key]*entry{}
	type place struct {
		path string
		line int
	}
	first := map[mirror.Key]place{}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[path]
		problems = append(problems, f.problems...)
		total += f.problemCount
		duplicates := 0
		for _, p := range f.inForce {
			key := p.resource.Key()
			if at, taken := first[key]; taken {
				total++
				if duplicates++; duplicates <= maxFileProblems {
					problems = append(problems, upstreams.Refusal{
						Resource: fmt.Sprintf("%s:%d %s", path, p.line, key),
						Reason:   fmt.Sprintf("is in %s:%d already, which is kept: remove or rename one of them", at.path, at.line),
					})
				}
				continue
			}
			first[key], merged[key] = place{path, p.line}, p.entry
		}
	}
	return merged, problems, total
}
