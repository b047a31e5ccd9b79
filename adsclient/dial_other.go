//go:build !linux

package adsclient

import (
	"syscall"
	"time"
)

// setUserTimeout returns nothing: there is no such option. Pings notice the same, later.
func setUserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error {
	return nil
}
