package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// patience is the time between two lines of progress.
const patience = time.Second

// interruptible returns a context that ends with SIGINT or SIGTERM.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// whileWaiting runs do. On a terminal, it prints the result of doing every second meanwhile. do and doing run
// at the same time.
func whileWaiting(cmd *cobra.Command, doing func() string, do func()) {
	if !watched(cmd) {
		do()
		return
	}
	ended, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		tell(cmd.ErrOrStderr(), doing, ended)
	}()
	do()
	close(ended)
	<-told
}

// tell prints the result of doing every second, until ended is closed.
func tell(w io.Writer, doing func() string, ended <-chan struct{}) {
	began, tick := time.Now(), time.NewTicker(patience)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			fmt.Fprintf(w, "%s (%d s)\n", doing(), int(time.Since(began).Seconds()))
		}
	}
}
