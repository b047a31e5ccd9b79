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
	maxFiles     = 100_000 // and directories of a source
	maxFileDepth = 64      // of nested directories
)

var (
	errTooMany = fmt.Errorf("more than %d files and directories: name a directory that has only resources", maxFiles)
	errTooDeep = fmt.Errorf("directories are nested deeper than %d", maxFileDepth)
)

// listing has the files to read below a root.
type listing struct {
	root  fs.FileInfo
	files []string            // sorted
	dirs  map[string]struct{} // to be watched
	// unreadable has the errors of directories and files that can not be read. They are not gone.
	unreadable map[string]error
	// real has the path behind each directory and link, empty for a link that leads nowhere.
	real map[string]string

	seen map[string]bool // real paths of directories: links may go in circles
}

// listFiles lists the files to read at a path: the file, or all *.yaml, *.yml and *.json files below
// the directory. It leaves out names that begin with a dot: those of editors and, in a mounted
// ConfigMap, the versions behind the links. It fails when the path itself can not be read.
func listFiles(root string) (*listing, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	l := &listing{root: info, dirs: map[string]struct{}{}, unreadable: map[string]error{}, real: map[string]string{}, seen: map[string]bool{}}
	switch {
	case info.Mode().IsRegular():
		l.files = []string{root}
		l.link(root)
	case !info.IsDir():
		return nil, fmt.Errorf("%s is neither a file nor a directory", root)
	default:
		if err := l.dir(root, 0); err != nil {
			return nil, err
		}
	}
	slices.Sort(l.files)
	return l, nil
}

// replacedBy reports whether a path is another one in the next listing, so that the files that were
// read may be of two versions. Files that were only added or deleted do not count. gone are the
// listed files that were not found.
func (l *listing) replacedBy(next *listing, gone []string) bool {
	if !os.SameFile(l.root, next.root) {
		return true
	}
	for path, was := range l.real {
		if is, listed := next.real[path]; listed && is != was {
			return true
		}
		if was == "" {
			gone = append(gone, path)
		}
	}
	return slices.ContainsFunc(gone, func(path string) bool {
		_, back := slices.BinarySearch(next.files, path)
		return back
	})
}

func (l *listing) dir(path string, depth int) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	l.real[path] = real
	if l.seen[real] {
		return nil
	}
	l.seen[real] = true
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	l.dirs[path], l.dirs[real] = struct{}{}, struct{}{}
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

func (l *listing) entry(path string, e fs.DirEntry, depth int) error {
	link := e.Type()&fs.ModeSymlink != 0
	if !isRead(path) && !e.IsDir() && !link {
		return nil
	}
	if len(l.files)+len(l.dirs) >= maxFiles {
		return errTooMany
	}
	info, err := os.Stat(path) // through links
	switch {
	case err != nil || !info.IsDir():
	case depth >= maxFileDepth:
		err = errTooDeep
	default:
		if err = l.dir(path, depth+1); errors.Is(err, errTooMany) {
			return err
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.real[path] = "" // gone since it was listed, or a link to what is gone
	case err != nil:
		l.unreadable[path] = err
	case isRead(path) && info.Mode().IsRegular():
		l.files = append(l.files, path)
		if link {
			l.link(path)
		}
	}
	return nil
}

func (l *listing) link(path string) {
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		l.real[path], l.dirs[filepath.Dir(real)] = real, struct{}{}
	}
}

func isRead(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
