package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Contents is what a state file holds of one source.
type Contents struct {
	Name string
	Saved
	// Bytes is what the resources take in the file.
	Bytes int64
	// Revisions are the newest first.
	Revisions []Revision
}

// File is what a state file holds, as ReadFile has found it.
type File struct {
	Path string
	// Size is in bytes.
	Size int64
	// Format is the version of the file's format.
	Format int
	// Sources are sorted by name. Those that are damaged are not among them.
	Sources []Contents
	// Damage says what is wrong with the file, empty when nothing is.
	Damage string
}

// Path returns where the state is that is kept in a directory.
func Path(dir string) string { return filepath.Join(dir, fileName) }

// ReadFile reads a state file that no relay is writing to, and changes nothing. It fails
// with ErrInUse when a relay has it.
func ReadFile(path string) (*File, error) {
	data, err := readLocked(path)
	if err != nil {
		return nil, err
	}
	c, err := readFrom(bytes.NewReader(data), int64(len(data)), formatVersion)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	out := &File{Path: path, Size: c.size, Format: int(c.format)}
	if c.err != nil {
		out.Damage = c.err.Error()
	}
	for _, name := range sortedNames(c.sources) {
		k := c.sources[name]
		out.Sources = append(out.Sources, Contents{Name: name, Saved: k.saved(), Bytes: int64(k.bytes), Revisions: newestFirst(k.chapters)})
	}
	return out, nil
}

// readLocked returns all that is in a file, and keeps a relay that starts meanwhile waiting
// for no longer than that takes.
func readLocked(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := lock(f, syscall.LOCK_SH); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	size, err := sizeOf(f)
	if err != nil {
		return nil, err
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// lock takes a lock on an open file, waiting a little for another process to give it up.
// The lock ends with the file's closing.
func lock(f *os.File, how int) error {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return err
		case time.Now().After(deadline):
			return ErrInUse
		}
	}
}
