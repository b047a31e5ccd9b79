package push

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap blocks the thread for d. A timer of Go would take a millisecond at least when nothing else
// runs, since epoll counts in milliseconds.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) //nolint:errcheck // a signal ends it early, and the caller looks at the time
}
