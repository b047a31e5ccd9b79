// Package owner tells whether a file or directory is this process's own: whether others, root
// aside, could have put something else in its place. It must not know what the file is for.
package owner

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Trusts reports whether what belongs to a user is as good as ours: it is ours or root's.
func Trusts(uid int) bool { return uid == os.Geteuid() || uid == 0 }

// CheckAncestors returns an error when everybody can write to a directory on the way to a path,
// through links too, and so put another file or directory in its place. A directory with the
// sticky bit, such as /tmp, keeps what belongs to others. Groups are not looked at: volumes of
// Kubernetes belong to that of the pod.
func CheckAncestors(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := checkAncestors(path); err != nil {
		return err
	}
	// What links lead through counts as well.
	real, err := filepath.EvalSymlinks(path)
	if err != nil || real == path {
		return nil //nolint:nilerr // what is not there yet is no link
	}
	return checkAncestors(real)
}

func checkAncestors(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("everybody can write to directory %s (%v), which %s is in", dir, info.Mode().Perm(), path)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
