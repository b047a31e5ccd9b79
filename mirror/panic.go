package mirror

import (
	"fmt"
	"runtime/debug"

	"meshrelay/internal/text"
)

// Panic is what the code panicked with that handled one resource, key or push. It is an
// error of that only.
type Panic struct {
	// Value is what was panicked with, and Stack where.
	Value, Stack string
}

// Bounds of a Panic, in bytes.
const (
	maxPanicValue = 256
	maxPanicStack = 16 << 10
)

// Error returns what to tell whoever looks for the resource.
func (p *Panic) Error() string {
	return "internal error of the relay: " + p.Value + "; its log has where"
}

// Recovered returns the Panic of a recover() that was not nil, nil otherwise. It is for the
// deferred function that called recover.
func Recovered(value any) *Panic {
	if value == nil {
		return nil
	}
	return &Panic{Value: text.Shorten(fmt.Sprint(value), maxPanicValue), Stack: text.Shorten(string(debug.Stack()), maxPanicStack)}
}
