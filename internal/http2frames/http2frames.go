// Package http2frames follows the frames of HTTP/2, for limits of memory. It owns no connection, and must not
// know what the frames carry.
package http2frames

import (
	"errors"
	"sync/atomic"
)

// Preface is the beginning of what a client sends.
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Data is the type of DATA frames.
const Data = 0

// FlagPadded marks a DATA frame with padding.
const FlagPadded = 8

// Frame is the head of a frame.
type Frame struct {
	Length      int // bytes of the payload
	Type, Flags byte
}

// Follower follows the bytes of one direction of a connection, in whatever pieces they come. One
// goroutine at a time uses it.
type Follower struct {
	// Skip is how many bytes come before the first frame.
	Skip int
	// Begin is called with the head of each frame.
	Begin func(Frame) error

	head [9]byte
	have int // bytes of head
	left int // bytes of the current payload that are still to come
}

// Follow reads the next bytes. It stops at the first error of Begin.
func (f *Follower) Follow(b []byte) error {
	n := min(len(b), f.Skip)
	f.Skip -= n
	b = b[n:]
	for len(b) > 0 {
		if f.have < len(f.head) {
			n := copy(f.head[f.have:], b)
			f.have += n
			b = b[n:]
			if f.have < len(f.head) {
				return nil
			}
			f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
			if err := f.Begin(Frame{Length: f.left, Type: f.head[3], Flags: f.head[4]}); err != nil {
				return err
			}
		}
		n := min(len(b), f.left)
		b = b[n:]
		if f.left -= n; f.left == 0 {
			f.have = 0
		}
	}
	return nil
}

// ErrTiny ends a connection whose DATA frames are tiny.
var ErrTiny = errors.New("too many DATA frames of less than 256 bytes: gRPC takes many times their bytes")

const (
	// usual is the smallest mean size of DATA frames that a connection may have, in bytes. Flow control may
	// split a message, but into larger frames: a window is opened again by a quarter of its size.
	usual = 256
	// perMessage is how many bytes of debt a complete message pays.
	perMessage = 16 * usual
)

// Tiny limits the tiny DATA frames of a connection: gRPC keeps some 64 bytes for each. Any goroutine may call
// its methods.
type Tiny struct {
	// Most is the number of tiny frames that are allowed in addition to those that complete messages pay for.
	Most int64
	debt atomic.Int64 // bytes that the frames lack to the size usual
}

// Frame counts a frame. It fails when the connection has too many tiny ones.
func (t *Tiny) Frame(f Frame) error {
	if f.Type != Data {
		return nil
	}
	if f.Flags&FlagPadded != 0 {
		f.Length = 0 // padding would hide a tiny frame
	}
	if t.add(usual-int64(f.Length)) > t.Most*usual {
		return ErrTiny
	}
	return nil
}

// Message counts a complete message.
func (t *Tiny) Message() { t.add(-perMessage) }

// add changes the debt, and returns it. The debt is never negative, because large frames must not pay for
// later tiny ones.
func (t *Tiny) add(n int64) int64 {
	for {
		old := t.debt.Load()
		sum := max(old+n, 0)
		if t.debt.CompareAndSwap(old, sum) {
			return sum
		}
	}
}
