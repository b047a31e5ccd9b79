package upstreams

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"meshrelay/mirror"
)

// ReadFiles reads a file, or every YAML and JSON file below a directory, as a file
// source does. Problems are what is wrong with single documents; an error says that
// the path can not be read at all.
func ReadFiles(path, source string) (resources []*mirror.Resource, problems []Refusal, err error) {
	s := scanner{source: source, files: map[string]*parsed{}}
	if err := s.scan(path); err != nil {
		return nil, nil, err
	}
	merged, problems := s.merge()
	for _, r := range merged {
		resources = append(resources, r)
	}
	slices.SortFunc(resources, func(a, b *mirror.Resource) int {
		if c := mirror.CompareKinds(a.Kind(), b.Kind()); c != 0 {
			return c
		}
		return strings.Compare(a.FullName(), b.FullName())
	})
	return resources, problems, nil
}

// scanner keeps the last good content of each file of a source.
type scanner struct {
	source string
	files  map[string]*parsed // by path
	dirs   []string           // that were found, for watching
}

// scan reads all files again. When the path itself can not be read it fails and
// leaves everything as it was.
func (s *scanner) scan(root string) error {
	paths, dirs, err := configFiles(root)
	if err != nil {
		return err
	}
	s.dirs = dirs
	next := make(map[string]*parsed, len(paths))
	for _, path := range paths {
		now, err := readFile(path, s.source)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since it was listed
		}
		if err != nil {
			now = &parsed{}
			now.problem(path, 1, "", "%v", err)
		}
		if last := s.files[path]; last != nil && len(now.problems) > 0 && len(last.resources) > 0 {
			// The last good content of the file stays in force.
			now.resources, now.lines = last.resources, last.lines
		}
		next[path] = now
	}
	s.files = next
	return nil
}

// merge returns the resources of all files by key. Of a key that comes twice the
// first is kept, in the order of paths and documents.
func (s *scanner) merge() (map[mirror.Key]*mirror.Resource, []Refusal) {
	resources := map[mirror.Key]*mirror.Resource{}
	first := map[mirror.Key]string{}
	var problems []Refusal
	paths := make([]string, 0, len(s.files))
	for path := range s.files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		f := s.files[path]
		problems = append(problems, f.problems...)
		for i, r := range f.resources {
			key, where := r.Key(), fmt.Sprintf("%s:%d", path, f.lines[i])
			if at, taken := first[key]; taken {
				problems = append(problems, Refusal{Resource: where + " " + key.String(), Reason: "is in " + at + " already, which is kept"})
				continue
			}
			first[key], resources[key] = where, r
		}
	}
	return resources, problems
}

// configFiles lists the files to read and the directories to watch. Names that begin
// with a dot are left out: editors' and, in a mounted ConfigMap, the versions behind
// the links.
func configFiles(root string) (files, dirs []string, err error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, nil, err
	}
	if !info.IsDir() {
		return []string{root}, []string{filepath.Dir(root)}, nil
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			if path == root {
				return err
			}
			return nil // gone, or not ours to read, since its directory was listed
		case path != root && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			dirs = append(dirs, path)
			return nil
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".yaml", ".yml", ".json":
		default:
			return nil
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			files = append(files, path)
		}
		return nil
	})
	return files, dirs, err
}
