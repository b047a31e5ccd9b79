//go:build !linux

package admin

import (
	"net"
	"syscall"
)

// credentials returns an unknown peer: this system does not identify the peers of a socket.
func credentials(net.Conn) peer { return peer{UID: -1, PID: -1} }

// closedToOthers does nothing: on this system only the path of a socket has a mode.
func closedToOthers(_, _ string, _ syscall.RawConn) error { return nil }
