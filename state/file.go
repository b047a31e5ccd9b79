package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	// maxSetAside is how many files of each kind are kept that were set aside.
	maxSetAside = 3
	tempPrefix  = fileName + ".tmp-"

	asideCorrupt = "corrupt"
	asideUnknown = "unknown"

	// compactAbove is the size of a file, in bytes, above which it is compacted at the start
	// if more than half of it is free, and compactStep what a transaction then copies.
	compactAbove = 64 << 20
	compactStep  = 4 << 20
	// mapped is what is reserved of the address space for the file. As long as it is larger
	// than the file, nobody who reads for long keeps the file from growing.
	mapped = 1 << 30
	// closePatience is how long a damaged file may take to be closed.
	closePatience = 2 * time.Second
)

// format is the format of files, and the way to it from those before.
type format struct {
	version uint64
	// steps lead from a version to the next. Each is part of one transaction for all.
	steps map[uint64]func(*bbolt.Tx) error
}

// currentFormat returns the format that this build writes. There has been no other yet, so
// that no step leads to it.
func currentFormat() format {
	return format{version: formatVersion, steps: map[uint64]func(*bbolt.Tx) error{}}
}

// openBolt opens a file that has been checked, or makes one.
func openBolt(path string) (db *bbolt.DB, err error) {
	options := &bbolt.Options{
		Timeout: lockPatience,
		// A hash map: the array becomes slow when much is free, as it is after much was
		// pruned.
		FreelistType: bbolt.FreelistMapType,
		// The list of free pages is written with each transaction, and checked with all else
		// when a file is read. Without it, bbolt goes through the file to find them, when it
		// opens and when a transaction fails, on a goroutine on which nobody could recover
		// from what a damaged file or disk makes of that.
		NoFreelistSync: false,
		// The page size of the file system's usual block, whatever the machine: a file can be
		// carried to another one.
		PageSize: 4096,
	}
	if strconv.IntSize == 64 {
		options.InitialMmapSize = mapped
	}
	err = guard(func() (err error) {
		db, err = bbolt.Open(path, 0o600, options)
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = ErrInUse
	}
	if err != nil {
		return nil, err
	}
	// With more address space than this reserved, a file grows in such steps. Small ones keep
	// it small, and one is still more than a flush usually needs.
	db.AllocSize = 1 << 20
	return db, nil
}

// guard calls f and returns as an error that bbolt panicked, or that the file could not be
// read through its memory map.
func guard(f func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			err = corruptf("%v", r)
		}
	}()
	return f()
}

