package admin

import (
	"net"
	"syscall"
)

// credentials returns who is at the other end of a connection over a Unix socket; -1 where the
// system does not tell.
func credentials(c net.Conn) peer {
	who := peer{UID: -1, PID: -1}
	unix, ok := c.(*net.UnixConn)
	if !ok {
		return who
	}
	if raw, err := unix.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
				who = peer{UID: int(cred.Uid), PID: int(cred.Pid)}
			}
		})
	}
	return who
}

// closedToOthers sets the mode of a socket before it is bound to a path, so that others can not
// open it for a moment either, whatever the umask is. Where the system does not allow that, the
// caller sets the mode afterwards.
func closedToOthers(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
