package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"meshrelay/internal/owner"
	"meshrelay/state"
)

// Names in a directory of state.
const (
	indexName = "relay.state"
	lockName  = "relay.lock"

	logPrefix, logSuffix = "upstream-", ".state"

	asideMark = ".corrupt-" // then the time
	// maxSetAside is the number of files that are kept set aside, for each name.
	maxSetAside = 3
)

// lockPatience is how long to wait for another process to unlock a directory, and lockPoll how often
// to try.
const (
	lockPatience = time.Second
	lockPoll     = 25 * time.Millisecond
)

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

// setAside gives a file another name, and removes the oldest files that were set aside before. The
// caller replaces the file, or removes it. Without the file it does nothing.
func (s *Store) setAside(name string, why error) error {
	path := filepath.Join(s.dir, name)
	to := path + asideMark + time.Now().UTC().Format("20060102T150405.000000Z")
	// A link keeps the first name until the caller replaces it, so that a kill loses nothing.
	err := os.Link(path, to)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(path, to) // the file system may have no links
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s can not be set aside: %w", path, owner.WithoutPath(err))
	}
	s.log.Error("state file set aside", "path", to, "err", why)
	old := list(s.dir, name+asideMark+"*")
	for _, path := range old[:max(len(old)-maxSetAside, 0)] {
		if err := os.Remove(path); err != nil {
			s.log.Warn("old state file not removed", "path", path, "err", err)
		}
	}
	return owner.SyncDir(s.dir)
}

// list returns the sorted paths of the files in a directory whose names match a pattern.
func list(dir, pattern string) (found []string) {
	entries, _ := os.ReadDir(dir) // a missing directory has none
	for _, e := range entries {
		if ok, _ := filepath.Match(pattern, e.Name()); ok {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

// lockDir locks a directory for this process. The lock is a file of its own, because the others are
// replaced.
func lockDir(dir string) (*os.File, error) {
	f, _, err := owner.Open(LockPath(dir), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock(f, syscall.LOCK_EX, lockPatience); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, nil
}

// checkUse fails with ErrInUse when another process has locked a directory. It keeps no lock, and so no
// relay from starting: a log can be read while a relay appends to it.
func checkUse(dir string) error {
	f, _, err := owner.Open(LockPath(dir), os.O_RDONLY, 0)
	if err != nil {
		return nil //nolint:nilerr // without the file nobody has a lock
	}
	defer f.Close()
	if err := lock(f, syscall.LOCK_SH, lockPatience); errors.Is(err, state.ErrInUse) {
		return err
	}
	return nil
}

// lock locks a file until it is closed. It tries for the time of patience, and at least once.
func lock(f *os.File, how int, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(deadline) {
			return state.ErrInUse
		}
	}
}
