package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// roomLeast is the least free space of a disk without a warning, in bytes.
const roomLeast = 1 << 30

// Port checks that this host can listen on an address. It listens for a moment.
func Port(field, address string) Finding {
	lis, err := net.Listen("tcp", address)
	if err == nil {
		lis.Close()
		return Good("port", address, "free, for %s", field)
	}
	_, port, _ := net.SplitHostPort(address) // an address that could not be split has another error
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return Bad("port", address, "the port is taken", field+" can not be opened while another process listens there",
			fmt.Sprintf("find and end that process (ss -ltnp 'sport = :%s'), or set another port in %s", port, field))
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return Bad("port", address, "the address is not one of this host", "", "set an address of this host in "+field+": ip addr shows them")
	case errors.Is(err, syscall.EACCES):
		return Bad("port", address, "this user may not open the port", "ports below 1024 need a capability", "set a port of 1024 or higher in "+field)
	}
	return Bad("port", address, "the port can not be opened", cause(err), "correct "+field)
}

// Directory checks that the relay can write to a directory, or make it, and that its disk has room.
func Directory(field, dir string) []Finding {
	at, info, err := existing(dir)
	cure := fmt.Sprintf("set %s to a directory that the user of the relay can write to, or give it one: install -d -m 0700 -o USER %s", field, dir)
	switch {
	case err != nil:
		return []Finding{Bad("state", dir, "the directory can not be used", err.Error(), cure)}
	case !info.IsDir():
		return []Finding{Bad("state", dir, "the directory can not be made", at+" is a file", cure)}
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		why := fmt.Sprintf("%s: %v, for user %d", at, err, os.Geteuid())
		return []Finding{Bad("state", dir, "the directory can not be written to", why, cure)}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(at, &disk); err != nil {
		return []Finding{Bad("state", dir, "the free space of the disk can not be read", err.Error(), cure)}
	}
	block := int64(disk.Bsize) //nolint:unconvert // another type on other systems
	free, whole := int64(disk.Bavail)*block, int64(disk.Blocks)*block
	switch {
	case whole == 0: // /proc and its like
		return []Finding{Bad("state", dir, "the directory is not on a disk", "the file system of "+at+" has no room", cure)}
	case free < roomLeast:
		return []Finding{Doubt("state", dir, fmt.Sprintf("the disk has %d MiB left", free>>20), "with a full disk the relay goes on, but no longer writes there", "make room, or set "+field+" to another disk")}
	}
	word := "can be written to"
	if at != dir {
		word = "can be made"
	}
	return []Finding{Good("state", dir, "%s, %d GiB free", word, free>>30)}
}

// existing returns the nearest directory above a path that exists, or the path itself.
func existing(path string) (string, fs.FileInfo, error) {
	for {
		info, err := os.Stat(path)
		if up := filepath.Dir(path); up != path && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
			path = up
			continue
		}
		return path, info, err
	}
}

// Place checks that a socket or file can be made at a path. good is the outcome then.
func Place(check, field, path, good string) []Finding {
	found := Directory(field, filepath.Dir(path))
	for i := range found {
		found[i].Check, found[i].Target = check, path
		if found[i].Level == OK {
			found[i].What = good
		}
	}
	return found
}

// perResource is the memory of one resource, and process the memory of a relay without resources, in bytes.
const (
	perResource = 1300
	process     = 64 << 20
)

// Memory compares limit, the memory limit of the process, with the memory that resources need. Zero is no
// limit.
func Memory(resources int, limit int64) Finding {
	need := int64(resources)*perResource + process
	if limit <= 0 {
		return Good("memory", "", "about %d MiB are needed for %d resources, and there is no limit", need>>20, resources)
	}
	if need > limit*7/10 {
		return Doubt("memory", "", fmt.Sprintf("about %d MiB are needed for %d resources, and the limit is %d MiB", need>>20, resources, limit>>20),
			"large responses and many clients need more", fmt.Sprintf("raise the memory limit to %d MiB or more: docs/sizing.md has the formula", need*2>>20))
	}
	return Good("memory", "", "about %d MiB are needed for %d resources, and the limit is %d MiB", need>>20, resources, limit>>20)
}
