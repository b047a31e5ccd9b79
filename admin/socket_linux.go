package admin

import "syscall"

// closedToOthers makes the mode of a socket, before it has a path, the one that the path is
// made with: others can not open it for a moment either, whatever the umask is. Where that is
// not allowed it is made so afterwards.
func closedToOthers(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), 0o600) })
}
