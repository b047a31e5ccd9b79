package admin

import (
	"net"
	"syscall"
)

// credentials returns who opened a connection; -1 for what the system does not say.
func credentials(c *net.UnixConn) peer {
	unknown := peer{UID: -1, PID: -1}
	raw, err := c.SyscallConn()
	if err != nil {
		return unknown
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return unknown
	}
	return peer{UID: int(cred.Uid), PID: int(cred.Pid)}
}
