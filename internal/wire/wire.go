// Package wire iterates over the fields of encoded protobuf messages of any type.
//
//	c := wire.Fields(data)
//	for c.Next() {
//		if c.Bytes(1) {
//			name = c.Value()
//		}
//	}
//	return c.Err()
//
// A Cursor does not allocate. The slices that it returns share the memory of the message.
package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// Cursor points to one field of an encoded message.
type Cursor struct {
	Number protowire.Number
	Type   protowire.Type

	message        []byte
	at, value, end int // of the field, its value, and its end
	err            error
}

// Fields returns a Cursor before the first field of a message.
func Fields(message []byte) Cursor { return Cursor{message: message} }

// Value returns the content of a length-delimited field, or the encoded value of any other field.
func (c *Cursor) Value() []byte { return c.message[c.value:c.end:c.end] }

// Field returns the whole field: tag, length and value.
func (c *Cursor) Field() []byte { return c.message[c.at:c.end:c.end] }

var errNumber = errors.New("field number is out of range")

// Next moves to the next field. It returns false at the end of the message, and before the
// first byte that is not protobuf.
func (c *Cursor) Next() bool {
	c.at = c.end
	data := c.message[c.at:]
	if len(data) == 0 || c.err != nil {
		return false
	}
	n := 1
	if b := data[0]; b >= 1<<3 && b < 0x80 { // most tags are one byte
		c.Number, c.Type = protowire.Number(b>>3), protowire.Type(b&7)
	} else if c.Number, c.Type, n = protowire.ConsumeTag(data); n < 0 {
		return c.fail(n)
	} else if c.Number > protowire.MaxValidNumber {
		c.err = errNumber
		return false
	}
	c.value = c.at + n
	data = data[n:]
	if c.Type != protowire.BytesType {
		size := protowire.ConsumeFieldValue(c.Number, c.Type, data)
		if size < 0 {
			return c.fail(size)
		}
		c.end = c.value + size
		return true
	}
	if len(data) > 0 && data[0] < 0x80 && int(data[0]) < len(data) { // as are most lengths
		c.value++
		c.end = c.value + int(data[0])
		return true
	}
	v, size := protowire.ConsumeBytes(data)
	if size < 0 {
		return c.fail(size)
	}
	c.end = c.value + size
	c.value = c.end - len(v)
	return true
}

func (c *Cursor) fail(code int) bool {
	c.err = protowire.ParseError(code)
	return false
}

// Err returns the error at which Next stopped, or nil.
func (c *Cursor) Err() error { return c.err }

// Bytes reports whether the field has the given number and is length-delimited.
func (c *Cursor) Bytes(number protowire.Number) bool {
	return c.Number == number && c.Type == protowire.BytesType
}

// Uint returns the value of a varint or fixed-width field, or 0 for any other field.
func (c *Cursor) Uint() (v uint64) {
	switch c.Type {
	case protowire.VarintType:
		v, _ = protowire.ConsumeVarint(c.Value())
	case protowire.Fixed32Type:
		v32, _ := protowire.ConsumeFixed32(c.Value())
		v = uint64(v32)
	case protowire.Fixed64Type:
		v, _ = protowire.ConsumeFixed64(c.Value())
	}
	return v
}

// Last returns the last length-delimited field of a message with that number, or nil. It stops at
// the first byte that is not protobuf.
func Last(message []byte, number protowire.Number) (value []byte) {
	c := Fields(message)
	for c.Next() {
		if c.Bytes(number) {
			value = c.Value()
		}
	}
	return value
}

// Texts returns the length-delimited fields of a message with that number. It stops as Last does.
func Texts(message []byte, number protowire.Number) (texts []string) {
	c := Fields(message)
	for c.Next() {
		if c.Bytes(number) {
			texts = append(texts, string(c.Value()))
		}
	}
	return texts
}
