package admin

import (
	"encoding/binary"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// credentials returns the peer of a connection over a Unix socket, as it was when it connected. Unknown fields
// are -1.
func credentials(c net.Conn) peer {
	who := peer{UID: -1, GID: -1, PID: -1}
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return who
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
				who = peer{UID: int(cred.Uid), GID: int(cred.Gid), PID: int(cred.Pid), Groups: peerGroups(fd)}
			}
		})
	}
	return who
}

// peerGroups returns the supplementary groups of the peer of a Unix socket, none if the kernel does not tell
// them. Neither syscall nor unix has a function for SO_PEERGROUPS.
func peerGroups(fd uintptr) (gids []int) {
	const most = 1 << 16 // NGROUPS_MAX
	room := make([]byte, 4*64)
	for {
		size := uint32(len(room)) // socklen_t
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&room[0])), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // as package unsafe describes it for system calls
		switch {
		case errno == 0:
			for at := 0; at+4 <= int(size); at += 4 {
				gids = append(gids, int(binary.NativeEndian.Uint32(room[at:])))
			}
			return gids
		case errno != unix.ERANGE || int(size) <= len(room) || size > 4*most:
			return nil
		}
		room = make([]byte, size)
	}
}

// closedToOthers sets the mode of a socket before it is bound to a path. Without this, others could open it for a
// moment, depending on the umask. If the system does not allow it, the caller sets the mode afterwards.
func closedToOthers(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
