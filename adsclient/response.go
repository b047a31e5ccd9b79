package adsclient

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/wire"
)

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse. Its resources and removed names are
// valid only while the handler runs.
type Response struct {
	TypeURL string
	// Version is version_info or system_version_info. It is opaque, and does not tell whether
	// anything has changed (PROTOCOL C5).
	Version string
	Nonce   string
	// Delta: the response came on a delta stream.
	Delta bool
	// Complete: there are no other resources. This is so in SotW without Config.Names, and in delta
	// when the request did not name the held resources: the server then sends its whole state, in
	// one response or in parts.
	Complete bool
	// Part: more of the same answer follows. Relays split the answers of delta streams (PROTOCOL
	// S18).
	Part bool
	// Relist: the response is the first of its type after a request for everything: a periodic one,
	// or Client.Relist (PROTOCOL C4). The first response of a stream never has it. All parts of an
	// answer have it. A push that crossed the request has it instead of the answer. It is never set
	// with Config.Names.
	Relist bool

	buffers mem.BufferSlice
	// size is the length of the encoded response. count and removed are the numbers of resources
	// and of removed names.
	size, count, removed int
	*places              // of all resources, or nil
}

// RawResource is one encoded element of a response. It is valid until the next one.
type RawResource struct {
	Name, Version []byte // empty in SotW responses
	Any           []byte // an encoded google.protobuf.Any; nil if it is larger than the limit
	Size          int    // of the Any, even if that is too large
	// Mark is equal for equal bytes, and different for others except by chance: see place. Zero:
	// none.
	Mark uint64
	head []byte // the outline of an Any that is too large
}

// Peek returns Any. For a resource that is too large, it returns an Any with the short fields of
// the message, such as the name.
func (r RawResource) Peek() []byte {
	if r.head != nil {
		return r.head
	}
	return r.Any
}

// free gives the buffers back.
func (r *Response) free() {
	r.buffers.Free()
	r.freePlaces()
}

// Len returns the number of resources.
func (r *Response) Len() int { return r.count }

// Room returns for how many resources a handler should make room: Len, or fewer if resources have
// less than 128 bytes, which no real resource has.
func (r *Response) Room() int { return min(r.count, r.size/placedBytes) }

// Size returns the size of the encoded response in bytes.
func (r *Response) Size() int { return r.size }

// RemovedLen returns the number of removed names.
func (r *Response) RemovedLen() int { return r.removed }

// Resources yields the resources in the order of the response. Resources of more than limit bytes
// are not copied, and have no content; 0 is no limit. It may be called again.
func (r *Response) Resources(limit int) iter.Seq[RawResource] { return r.Unknown(limit, nil) }

// Unknown is Resources without those that are known by mark and size. A resource without a mark is
// never known. A nil known knows none.
func (r *Response) Unknown(limit int, known func(mark uint64, size int) bool) iter.Seq[RawResource] {
	most := cmp.Or(limit, math.MaxInt32-2*maxName)
	return func(yield func(RawResource) bool) {
		if r.places != nil {
			r.placed(most, known, yield)
			return
		}
		c := newCursor(r.buffers)
		_ = c.each(func(f field) error { // Parse has walked the message before
			if !f.isResource() {
				return nil
			}
			if raw, err := c.element(f.length, r.Delta, most); err != nil || !yield(raw) {
				return io.EOF
			}
			return nil
		})
	}
}

// Removed yields the names of removed resources, on delta streams. Each is valid until the next
// one. It may be called again.
func (r *Response) Removed() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if r.removed == 0 {
			return
		}
		c := newCursor(r.buffers)
		_ = c.each(func(f field) error { // Parse has walked the message before
			if f.isRemoved(r.Delta) && !yield(c.bytes(f.length)) {
				return io.EOF
			}
			return nil
		})
	}
}

const (
	// maxOther bounds the bytes of a response other than resources and removed names.
	maxOther = 1 << 20
	// maxElements bounds the resources, and the removed names, of a response. Each costs more
	// memory than the two bytes that it may have on the wire.
	maxElements = 1 << 22
	// maxName bounds the name of an element, and its version.
	maxName = 32 << 10
)

// maxTypeURL bounds the type URL of a response, and maxOpaque its version and its nonce, in bytes.
// Acknowledgements with them wait until the server reads.
const (
	maxTypeURL = 1 << 10
	maxOpaque  = 32 << 10
)

// partMark is the system_version_info of a part.
const partMark = "part"

var errUTF8 = errors.New("a string is not valid UTF-8")

// Parse checks the framing of an encoded DiscoveryResponse or, with delta, DeltaDiscoveryResponse.
// It copies nothing that is over a limit. The Response refers to the buffers, which the caller
// still owns.
func Parse(buffers mem.BufferSlice, delta bool) (*Response, error) {
	r := &Response{Delta: delta, Complete: !delta, buffers: buffers, size: buffers.Len()}
	if err := r.parse(newCursor(buffers)); err != nil {
		return nil, fmt.Errorf("response does not decode: %w", err)
	}
	return r, nil
}

