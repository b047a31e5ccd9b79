package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// ErrOthers is the error for a directory or file that other users could have written.
var ErrOthers = errors.New("other users could have written its content, so the relay does not use it: set a directory that belongs to the relay's user")

// ClaimDir returns an error unless only trusted users can write to a directory. If the directory
// belongs to this user, ClaimDir first removes the write permission of others: Kubernetes volumes are
// writable by a group. It returns a note if the directory belongs to another user, the only writer.
func ClaimDir(dir string) (note string, err error) {
	note, open, err := CheckDir(dir)
	if err == nil && open != 0 && os.Chmod(dir, open&^0o022) != nil {
		err = fmt.Errorf("others can write to directory %s (%v): %w", dir, open.Perm(), ErrOthers)
	}
	return note, err
}

// CheckDir is ClaimDir without a change. For a directory of this user to which others can write, it
// returns the mode of the directory, otherwise zero.
func CheckDir(dir string) (note string, open fs.FileMode, err error) {
	if err := checkLink(dir); err != nil {
		return "", 0, err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", 0, err
	}
	uid, gid := Of(info)
	perm := info.Mode().Perm()
	switch {
	case !info.IsDir():
		return "", 0, fmt.Errorf("%s is not a directory", dir)
	case !Trusts(uid) && perm&0o022 != 0:
		return "", 0, fmt.Errorf("directory %s belongs to user %d, the relay is user %d, and others can write to it (%v): %w", dir, uid, os.Geteuid(), perm, ErrOthers)
	case !Trusts(uid):
		return fmt.Sprintf("directory %s belongs to user %d, who can change what a restart serves, and the relay is user %d", dir, uid, os.Geteuid()), 0, nil
	case perm&0o022 == 0:
		return "", 0, nil
	case info.Mode()&fs.ModeSticky != 0 && perm&0o002 != 0: // a shared directory, such as /tmp
		return "", 0, fmt.Errorf("everybody can write to directory %s (%v): %w", dir, perm, ErrOthers)
	case uid == os.Geteuid():
		return "", info.Mode(), nil
	case perm&0o002 != 0 || !ownGroup(gid):
		return "", 0, fmt.Errorf("others can write to directory %s (%v), which belongs to root: %w", dir, perm, ErrOthers)
	}
	return "", 0, nil // this process is in the group of the volume
}

// checkLink returns an error if a path is a link of an untrusted user.
func checkLink(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return err
	}
	if uid, _ := Of(info); !Trusts(uid) {
		return fmt.Errorf("%s is a link of user %d, and the relay is user %d: %w", path, uid, os.Geteuid(), ErrOthers)
	}
	return nil
}

func ownGroup(gid int) bool {
	groups, err := os.Getgroups()
	return gid == os.Getegid() || err == nil && slices.Contains(groups, gid)
}
