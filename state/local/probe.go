package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"meshrelay/internal/owner"
)

// Probe reports why a relay of this user could not use a directory: trouble has an error for each file that
// can not be opened, and inUse is set when another process has locked the directory. Probe reads and
// changes no file, and does not wait. A missing directory is no trouble.
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
		flag := os.O_RDWR
		switch name := e.Name(); {
		case name == indexName, name == oldJournalName:
			flag = os.O_RDONLY // a relay replaces it
		case name != lockName && name != journalName && upstreamOf(name) == "":
			continue
		}
		f, _, err := owner.Open(filepath.Join(dir, e.Name()), flag, 0)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // a relay may have removed it since
				trouble = append(trouble, err)
			}
			continue
		}
		f.Close()
	}
	return trouble, checkUse(dir, 0) != nil
}
