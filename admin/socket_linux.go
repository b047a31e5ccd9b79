package admin

import (
	"net"
	"syscall"
)

// credentials returns who opened a connection; -1 where the system does not tell.
func credentials(c *net.UnixConn) peer {
	who := peer{UID: -1, PID: -1}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
				who = peer{UID: int(cred.Uid), PID: int(cred.Pid)}
			}
		})
	}
	return who
}

// closedToOthers makes the mode of a socket, before it has a path, the one that the path is
// made with: others can not open it for a moment either, whatever the umask is. Where that is
// not allowed it is made so afterwards.
func closedToOthers(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
