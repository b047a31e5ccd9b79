package mirror

import (
	"fmt"
	"runtime/debug"

	"meshrelay/internal/text"
)

// Panic is a panic of the code that handled one resource, key or push. It is an error of that one
// only.
type Panic struct {
	// Value is the argument of panic, and Stack the stack.
	Value, Stack string
}

// Bounds of a Panic, in bytes.
const (
	maxPanicValue = 256
	maxPanicStack = 16 << 10
)

// Error returns the text for users who look for the resource.
func (p *Panic) Error() string {
	return "internal error of the relay: " + p.Value + "; its log has where"
}

// try calls f, and returns its panic.
func try(f func()) (p *Panic) {
	defer func() { p = Recovered(recover()) }()
	f()
	return nil
}

// Recovered returns the Panic for a result of recover(), nil for nil. The deferred function that
// called recover must call it.
func Recovered(value any) *Panic {
	if value == nil {
		return nil
	}
	return &Panic{Value: text.Shorten(fmt.Sprint(value), maxPanicValue), Stack: text.Shorten(string(debug.Stack()), maxPanicStack)}
}