func (r *Response) parse(c *cursor) error {
	other := 0
	err := c.each(func(f field) error {
		if f.isResource() || f.isRemoved(r.Delta) {
			if max(r.count, r.removed) >= maxElements {
				return fmt.Errorf("it has more than %d resources", maxElements)
			}
		} else if other += f.size; other > maxOther {
			return fmt.Errorf("its fields other than resources have %d bytes: want %d at most", other, maxOther)
		}
		return r.take(c, f)
	})
	if r.places != nil && len(r.all) < r.count {
		r.freePlaces()
	}
	r.Part = r.Delta && r.Version == partMark
	if err == nil && !utf8.ValidString(r.Version+" "+r.TypeURL+" "+r.Nonce) {
		err = errUTF8
	}
	return err
}

// take reads the value of a field.
func (r *Response) take(c *cursor, f field) (err error) {
	switch {
	case !f.delimited():
	case f.isResource():
		if r.Delta {
			if err = c.checkElement(f.length); err != nil {
				err = fmt.Errorf("resource %d: %w", r.count, err)
			}
		} else {
			r.note(c, f.length)
		}
		r.count++
	case f.isRemoved(r.Delta):
		if f.length > maxName {
			return fmt.Errorf("the name of a removed resource has %d bytes: want %d at most", f.length, maxName)
		}
		if !utf8.Valid(c.bytes(f.length)) {
			err = errUTF8
		}
		r.removed++
	case f.number == 1:
		r.Version, err = c.text("version", f.length, maxOpaque)
	case f.number == 4:
		r.TypeURL, err = c.text("type URL", f.length, maxTypeURL)
	case f.number == 5:
		r.Nonce, err = c.text("nonce", f.length, maxOpaque)
	}
	return err
}

// isResource reports whether a field of a response is a resource, and isRemoved whether it is a
// removed name.
func (f field) isResource() bool { return f.number == 2 && f.delimited() }

func (f field) isRemoved(delta bool) bool { return delta && f.number == 6 && f.delimited() }

// element reads a resource of n bytes. It does not copy one that is larger than limit.
func (c *cursor) element(n int, delta bool, limit int) (r RawResource, err error) {
	switch {
	case delta && n > limit+2*maxName:
		r.Size = n
		err = c.within(n, func(f field) error {
			switch {
			case !f.delimited():
			case f.number == 1:
				r.Version = bytes.Clone(c.bytes(f.length))
			case f.number == 2:
				r.head = c.outline(f.length)
			case f.number == 3:
				r.Name = bytes.Clone(c.bytes(f.length))
			}
			return nil
		})
	case delta:
		r, err = parseElement(c.bytes(n))
	case n > limit:
		r.Size, r.head = n, c.outline(n)
	default:
		r.Size, r.Any = n, c.bytes(n)
	}
	return r, err
}

// parseElement splits an encoded envoy.service.discovery.v3.Resource.
func parseElement(data []byte) (r RawResource, err error) {
	f := wire.Fields(data)
	for f.Next() {
		switch {
		case f.Bytes(1):
			r.Version = f.Value()
		case f.Bytes(2) && r.Any != nil:
			// A repeated field is merged, which is a concatenation.
			r.Any = append(r.Any, f.Value()...)
		case f.Bytes(2):
			r.Any = f.Value()
		case f.Bytes(3):
			r.Name = f.Value()
		}
	}
	r.Size = len(r.Any)
	return r, f.Err()
}

// checkElement returns an error if a Resource of n bytes is malformed.
func (c *cursor) checkElement(n int) error {
	return c.within(n, func(f field) error {
		if f.delimited() && (f.number == 1 || f.number == 3) && f.length > maxName {
			return fmt.Errorf("its name or version has %d bytes: want %d at most", f.length, maxName)
		}
		return nil
	})
}

const (
	// maxOutlined bounds each field of an outline, and maxOutline the whole.
	maxOutlined = 4 << 10
	maxOutline  = 64 << 10
)

// outline returns the short fields of a message of n bytes, with outlines in place of its long
// fields: the metadata of a resource without its content. It is never nil.
func (c *cursor) outline(n int) []byte { return c.appendOutline(make([]byte, 0, 256), n, 2) }

func (c *cursor) appendOutline(out []byte, n, depth int) []byte {
	// A malformed field ends the walk: the resource is refused anyway.
	_ = c.within(n, func(f field) error {
		var v []byte
		switch {
		case len(out) > maxOutline:
			return io.EOF
		case f.delimited() && f.length <= maxOutlined:
			v = c.bytes(f.length)
		case f.delimited() && depth > 0:
			v = c.appendOutline(nil, f.length, depth-1)
		default:
			return nil
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, f.number, f.typ), v)
		return nil
	})
	return out
}
