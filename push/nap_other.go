//go:build !linux

package push

import "time"

// nap waits for d.
func nap(d time.Duration) { time.Sleep(d) }
