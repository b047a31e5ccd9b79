package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Open opens a regular file. It follows no link and does not wait for a pipe. It fails with ErrOthers
// unless the file belongs to a trusted user, or to the owner of its directory.
func Open(path string, flag int, perm fs.FileMode) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, perm)
	if errors.Is(err, syscall.ELOOP) {
		return nil, nil, fmt.Errorf("%s is a link, and the relay does not follow links here: %w", path, ErrOthers)
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a file", path)
	case !trusted(path, info):
		uid, _ := Of(info)
		err = fmt.Errorf("%s belongs to user %d, and the relay is user %d: %w", path, uid, os.Geteuid(), ErrOthers)
	default:
		return f, info, nil
	}
	f.Close()
	return nil, nil, err
}

func trusted(path string, info fs.FileInfo) bool {
	uid, _ := Of(info)
	if Trusts(uid) {
		return true
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return false
	}
	of, _ := Of(dir)
	return of == uid
}

// Replace writes a file with mode 0600 and makes it durable under a path. Until then, the path keeps
// its former file. A killed process leaves a temporary file: its path with ".tmp-" and digits.
func Replace(path string, write func(f *os.File) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+TempSuffix+"*")
	if err != nil {
		return fmt.Errorf("can not create a file in %s: %w", dir, WithoutPath(err))
	}
	defer os.Remove(f.Name()) // after the rename, the file does not exist
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("new file in %s: %w", dir, WithoutPath(err))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("%s: %w", path, WithoutPath(err))
	}
	return SyncDir(dir)
}

// TempSuffix follows the name of a file in the names of its temporary files.
const TempSuffix = ".tmp-"

// WithoutPath returns an error without its path, because the random name of a temporary file would
// give the same mistake a new text each time.
func WithoutPath(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

// SyncDir makes the renames and removals in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems do not support or need syncing a directory.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}
