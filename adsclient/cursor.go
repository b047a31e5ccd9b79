package adsclient

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// field is the head of a field of a message. Its value follows, in length bytes. length is 0 for a
// varint or a group, which was read already. size is that of the whole field.
type field struct {
	number       protowire.Number
	typ          protowire.Type
	length, size int
}

func (f field) delimited() bool { return f.typ == protowire.BytesType }

// cursor reads an encoded message that is spread over buffers. (wire.Cursor needs one buffer.)
type cursor struct {
	buffers mem.BufferSlice
	here    []byte // the rest of the present buffer
	left    int    // bytes to the end of the message
	scratch []byte // for bytes that are spread over buffers
}

func newCursor(buffers mem.BufferSlice) *cursor {
	return &cursor{buffers: buffers, left: buffers.Len()}
}

// each calls read for each field of the message, and skips the rest of the value. Each part of a
// group is a field of the type StartGroupType.
func (c *cursor) each(read func(field) error) error {
	for groups := 0; c.left > 0 || groups > 0; {
		f, err := c.head()
		if err != nil {
			return err
		}
		inside := groups > 0
		switch f.typ {
		case protowire.StartGroupType:
			groups++
		case protowire.EndGroupType:
			if groups--; groups < 0 {
				return errors.New("mismatching end group marker")
			}
		}
		if inside {
			f.typ = protowire.StartGroupType
		}
		end := c.left - f.length
		if err := read(f); err != nil {
			return err
		}
		c.skip(c.left - end)
	}
	return nil
}

// within calls each for the next n bytes, as for a message.
func (c *cursor) within(n int, read func(field) error) error {
	outer := c.left - n
	c.left = n
	err := c.each(read)
	c.skip(c.left)
	c.left = outer
	return err
}

// head reads a tag and the length, if the field has one.
func (c *cursor) head() (f field, err error) {
	start := c.left
	tag, err := c.uvarint()
	if err != nil {
		return f, err
	}
	if f.number, f.typ = protowire.DecodeTag(tag); f.number < protowire.MinValidNumber {
		return f, errors.New("invalid field number")
	}
	var length uint64
	switch f.typ {
	case protowire.BytesType:
		length, err = c.uvarint()
	case protowire.VarintType:
		_, err = c.uvarint()
	case protowire.Fixed32Type:
		length = 4
	case protowire.Fixed64Type:
		length = 8
	case protowire.StartGroupType, protowire.EndGroupType:
	default:
		err = errors.New("cannot parse reserved wire type")
	}
	if err == nil && length > uint64(c.left) { // never negative
		err = io.ErrUnexpectedEOF
	}
	f.length = int(length) // at most left, or there is an error
	f.size = start - c.left + f.length
	return f, err
}

// fill moves to the next buffer that is not empty, if here is.
func (c *cursor) fill() {
	for len(c.here) == 0 && len(c.buffers) > 0 {
		c.here, c.buffers = c.buffers[0].ReadOnlyData(), c.buffers[1:]
	}
}

// ReadByte implements io.ByteReader.
func (c *cursor) ReadByte() (byte, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	c.fill()
	b := c.here[0]
	c.here, c.left = c.here[1:], c.left-1
	return b, nil
}

func (c *cursor) uvarint() (uint64, error) {
	if len(c.here) > 0 && c.here[0] < 0x80 && c.left > 0 { // most are
		v := c.here[0]
		c.here, c.left = c.here[1:], c.left-1
		return uint64(v), nil
	}
	if v, n := binary.Uvarint(c.here[:min(len(c.here), c.left)]); n > 0 {
		c.here, c.left = c.here[n:], c.left-n
		return v, nil
	}
	return binary.ReadUvarint(c)
}

// skip skips the next n bytes.
func (c *cursor) skip(n int) {
	for c.left -= n; n > len(c.here); c.fill() {
		n -= len(c.here)
		c.here = nil
	}
	c.here = c.here[n:]
}

// bytes returns the next n bytes. It copies them to scratch only if they are spread over buffers.
// The next call may overwrite scratch.
func (c *cursor) bytes(n int) []byte {
	if c.fill(); n <= len(c.here) {
		b := c.here[:n:n]
		c.here, c.left = c.here[n:], c.left-n
		return b
	}
	c.scratch = slices.Grow(c.scratch[:0], n)
	for c.left -= n; n > 0; c.fill() {
		m := min(n, len(c.here))
		c.scratch = append(c.scratch, c.here[:m]...)
		c.here, n = c.here[m:], n-m
	}
	return slices.Clip(c.scratch)
}

// text returns the next n bytes, or an error if n is above most.
func (c *cursor) text(what string, n, most int) (string, error) {
	if n > most {
		return "", fmt.Errorf("its %s has %d bytes: want %d at most", what, n, most)
	}
	return string(c.bytes(n)), nil
}
