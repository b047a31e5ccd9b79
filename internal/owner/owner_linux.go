package owner

import (
	"io/fs"
	"syscall"
)

// Of returns the user and the group that a file belongs to, where that is known.
func Of(info fs.FileInfo) (uid, gid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
