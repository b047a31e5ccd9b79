package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"meshrelay/internal/owner"
	"meshrelay/state"
)

// Probe reports what would keep a relay of this user from using a directory: trouble has an error for each
// file that it can not open, and inUse is set when another process has locked the directory. Probe reads
// and changes no file, and does not wait. A missing directory is no trouble.
func Probe(dir string) (trouble []error, inUse bool) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if _, _, bad := owner.CheckDir(dir); err == nil {
		err = bad
	}
	if err != nil {
		return []error{err}, false
	}
	for _, e := range entries {
		flag, used := accessOf(e.Name())
		if !used {
			continue
		}
		f, _, err := owner.Open(filepath.Join(dir, e.Name()), flag, 0)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // a relay may have removed it since
				trouble = append(trouble, err)
			}
			continue
		}
		if e.Name() == lockName {
			inUse = errors.Is(lock(f, syscall.LOCK_SH, 0), state.ErrInUse)
		}
		f.Close()
	}
	return trouble, inUse
}

// accessOf returns how a relay opens a file of its directory. The files that it only reads, it replaces.
func accessOf(name string) (flag int, used bool) {
	switch {
	case name == lockName, name == journalName, upstreamOf(name) != "":
		return os.O_RDWR, true
	case name == indexName, name == oldJournalName:
		return os.O_RDONLY, true
	}
	return 0, false
}
