package kubernetes

import (
	"context"
	"sync"
	"time"
)

const (
	// maxTurns bounds the found clusters that list everything for the first time at the same time.
	maxTurns = 8
	// turnTime is how long others wait at most for a cluster to have listed everything.
	turnTime = 10 * time.Second
)

// turns lets found clusters list a few at a time: a hub may name hundreds at once, and a reload may
// change all of them. The methods may be called from any goroutine.
type turns struct {
	slots chan struct{}
	most  time.Duration // of a turn
	mu    sync.Mutex
	queue int // guarded by mu: those that wait
}

func newTurns(atOnce int, most time.Duration) *turns {
	return &turns{slots: make(chan struct{}, atOnce), most: most}
}

// take waits for a turn, or until ctx ends, and returns what ends the turn. That may be called more
// than once; a turn ends by itself when it has taken too long.
func (t *turns) take(ctx context.Context) (end func()) {
	if t == nil {
		return func() {}
	}
	t.wait(1)
	defer t.wait(-1)
	select {
	case <-ctx.Done():
		return func() {}
	case t.slots <- struct{}{}:
	}
	free := sync.OnceFunc(func() { <-t.slots })
	late := time.AfterFunc(t.most, free)
	return func() {
		late.Stop()
		free()
	}
}

func (t *turns) wait(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue += n
}

// waiting returns how many wait for a turn.
func (t *turns) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queue
}
