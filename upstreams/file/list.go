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
	maxFiles     = 100_000 // files and directories of a source
	maxFileDepth = 64      // of nested directories
)

var (
	errTooMany = fmt.Errorf("more than %d files and directories: name a directory that has only resources", maxFiles)
	errTooDeep = fmt.Errorf("directories are nested deeper than %d", maxFileDepth)
)

// listing has the files to read below a path.
type listing struct {
	path string
	// within is the directory that the path led to, nil for a file. Everything is read through it, so that no
	// link leads out of it. The user of the listing closes it.
	within *os.Root

	root  fs.FileInfo
	files []string            // sorted
	dirs  map[string]struct{} // to watch
	// unreadable has the errors of files and directories that can not be read. They do not count as
	// deleted.
	unreadable map[string]error
	// real has the real path of each directory and link, empty for a broken link.
	real map[string]string

	seen map[string]bool // real paths of directories: links may form a circle
}

// listFiles lists the files to read at a path: the file, or all *.yaml, *.yml and *.json files
// below the directory. It skips names that begin with a dot: files of editors, and the versions
// behind the links of a mounted ConfigMap. It fails when it can not read the path itself.
func listFiles(root string) (*listing, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	l := &listing{path: root, root: info, dirs: map[string]struct{}{}, unreadable: map[string]error{}, real: map[string]string{}, seen: map[string]bool{}}
	switch {
	case info.Mode().IsRegular():
		l.files = []string{root}
		l.link(root)
		return l, nil
	case !info.IsDir():
		return nil, fmt.Errorf("%s is neither a file nor a directory", root)
	}
	if l.within, err = os.OpenRoot(root); err != nil {
		return nil, err
	}
	if l.root, err = l.within.Stat("."); err == nil { // the path may lead elsewhere by now
		err = l.dir(root, 0)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	slices.Sort(l.files)
	return l, nil
}

// open opens a listed file.
func (l *listing) open(path string) (*os.File, error) {
	if l.within == nil {
		return os.Open(path)
	}
	return l.within.Open(l.inside(path))
}

// inside returns a listed path as seen from the directory.
func (l *listing) inside(path string) string {
	rel, _ := filepath.Rel(l.path, path) // both begin alike
	return rel
}

func (l *listing) close() {
	if l.within != nil {
		l.within.Close()
	}
}

// replacedBy reports whether a path leads elsewhere in the next listing. The files may then have
// been read from two versions. Added and deleted files do not count. gone are listed files that
// could not be found.
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
	entries, err := fs.ReadDir(l.within.FS(), filepath.ToSlash(l.inside(path)))
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
	info, err := l.within.Stat(l.inside(path)) // through links
	switch {
	case err != nil && link && !errors.Is(err, fs.ErrNotExist):
		if out, failed := os.Stat(path); failed == nil && !isRead(path) && !out.IsDir() {
			return nil // nothing that would be read
		}
		err = fmt.Errorf("%w: links must be relative and stay in %s", err, l.path)
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
		l.real[path] = "" // deleted since, or a broken link
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
