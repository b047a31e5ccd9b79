package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// maxFiles bounds the files and directories of a source.
	maxFiles = 100_000
	// maxFileDepth bounds how deep directories are nested.
	maxFileDepth = 64
)

// listing is what there is to read at a path.
type listing struct {
	files []string // sorted
	dirs  []string // to be watched
	// unreadable are the directories and files that can not be read, and why. They are not
	// gone.
	unreadable map[string]error

	// These tell whether the path was replaced since: root and what was there, the real
	// paths behind links, and entries that were gone before they were looked at.
	root   string
	info   fs.FileInfo
	links  map[string]string
	missed []string
}

// listFiles lists the files to read at a path: the file, or all *.yaml, *.yml and *.json
// files below the directory. It leaves out names that begin with a dot: those of editors and,
// in a mounted ConfigMap, the versions behind the links. It fails when root itself can not be
// read.
func listFiles(root string) (*listing, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	l := &lister{seen: map[string]bool{}, watched: map[string]bool{}, listing: listing{
		unreadable: map[string]error{}, root: root, info: info, links: map[string]string{},
	}}
	switch {
	case info.Mode().IsRegular():
		l.files = []string{root}
		l.behind(root)
	case !info.IsDir():
		return nil, fmt.Errorf("%s is neither a file nor a directory", root)
	default:
		if err := l.dir(root, 0); err != nil {
			return nil, err
		}
	}
	slices.Sort(l.files)
	return &l.listing, nil
}

// replaced reports whether the path is another one since the listing was made, so that the
// files that were read may be of two versions. A file that was deleted, or added, does not
// count. gone are the files that were listed and then not found. It fails when there is
// nothing at the root any more.
func (l *listing) replaced(gone []string) (bool, error) {
	info, err := os.Stat(l.root)
	if err != nil {
		return false, err
	}
	if !os.SameFile(info, l.info) {
		return true, nil
	}
	for path, was := range l.links {
		real, err := filepath.EvalSymlinks(path)
		if err == nil && real != was {
			return true, nil
		}
		// A link that has lost what it led to is about to lead to something else.
		if _, link := os.Lstat(path); err != nil && link == nil {
			return true, nil
		}
	}
	for _, path := range slices.Concat(gone, l.missed) {
		if _, err := os.Stat(path); err == nil {
			return true, nil // it is back
		}
	}
	return false, nil
}

type lister struct {
	listing
	seen    map[string]bool // real paths of directories: links may go in circles
	watched map[string]bool // what is in dirs
}

func (l *lister) dir(path string, depth int) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if l.seen[real] {
		return nil
	}
	l.seen[real] = true
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	l.watch(path)
	l.watch(real)
	l.linked(path, real)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := l.entry(filepath.Join(path, e.Name()), e, depth); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) entry(path string, e fs.DirEntry, depth int) error {
	read := isRead(path)
	if !read && !e.IsDir() && e.Type()&fs.ModeSymlink == 0 {
		return nil
	}
	if len(l.files)+len(l.dirs) >= maxFiles {
		return fmt.Errorf("more than %d files and directories: name a directory that has only resources", maxFiles)
	}
	info, err := os.Stat(path) // through links
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// gone since it was listed, or a link to what is gone
		l.missed = append(l.missed, path)
	case err != nil:
		l.unreadable[path] = err
	case info.IsDir() && depth >= maxFileDepth:
		l.unreadable[path] = fmt.Errorf("directories are nested deeper than %d", maxFileDepth)
	case info.IsDir():
		if err := l.dir(path, depth+1); errors.Is(err, fs.ErrNotExist) {
			l.missed = append(l.missed, path)
		} else if errors.Is(err, fs.ErrPermission) {
			l.unreadable[path] = err
		} else if err != nil {
			return err
		}
	case read && info.Mode().IsRegular():
		l.files = append(l.files, path)
		if e.Type()&fs.ModeSymlink != 0 {
			l.behind(path)
		}
	}
	return nil
}

// behind adds the directory of a file that a link leads to, to be watched.
func (l *lister) behind(path string) {
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		l.watch(filepath.Dir(real))
		l.linked(path, real)
	}
}

func (l *lister) linked(path, real string) {
	if real != path {
		l.links[path] = real
	}
}

func (l *lister) watch(dir string) {
	if !l.watched[dir] {
		l.watched[dir] = true
		l.dirs = append(l.dirs, dir)
	}
}

func isRead(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
