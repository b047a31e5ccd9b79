package relay

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// part is a part of the relay. It runs until its context ends.
type part func(context.Context) error

// errOver is the reason for which parts end when one has returned without an error.
var errOver = errors.New("a part has ended")

// runParts runs parts until one of them returns. Then it ends them in their order, each after the one before has
// returned, and returns the first error. The end of ctx does not end them: a part that waits for it does.
func runParts(ctx context.Context, parts []part) error {
	g, first := errgroup.WithContext(context.WithoutCancel(ctx))
	ends := make([]func(), len(parts))
	for i, run := range parts {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		done := make(chan struct{})
		ends[i] = func() { cancel(context.Cause(first)); <-done }
		g.Go(func() error {
			defer close(done)
			if err := run(ctx); err != nil {
				return err
			}
			return errOver
		})
	}
	<-first.Done()
	for _, end := range ends {
		end()
	}
	if err := g.Wait(); !errors.Is(err, errOver) {
		return err
	}
	return nil
}
