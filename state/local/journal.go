package local

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"meshrelay/internal/owner"
	"meshrelay/state"
)

// The journal is two files of lines. Lines are appended to the newer file. A full one replaces the older
// file.
const (
	journalName    = "events.log"
	oldJournalName = "events.old.log"
	maxJournal     = 8 << 20 // bytes of a file
)

// LoadJournal implements state.Store. It leaves out files that can not be read.
func (s *Store) LoadJournal() (lines [][]byte) {
	if !s.open {
		return nil
	}
	for _, name := range []string{oldJournalName, journalName} {
		for line := range bytes.Lines(s.readJournal(name)) {
			if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > 0 && len(line) <= state.MaxJournalLine {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func (s *Store) readJournal(name string) []byte {
	f, info, err := owner.Open(filepath.Join(s.dir, name), os.O_RDONLY, 0)
	if err == nil {
		defer f.Close()
		text := make([]byte, min(info.Size(), 2*maxJournal))
		_, err = f.ReadAt(text, max(info.Size()-2*maxJournal, 0)) // its end, if it is too long
		if err == nil || errors.Is(err, io.EOF) {
			return text
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("journal of events not read", "path", filepath.Join(s.dir, name), "err", err)
	}
	return nil
}

// AppendJournal implements state.Store. It ends a line that was cut off. After an error it restores the
// former size: the caller tries again, and parts of lines would fill the disk.
func (s *Store) AppendJournal(lines []byte) (err error) {
	path := filepath.Join(s.dir, journalName)
	f, info, err := owner.Open(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size := info.Size()
	if size > 0 && size+int64(len(lines)) > maxJournal {
		if err := os.Rename(path, filepath.Join(s.dir, oldJournalName)); err != nil {
			return err
		}
		return errors.Join(owner.SyncDir(s.dir), s.AppendJournal(lines))
	}
	if size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil || last[0] != '\n' {
			lines = append([]byte("\n"), lines...)
		}
	}
	if _, err = f.Write(lines); err == nil {
		err = f.Sync()
	}
	if err != nil {
		err = errors.Join(err, f.Truncate(size))
	}
	return err
}
