package kubernetes

import (
	"context"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inBubble runs a part of a test in a bubble.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// run runs functions until the test ends.
func (w *world) run(all ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	for _, f := range all {
		group.Go(func() error { return f(ctx) })
	}
	w.t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			w.t.Error(err)
		}
	})
}
