package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"meshrelay/internal/owner"
)

// errNotOurs is of a directory or file in which others could have put what is there: it would
// be served before any upstream answers.
var errNotOurs = errors.New("others could have written what is there, and it is not used: make it a directory of the relay's own")

// checkDir returns an error when the directory is not ours and others can write to it. It returns a
// note when another user owns it and only that user can write to it. It takes the right to write
// to our own directory from others, as volumes of Kubernetes give it to a group.
func checkDir(dir string) (note string, err error) {
	note, open, err := judgeDir(dir)
	if err == nil && open != 0 && os.Chmod(dir, open&^0o022) != nil {
		err = fmt.Errorf("others can write to directory %s (%v): %w", dir, open.Perm(), errNotOurs)
	}
	return note, err
}

// judgeDir is checkDir without a change. open is the mode of a directory of ours that others can write to,
// and zero of all else.
func judgeDir(dir string) (note string, open fs.FileMode, err error) {
	if err := checkLink(dir); err != nil {
		return "", 0, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", 0, err
	}
	uid, gid := owner.Of(info)
	perm := info.Mode().Perm()
	switch {
	case !info.IsDir():
		return "", 0, fmt.Errorf("%s is not a directory", dir)
	case !owner.Trusts(uid) && perm&0o022 != 0:
		return "", 0, fmt.Errorf("directory %s belongs to user %d, the relay is user %d, and others can write to it (%v): %w", dir, uid, os.Geteuid(), perm, errNotOurs)
	case !owner.Trusts(uid):
		return fmt.Sprintf("directory %s belongs to user %d, who can change what a restart serves, and the relay is user %d", dir, uid, os.Geteuid()), 0, nil
	case perm&0o022 == 0:
		return "", 0, nil
	case info.Mode()&fs.ModeSticky != 0 && perm&0o002 != 0: // it is there to be shared
		return "", 0, fmt.Errorf("everybody can write to directory %s (%v): %w", dir, perm, errNotOurs)
	case uid == os.Geteuid():
		return "", info.Mode(), nil
	case perm&0o002 != 0 || !ownGroup(gid):
		return "", 0, fmt.Errorf("others can write to directory %s (%v), which belongs to root: %w", dir, perm, errNotOurs)
	}
	return "", 0, nil // a group of ours, as that of a volume
}

// checkLink returns an error when a path is a link that somebody else has made.
func checkLink(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return err
	}
	if uid, _ := owner.Of(info); !owner.Trusts(uid) {
		return fmt.Errorf("%s is a link of user %d, and the relay is user %d: %w", path, uid, os.Geteuid(), errNotOurs)
	}
	return nil
}

func ownGroup(gid int) bool {
	groups, err := os.Getgroups()
	return gid == os.Getegid() || err == nil && slices.Contains(groups, gid)
}

// openOwn opens a file in the directory of the state. It follows no link, and the file must be
// ours, root's, or of the owner of the directory.
func openOwn(path string, flag int, perm fs.FileMode) (*os.File, fs.FileInfo, error) {
	// Without O_NONBLOCK a named pipe would wait for its other end.
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, perm)
	if errors.Is(err, syscall.ELOOP) {
		return nil, nil, fmt.Errorf("%s is a link, and links are not followed: %w", path, errNotOurs)
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a file", path)
	case !ownFile(path, info):
		uid, _ := owner.Of(info)
		err = fmt.Errorf("%s belongs to user %d, and the relay is user %d: %w", path, uid, os.Geteuid(), errNotOurs)
	default:
		return f, info, nil
	}
	f.Close()
	return nil, nil, err
}

func ownFile(path string, info fs.FileInfo) bool {
	uid, _ := owner.Of(info)
	if owner.Trusts(uid) {
		return true
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return false
	}
	of, _ := owner.Of(dir)
	return of == uid
}
