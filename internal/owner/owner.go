// Package owner checks who can write to a file or directory, and opens and replaces files that only
// this process's user and root can write to. It must not know the purpose of a file.
package owner

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Trusts reports whether a user is the user of this process, or root.
func Trusts(uid int) bool { return uid == os.Geteuid() || uid == 0 }

// Of returns the user and the group of a file.
func Of(info fs.FileInfo) (uid, gid int) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, -1 // nobody
	}
	return int(stat.Uid), int(stat.Gid)
}

// CheckAncestors returns an error if everybody can write to a directory above a path, with or without
// following its links, and so could replace the path. Directories with the sticky bit are safe.
// CheckAncestors ignores group permissions: Kubernetes volumes belong to the group of the pod.
func CheckAncestors(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path // a path that does not exist is not a link
	}
	for _, path := range []string{path, real} {
		for at, dir := path, filepath.Dir(path); dir != at; at, dir = dir, filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
				return fmt.Errorf("everybody can write to directory %s (%v), a parent of %s", dir, info.Mode().Perm(), path)
			}
		}
	}
	return nil
}
