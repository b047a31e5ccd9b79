package state

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
)

// withoutPath returns an error without the path in it, for paths that are others each time:
// the error is to be the same.
func withoutPath(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		return link.Err
	}
	return err
}

func (k *Keeper) newTemp() (string, error) {
	f, err := os.CreateTemp(k.dir, tempPrefix+"*") // with mode 0600
	if err != nil {
		return "", fmt.Errorf("no file can be made in %s: %w", k.dir, withoutPath(err))
	}
	return f.Name(), f.Close()
}

// setAside renames the file, so that somebody can look at it, and removes the oldest of those
// that were before.
func (k *Keeper) setAside(kind string, why error, saved *contents) error {
	base := k.path + "." + kind + "-" + time.Now().UTC().Format("20060102T150405.000000Z")
	name := base
	for i := 2; ; i++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			break
		}
		name = fmt.Sprintf("%s-%03d", base, i)
	}
	// A second name, where the file system has that: the first one goes with the rename of what
	// takes its place, and a kill in between loses nothing.
	err := os.Link(k.path, name)
	if err != nil {
		err = os.Rename(k.path, name)
	}
	if err != nil {
		return fmt.Errorf("%s can not be set aside: %w", k.path, withoutPath(err))
	}
	n := 0
	if saved != nil {
		n = len(saved.sources)
	}
	k.log.Error("state file set aside, and a new one begun", "path", name, "err", why, "upstreamsSaved", n)
	old := k.findAside(kind)
	for _, path := range old[:max(len(old)-maxSetAside, 0)] {
		if err := os.Remove(path); err != nil {
			k.log.Warn("a state file that was set aside can not be removed", "path", path, "err", err)
		}
	}
	k.lookAside()
	return syncDir(k.dir)
}

// asideEvery is how often it is looked which files that were set aside are there still.
const asideEvery = 10 * time.Second

// lookAside notes which files are set aside. Status only tells: a disk that hangs must not
// make those hang that ask how the relay is.
func (k *Keeper) lookAside() {
	found := slices.Concat(k.findAside(asideCorrupt), k.findAside(asideUnknown))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.aside, k.asideSeen = found, time.Now()
}

// findAside returns the files that were set aside, the oldest first.
func (k *Keeper) findAside(kind string) []string {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil
	}
	var found []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fileName+"."+kind+"-") {
			found = append(found, filepath.Join(k.dir, e.Name()))
		}
	}
	slices.Sort(found) // their names are times
	return found
}

// removeTemps removes what was left behind by a relay that was killed.
func (k *Keeper) removeTemps() {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			os.Remove(filepath.Join(k.dir, e.Name())) //nolint:errcheck // it is tried again at the next start
		}
	}
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

// lockDir makes the state this process's. The lock is a file of its own, because the state
// file is replaced now and then: a lock on one that was replaced would keep nobody out.
func (k *Keeper) lockDir() error {
	if k.lockFile != nil {
		return nil
	}
	f, err := openOwn(filepath.Join(k.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lock(f, syscall.LOCK_EX); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	k.lockFile = f
	return nil
}

func (k *Keeper) unlockDir() {
	if k.lockFile != nil {
		k.lockFile.Close()
		k.lockFile = nil
	}
}
