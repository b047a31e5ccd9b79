package local

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"meshrelay/state"
)

// The journal is two files of lines: the newer one is appended to, and takes the place of the older
// one when it is full.
const (
	journalName    = "events.log"
	oldJournalName = "events.old.log"
	maxJournal     = 8 << 20 // bytes of a file
)

// LoadJournal implements state.Store. Of a file that can not be read it returns nothing.
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
	f, info, err := openOwn(filepath.Join(s.dir, name), os.O_RDONLY, 0)
	if err == nil {
		defer f.Close()
		text := make([]byte, min(info.Size(), 2*maxJournal))
		_, err = f.ReadAt(text, max(info.Size()-2*maxJournal, 0)) // the newest, if somebody has made it long
		if err == nil || errors.Is(err, io.EOF) {
			return text
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("journal of events not read", "path", filepath.Join(s.dir, name), "err", err)
	}
	return nil
}

// AppendJournal implements state.Store. After a line that was cut off it begins a new one. When it fails,
// the file is as it was: the lines come again, and would fill the disk.
func (s *Store) AppendJournal(lines []byte) (err error) {
	if err := s.turnJournal(len(lines)); err != nil {
		return err
	}
	f, info, err := openOwn(filepath.Join(s.dir, journalName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if size := info.Size(); size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil || last[0] != '\n' {
			lines = append([]byte("\n"), lines...)
		}
	}
	if _, err = f.Write(lines); err == nil {
		err = f.Sync()
	}
	if err != nil {
		err = errors.Join(err, f.Truncate(info.Size()))
	}
	return err
}

// turnJournal makes the newer file the older one when it has no room for more bytes.
func (s *Store) turnJournal(more int) error {
	path := filepath.Join(s.dir, journalName)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() == 0 || info.Size()+int64(more) <= maxJournal:
		return nil
	}
	if err := os.Rename(path, filepath.Join(s.dir, oldJournalName)); err != nil {
		return err
	}
	return syncDir(s.dir)
}
