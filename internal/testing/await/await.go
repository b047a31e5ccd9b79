// Package await is the one way in which tests wait. It owns the deadline of a wait, which is so late
// that only a test that hangs meets it, and tells what was seen last when it passes. It knows no package
// of the relay.
//
// Outside of a bubble of testing/synctest a test does not sleep: it waits here for what it needs. Inside
// of one, time passes with Pass.
package await

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Limit is how long a test waits for anything: long enough for a machine that is a hundred times too busy.
const Limit = 2 * time.Minute

// look is the time between two looks at a condition.
const look = 2 * time.Millisecond

// T is what a wait needs of a test: testing.TB and testscript.TestScript have it.
type T interface {
	Fatalf(format string, args ...any)
}

// Until waits until ok returns true, and fails the test after Limit. seen returns what the failure
// prints: give one wherever the condition looks at more than a flag. Both run on the goroutine of the
// caller.
func Until(t T, what string, ok func() bool, seen ...func() any) {
	helper(t)
	deadline := time.After(Limit)
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	for !ok() {
		select {
		case <-ticks.C:
		case <-deadline:
			t.Fatalf("waited %s in vain: %s%s", Limit, what, last(seen))
			return
		}
	}
}

// Equal waits until get returns want, and fails the test after Limit with what it returned last.
func Equal[V comparable](t T, what string, want V, get func() V) {
	helper(t)
	var got V
	Until(t, what, func() bool { got = get(); return got == want }, func() any { return fmt.Sprintf("%+v, want %+v", got, want) })
}

// Value waits for a value of a channel, and fails the test after Limit, or when the channel is closed.
func Value[V any](t T, what string, c <-chan V) (v V) {
	helper(t)
	select {
	case got, open := <-c:
		if !open {
			t.Fatalf("closed before it was so: %s", what)
		}
		return got
	case <-time.After(Limit):
		t.Fatalf("waited %s in vain: %s", Limit, what)
		return v
	}
}

// Closed waits until a channel is closed, skips the values before, and fails the test after Limit.
func Closed[V any](t T, what string, c <-chan V) {
	helper(t)
	deadline := time.After(Limit)
	for {
		select {
		case _, open := <-c:
			if !open {
				return
			}
		case <-deadline:
			t.Fatalf("waited %s in vain: %s", Limit, what)
			return
		}
	}
}

// Return waits until a function, which runs on a goroutine of its own, has returned, and fails the test
// after Limit.
func Return(t T, what string, f func()) {
	helper(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	Closed(t, what, done)
}

// Context returns a context that ends with the test, or after Limit: for calls that would hang otherwise.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}

// Pass lets time pass in the bubble of testing/synctest that it is called in, and panics outside of one:
// there it would be a sleep, which tells nothing and fails on a busy machine.
func Pass(d time.Duration) {
	if !inBubble() {
		panic("await.Pass outside of a bubble of testing/synctest: wait for a condition with await.Until")
	}
	time.Sleep(d)
}

// Settle lets time pass as Pass does, and waits until all other goroutines of the bubble are blocked. At
// most one goroutine of a bubble may be in it at a time.
func Settle(d time.Duration) {
	Pass(d)
	synctest.Wait()
}

// inBubble tells whether it runs in a bubble, whose clock begins at the start of the year 2000.
func inBubble() bool { return time.Now().Year() < 2020 }

func last(seen []func() any) (text string) {
	for _, see := range seen {
		text += fmt.Sprintf("\nlast seen: %+v", see())
	}
	return text
}

func helper(t T) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
}
