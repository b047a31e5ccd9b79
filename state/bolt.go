package state

import (
	"errors"
	"runtime/debug"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

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
		OpenFile: openOwn,
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
