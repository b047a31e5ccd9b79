package mirror

import (
	"fmt"
	"runtime/debug"

	"meshrelay/internal/text"
)

// Panic is a panic of the code that handled one resource, key or push, as an error of that one only.
type Panic struct {
	// Value is the argument of panic, and Stack the stack.
	Value, Stack string
}

// Bounds of a Panic, in bytes.
const (
	maxPanicValue = 256
	maxPanicStack = 16 << 10
)

// Error returns a text for users who look for the resource.
func (p *Panic) Error() string {
	return "internal error of the relay: " + p.Value + "; its log has the stack"
}

// Try calls f and returns its panic, nil for none.
func Try(f func()) (p *Panic) {
	defer func() { p = Recovered(recover()) }()
	f()
	return nil
}

// Recovered returns the Panic for the result of recover(), nil for nil. It must be called by the deferred
// function that called recover, because it takes the stack.
func Recovered(value any) *Panic {
	if value == nil {
		return nil
	}
	if p, is := value.(*Panic); is {
		return p // it was recovered before, and panics once more
	}
	return &Panic{Value: text.Shorten(fmt.Sprint(value), maxPanicValue), Stack: text.Shorten(string(debug.Stack()), maxPanicStack)}
}
