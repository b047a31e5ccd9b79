package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"meshrelay/internal/owner"
)

// file appends whole lines to a file, and begins a new file before one gets too large. The former ones have
// the numbers from 1 after their name, the newest first.
type file struct {
	path     string
	maxBytes int64
	maxFiles int // including the one that is written

	open *os.File // nil: not open
	info fs.FileInfo
	size int64
	torn bool // the file ends within a line
}

// append writes lines. It returns the size of the whole lines that were written before an error. With durable,
// they are on the disk when it returns.
func (f *file) append(lines []byte, durable bool) (n int, err error) {
	if err := f.ready(int64(len(lines))); err != nil {
		return 0, err
	}
	if f.torn { // by a crash
		if _, err := f.open.Write([]byte("\n")); err != nil {
			return 0, f.failed(err)
		}
		f.size, f.torn = f.size+1, false
	}
	n, err = f.open.Write(lines)
	if err != nil {
		n = bytes.LastIndexByte(lines[:n], '\n') + 1
		return n, f.failed(errors.Join(err, f.open.Truncate(f.size+int64(n))))
	}
	f.size += int64(n)
	if durable {
		if err := f.open.Sync(); err != nil {
			return n, f.failed(err)
		}
	}
	return n, nil
}

// failed closes the file, so that the next attempt looks at it anew, and returns err.
func (f *file) failed(err error) error {
	f.close()
	return err
}

func (f *file) close() {
	if f.open != nil {
		f.open.Close()
		f.open = nil
	}
}

// ready opens the file, again if another one is at its path, and makes room for more bytes.
func (f *file) ready(more int64) error {
	if info, err := os.Lstat(f.path); f.open != nil && (err != nil || !os.SameFile(info, f.info)) {
		f.close()
	}
	if err := f.begin(); err != nil {
		return err
	}
	if f.size == 0 || f.size+more <= f.maxBytes {
		return nil
	}
	f.close()
	if err := f.rotate(); err != nil {
		return fmt.Errorf("no new file: %w", err)
	}
	return f.begin()
}

// begin opens the file if it is not open. It makes a missing file, and its directory.
func (f *file) begin() error {
	if f.open != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	open, info, err := openPrivate(f.path, os.O_CREATE)
	if err != nil {
		return err
	}
	last := []byte("\n")
	if info.Size() > 0 {
		_, err = open.ReadAt(last, info.Size()-1)
	}
	if info.Mode().Perm() != 0o600 {
		err = errors.Join(err, open.Chmod(0o600))
	}
	if err != nil {
		open.Close()
		return err
	}
	f.open, f.info, f.size, f.torn = open, info, info.Size(), last[0] != '\n'
	return nil
}

// openPrivate opens a file if only the relay's user and root can write to its directory.
func openPrivate(path string, flag int) (*os.File, fs.FileInfo, error) {
	dir := filepath.Dir(path)
	note, shared, err := owner.CheckDir(dir)
	switch {
	case err != nil:
		return nil, nil, err
	case note != "":
		return nil, nil, errors.New(note)
	case shared != 0:
		return nil, nil, fmt.Errorf("others can write to directory %s (%v): take that permission from them", dir, shared.Perm())
	}
	return owner.Open(path, os.O_RDWR|os.O_APPEND|flag, 0o600)
}

// Probe returns why a Log could not write to a file that exists. It changes nothing.
func Probe(path string) error {
	f, _, err := openPrivate(path, 0)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rotate gives each former file the next number, and the file the number 1. It removes those above maxFiles.
func (f *file) rotate() error {
	former := func(i int) string { return fmt.Sprintf("%s.%d", f.path, i) }
	for i := f.maxFiles - 1; os.Remove(former(i)) == nil; i++ { // more, if maxFiles was larger
	}
	for i := f.maxFiles - 2; i > 0; i-- {
		if err := os.Rename(former(i), former(i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(f.path, former(1))
}

// stream appends lines to a stream, such as the standard output.
type stream struct{ io.Writer }

func (s stream) append(lines []byte, _ bool) (n int, err error) {
	n, err = s.Write(lines)
	if err != nil {
		n = bytes.LastIndexByte(lines[:n], '\n') + 1
	}
	return n, err
}

func (stream) close() {}
