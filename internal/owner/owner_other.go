//go:build !linux

package owner

import "io/fs"

// Of returns the user and the group that a file belongs to: not known on this system.
func Of(fs.FileInfo) (uid, gid int, known bool) { return 0, 0, false }
