package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"meshrelay/state"
)

// Names in a directory of state.
const (
	indexName  = "relay.state"
	lockName   = "relay.lock"
	oldName    = "relay.db" // of earlier releases
	tempPrefix = "relay.tmp-"

	logPrefix, logSuffix = "upstream-", ".state"

	asideCorrupt = "corrupt"
	asideUnknown = "unknown"
	// maxSetAside is how many files are kept that were set aside, of each name and kind.
	maxSetAside = 3
)

// lockPatience is how long to wait for another process to let go of a lock, and lockPoll how
// often to look.
const (
	lockPatience = time.Second
	lockPoll     = 25 * time.Millisecond
)

// errDisplaced is why a file that is whole, or of somebody else, is set aside.
var errDisplaced = errors.New("another one takes its place")

// logName returns the name of the log of an upstream.
func logName(upstream string) string { return logPrefix + upstream + logSuffix }

// upstreamOf is the inverse of logName, empty for another file.
func upstreamOf(path string) string {
	name, ok := strings.CutPrefix(filepath.Base(path), logPrefix)
	name, ok2 := strings.CutSuffix(name, logSuffix)
	if !ok || !ok2 || !state.IsName(name) {
		return ""
	}
	return name
}

// replaceFile writes a file that takes the place of another one, if there is one, when it is
// durable.
func replaceFile(path string, write func(f *os.File) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*") // with mode 0600
	if err != nil {
		return fmt.Errorf("no file can be made in %s: %w", dir, withoutPath(err))
	}
	defer os.Remove(f.Name()) //nolint:errcheck // usually it is gone
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("a new file in %s: %w", dir, withoutPath(err))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("%s: %w", path, withoutPath(err))
	}
	return syncDir(dir)
}

// withoutPath returns an error without the path in it, for temporary files: one mistake has one
// text, however often it is made.
func withoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

// setAside gives a file another name, so that somebody can look at it, and removes the oldest of
// those that were set aside before. The caller replaces the file, or removes it.
func (s *Store) setAside(name string, why error) error {
	kind := asideCorrupt
	if errors.Is(why, errNewer) || errors.Is(why, errDisplaced) {
		kind = asideUnknown
	}
	path := filepath.Join(s.dir, name)
	to := path + "." + kind + "-" + time.Now().UTC().Format("20060102T150405.000000Z")
	// A second name, where the file system has that: a kill before the replacement loses
	// nothing.
	err := os.Link(path, to)
	if err != nil {
		err = os.Rename(path, to)
	}
	if err != nil {
		return fmt.Errorf("%s can not be set aside: %w", path, withoutPath(err))
	}
	s.log.Error("state file set aside", "path", to, "err", why)
	old := list(s.dir, name+"."+kind+"-*")
	for _, path := range old[:max(len(old)-maxSetAside, 0)] {
		if err := os.Remove(path); err != nil {
			s.log.Warn("old corrupt state file not removed", "path", path, "err", err)
		}
	}
	return syncDir(s.dir)
}

// list returns the paths of the files in a directory whose names match one of the patterns.
func list(dir string, patterns ...string) (found []string) {
	entries, _ := os.ReadDir(dir) // without a directory there are none
	for _, e := range entries {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, e.Name()); return ok }) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

// syncDir makes renames in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems do not know that of directories, and have nothing to do.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}

// lockDir makes the directory this process's. The lock is a file of its own, because the other
// files are replaced now and then.
func lockDir(dir string) (*os.File, error) {
	f, _, err := openOwn(LockPath(dir), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, nil
}

// shareDir fails with ErrInUse when a relay has a directory. Without a lock file there is none.
// The lock is given up at once, so that it keeps no relay from starting: a log can be read while
// it is written to.
func shareDir(dir string) error {
	f, _, err := openOwn(LockPath(dir), os.O_RDONLY, 0)
	if err != nil {
		return nil //nolint:nilerr // nobody can have locked it
	}
	defer f.Close()
	if err := lock(f, syscall.LOCK_SH); errors.Is(err, state.ErrInUse) {
		return err
	}
	return nil
}

// lock takes a lock on an open file, and waits a little for another process to give it up. The
// lock ends with the closing of the file.
func lock(f *os.File, how int) error {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockPoll) {
		if err := tryLock(f, how); !errors.Is(err, state.ErrInUse) || time.Now().After(deadline) {
			return err
		}
	}
}

// tryLock is lock without waiting.
func tryLock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return state.ErrInUse
		case !errors.Is(err, syscall.EINTR):
			return err
		}
	}
}