// update is a transaction. bbolt's own Update reads the file once more when it panics, which
// may panic again, and then never gives up its lock.
func update(db *bbolt.DB, f func(tx *bbolt.Tx) error) error {
	return guard(func() error {
		tx, err := db.Begin(true)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // it only says that the transaction has ended
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// closeBolt closes a file. While somebody reads it, or when it is damaged, it is not certain
// that this ends soon: then it is left to itself.
func closeBolt(db *bbolt.DB) error {
	done := make(chan error, 1)
	go func() { done <- guard(db.Close) }()
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("the file can not be closed")
	}
}

// prepare sees to it that there is a whole file of the present format, and returns what is in
// it. What is there and is not one is set aside. The caller has the lock.
func (k *Keeper) prepare() (*contents, error) {
	k.removeTemps()
	c, err := readFile(k.path, k.format.version)
	if errors.Is(err, errOlder) {
		if c, err = k.upgrade(); err == nil && c == nil {
			c, err = readFile(k.path, k.format.version)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = k.create(nil, "", nil)
	case errors.Is(err, errNewer):
		err = k.create(nil, asideUnknown, err)
	case err != nil:
		return nil, err
	case c.err != nil:
		if err := k.create(c, asideCorrupt, c.err); err != nil {
			return c, err
		}
	default:
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	return readFile(k.path, k.format.version)
}

// create makes a new file, with what could be saved of the one that is there, which it sets
// aside as some kind for a reason.
func (k *Keeper) create(saved *contents, aside string, why error) error {
	temp, err := k.newTemp()
	if err != nil {
		return err
	}
	defer os.Remove(temp) //nolint:errcheck // usually it is gone
	if err := k.fill(temp, saved); err != nil {
		return fmt.Errorf("a new file in %s: %w", k.dir, withoutPath(err))
	}
	if aside != "" {
		if err := k.setAside(aside, why, saved); err != nil {
			return err
		}
	}
	if err := os.Rename(temp, k.path); err != nil {
		return err
	}
	return syncDir(k.dir)
}

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

// fill makes an empty file one of the present format, with what could be saved of another.
func (k *Keeper) fill(path string, saved *contents) (err error) {
	db, err := openBolt(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBolt(db)) }()
	return update(db, func(tx *bbolt.Tx) error {
		if err := putFormat(tx, k.format.version); err != nil {
			return err
		}
		if saved == nil {
			return nil
		}
		for _, name := range sortedNames(saved.sources) {
			s := saved.sources[name]
			b := &batch{name: name, meta: s.meta, after: s.newest}
			for i := range s.records {
				b.changes = append(b.changes, Change{s.records[i].Resource.Key(), &s.records[i]})
			}
			if _, _, err := k.newWriter().write(tx, b); err != nil {
				return err
			}
		}
		return nil
	})
}

func putFormat(tx *bbolt.Tx, version uint64) error {
	top, err := tx.CreateBucketIfNotExists([]byte(topBucket))
	if err != nil {
		return err
	}
	value := appendFormat(make([]byte, sumLen), version)
	seal([]byte(formatKey), value)
	if _, err := tx.CreateBucketIfNotExists([]byte(sourcesBucket)); err != nil {
		return err
	}
	return top.Put([]byte(formatKey), value)
}

// upgrade brings a file of an older format to the present one. It returns contents when the
// file is damaged.
func (k *Keeper) upgrade() (*contents, error) {
	version, damage, err := readFormat(k.path)
	if err != nil {
		return nil, err
	}
	if damage != nil {
		return &contents{err: damage}, nil //nolint:nilerr // it is in the contents
	}
	db, err := openBolt(k.path)
	if err != nil {
		return nil, err
	}
	err = update(db, func(tx *bbolt.Tx) error {
		for v := version; v < k.format.version; v++ {
			step := k.format.steps[v]
			if step == nil {
				return fmt.Errorf("no way leads from format %d to %d", v, v+1)
			}
			if err := step(tx); err != nil {
				return fmt.Errorf("from format %d to %d: %w", v, v+1, err)
			}
		}
		return putFormat(tx, k.format.version)
	})
	if err = errors.Join(err, closeBolt(db)); err != nil {
		return nil, fmt.Errorf("%s: upgrade: %w", k.path, err)
	}
	k.log.Info("state file upgraded", "path", k.path, "from", version, "to", k.format.version)
	return nil, nil
}

// readFormat returns the format of a file, and what is wrong with its structure.
func readFormat(path string) (version uint64, damage, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, nil, err
	}
	t, damage := openTree(f, info.Size())
	if damage != nil {
		return 0, damage, nil
	}
	c := &contents{}
	damage = t.walk(func(key, _ []byte, sub *bucket) error {
		if sub == nil {
			return nil
		}
		if string(key) != topBucket {
			return t.skipBucket(sub, maxTreeDepth)
		}
		if err := c.readTop(t, sub); !errors.Is(err, errNewer) && !errors.Is(err, errOlder) {
			return err
		}
		return nil
	})
	return c.format, damage, nil
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
	if err := os.Rename(k.path, name); err != nil {
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
	return syncDir(k.dir)
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
	f, err := os.OpenFile(filepath.Join(k.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
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

// compact writes the file anew when more than half of a large one is free.
func (k *Keeper) compact() {
	if k.db.Load() == nil || k.size < k.compactAbove || k.live*2 > k.size {
		return
	}
	start := time.Now()
	before := k.size
	if err := k.rewrite(); err != nil {
		k.log.Warn("state file not compacted; it is used as it is", "path", k.path, "err", err)
		if k.db.Load() == nil {
			k.failed(err)
		}
		return
	}
	k.log.Info("state file compacted", "path", k.path, "before", before, "after", k.size, "took", time.Since(start))
}

func (k *Keeper) rewrite() error {
	temp, err := k.newTemp()
	if err != nil {
		return err
	}
	defer os.Remove(temp) //nolint:errcheck // usually it is gone
	next, err := openBolt(temp)
	if err != nil {
		return err
	}
	next.NoSync = true // until the end
	err = guard(func() error { return bbolt.Compact(next, k.db.Load(), compactStep) })
	if err == nil {
		err = next.Sync()
	}
	if err = errors.Join(err, closeBolt(next)); err != nil {
		return err
	}
	if err := os.Rename(temp, k.path); err != nil {
		return err
	}
	if err := syncDir(k.dir); err != nil {
		return err
	}
	k.detach()
	return k.attach()
}

// rescue puts the file back that somebody has removed, or put another one in the place of,
// while it was in use.
func (k *Keeper) rescue() error {
	info, err := os.Stat(k.path)
	switch {
	case err == nil && os.SameFile(info, k.info):
		return nil
	case err == nil:
		err = errors.New("another file was put in the place of the state while it was in use")
	case !errors.Is(err, fs.ErrNotExist):
		return nil // that says nothing of the file
	default:
		err = errors.New("the state file was removed while it was in use")
	}
	k.log.Warn("state file written anew", "path", k.path, "err", err)
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	temp, err := k.newTemp()
	if err != nil {
		return err
	}
	defer os.Remove(temp) //nolint:errcheck // usually it is gone
	if err := k.copyTo(temp); err != nil {
		return err
	}
	k.detach()
	k.unlockDir() // the lock may be gone, too
	if err := k.lockDir(); err != nil {
		return err
	}
	if _, err := os.Lstat(k.path); err == nil {
		if err := k.setAside(asideUnknown, errors.New("it was put there while another one was in use"), nil); err != nil {
			return err
		}
	}
	if err := os.Rename(temp, k.path); err != nil {
		return err
	}
	if err := syncDir(k.dir); err != nil {
		return err
	}
	return k.attach()
}

// copyTo writes a copy of the file that is in use to an empty one.
func (k *Keeper) copyTo(path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = guard(func() error {
		return k.db.Load().View(func(tx *bbolt.Tx) error {
			_, err := tx.WriteTo(f)
			return err
		})
	})
	if err != nil {
		return err
	}
	return f.Sync()
}
