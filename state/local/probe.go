package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"meshrelay/state"
)

// Probe reports what keeps a relay of this user from using a directory: trouble has an error for each
// file that it can not open, and inUse tells that another process has the directory. It reads no file,
// changes nothing and waits for nobody: a relay that starts meanwhile waits for it. Without the
// directory there is no trouble.
func Probe(dir string) (trouble []error, inUse bool) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if _, _, bad := judgeDir(dir); err == nil {
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
		f, _, err := openOwn(filepath.Join(dir, e.Name()), flag, 0)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // else a relay has removed it since
				trouble = append(trouble, err)
			}
			continue
		}
		if e.Name() == lockName {
			inUse = errors.Is(tryLock(f, syscall.LOCK_SH), state.ErrInUse)
		}
		f.Close()
	}
	return trouble, inUse
}

// accessOf returns how a relay opens a file in its directory. It replaces those that it only reads.
func accessOf(name string) (flag int, used bool) {
	switch {
	case name == lockName, name == journalName, upstreamOf(name) != "":
		return os.O_RDWR, true
	case name == indexName, name == oldName, name == oldJournalName:
		return os.O_RDONLY, true
	}
	return 0, false
}
