//go:build !linux

package downstream

import (
	"net"
	"time"
)

// setUserTimeout is for Linux.
func setUserTimeout(net.Conn, time.Duration) {}
