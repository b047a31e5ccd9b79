package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.etcd.io/bbolt"
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
		if err := putServed(tx, saved != nil && saved.stillServed()); err != nil {
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
	f, err := openOwn(path, os.O_RDONLY, 0)
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
	f, err := openOwn(path, os.O_WRONLY|os.O_TRUNC, 0o600)
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
