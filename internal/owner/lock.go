package owner

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrLocked is the error for a file that another process has locked.
var ErrLocked = errors.New("in use by another process")

// lockPoll is the time between two attempts to lock a file.
const lockPoll = 25 * time.Millisecond

// Lock opens and locks a file. Closing the file ends the lock. An exclusive lock creates a missing file.
// Other locks are shared between processes. Lock tries at least once, for the time patience, and then fails
// with ErrLocked.
func Lock(path string, exclusive bool, patience time.Duration) (*os.File, error) {
	flag, how := os.O_RDONLY, syscall.LOCK_SH
	if exclusive {
		flag, how = os.O_RDWR|os.O_CREATE, syscall.LOCK_EX
	}
	f, _, err := Open(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			if time.Now().Before(deadline) {
				continue
			}
			err = ErrLocked
		}
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
}
