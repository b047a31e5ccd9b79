package kubernetes

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
