package kubernetes

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// awaitBytes has a reader of a connection sleep until there are n bytes, or the connection ends.
func awaitBytes(c net.Conn, n int) error {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) }); err != nil {
		return err
	}
	return failed
}
