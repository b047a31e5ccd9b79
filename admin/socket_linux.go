package admin

import (
	"net"
	"syscall"
)

// credentials returns the peer of a connection over a Unix socket, as it was when it connected. Unknown fields
// are -1.
func credentials(c net.Conn) peer {
	who := peer{UID: -1, PID: -1}
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return who
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
				who = peer{UID: int(cred.Uid), PID: int(cred.Pid)}
			}
		})
	}
	return who
}

// closedToOthers sets the mode of a socket before it is bound to a path. Without this, others could open it for a
// moment, depending on the umask. If the system does not allow it, the caller sets the mode afterwards.
func closedToOthers(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
