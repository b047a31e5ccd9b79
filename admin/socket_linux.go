package admin

import "syscall"

// closedToOthers makes the mode of a socket, before it has a path, the one that the path is
// made with: others can not open it for a moment either, whatever the umask is.
func closedToOthers(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); controlErr != nil {
		return controlErr
	}
	return err
}
