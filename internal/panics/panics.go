// Package panics has the one place in which the relay catches a panic. It must only be used
// around a pure function of bytes from outside, and around work whose half-changed state nobody uses after that.
package panics

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
	maxValue = 256
	maxStack = 16 << 10
)

// Error returns a text for users who look for the resource.
func (p *Panic) Error() string {
	return "internal error of the relay: " + p.Value + "; its log has the stack"
}

// Try calls f and returns its panic, nil for none.
func Try(f func()) (p *Panic) {
	defer func() { p = recovered(recover()) }()
	f()
	return nil
}

// Value calls f and returns its results, or the zero value and its panic as an error.
func Value[T any](f func() (T, error)) (v T, err error) {
	if p := Try(func() { v, err = f() }); p != nil {
		return v, p
	}
	return v, err
}

// Contain calls f and returns its error, or its panic as an error.
func Contain(f func() error) error {
	_, err := Value(func() (any, error) { return nil, f() })
	return err
}

// recovered returns the Panic for a recovered value, nil for nil. It must be called by the deferred
// function that called recover, because it takes the stack.
func recovered(value any) *Panic {
	if value == nil {
		return nil
	}
	if p, is := value.(*Panic); is {
		return p // it was recovered before, and panics once more
	}
	return &Panic{Value: text.Shorten(fmt.Sprint(value), maxValue), Stack: text.Shorten(string(debug.Stack()), maxStack)}
}
