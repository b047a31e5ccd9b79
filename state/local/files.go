package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// lockPatience is how long to wait for another process to unlock a directory.
const lockPatience = time.Second

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

// setAside gives a damaged file a second name, and removes the oldest of such files. The caller replaces
// the file, or removes it.
func (s *Store) setAside(name string, why error) error {
	path := filepath.Join(s.dir, name)
	to := path + asideMark + time.Now().UTC().Format("20060102T150405.000000Z")
	// A link keeps the first name until the caller replaces it, so that a kill loses nothing.
	err := os.Link(path, to)
	if err != nil {
		err = os.Rename(path, to) // the file system may have no links
	}
	if err != nil {
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
func list(dir, pattern string) []string {
	names, _ := fs.Glob(os.DirFS(dir), pattern) // a missing directory has none
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// checkUse fails with ErrInUse when another process has locked a directory. It keeps no lock, so that a
// relay can start: a log can be read while a relay appends to it.
func checkUse(dir string, patience time.Duration) error {
	f, err := owner.Lock(LockPath(dir), false, patience)
	if errors.Is(err, state.ErrInUse) {
		return err
	}
	f.Close() // without effect on nil: without the file nobody has a lock
	return nil
}
