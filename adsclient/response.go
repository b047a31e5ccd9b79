package adsclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse. Its resources and removed
// names are only valid while the handler runs.
//
// The response stays in the buffers in which gRPC received it: a large response is in memory
// once.
type Response struct {
	TypeURL string
	// Version is version_info or system_version_info: opaque, and no sign of change
	// (PROTOCOL C5).
	Version string
	Nonce   string
	// ControlPlane is control_plane.identifier, often empty, in printable characters and
	// cut where it is long.
	ControlPlane string
	// Delta: the response came on a delta stream.
	Delta bool
	// Complete: the resources are all that there are. This is always so in SotW, and in delta
	// when the server could not be told what is held, so that it sends its whole state.
	// (Neither istiod nor a relay splits that over several responses.)
	Complete bool
	// Relist: the response answers a request for everything, a periodic one or one of
	// Client.Relist (PROTOCOL C4): it is the first of its type after that request, and
	// not the first of its stream. A push that was under way when the request was written is
	// taken for it, and its answer then for a push: the mark is right about how often, and
	// can be wrong, by what changed within a round trip, about what the answer holds.
	// Never set with Config.Names. It is Complete on SotW streams. On a delta stream it may be
	// one of several parts.
	Relist bool

	buffers mem.BufferSlice
	// size is the length of the encoded response, count the number of resources, removed that
	// of removed names.
	size, count, removed int
}

// RawResource is one element of a response, not decoded. It is valid until the next one.
type RawResource struct {
	// Name and Version are empty in SotW responses.
	Name, Version []byte
	// Any is an encoded google.protobuf.Any; nil when it is larger than the limit.
	Any []byte
	// Size is the length of the encoded Any, also of one that is too large.
	Size int
	// head stands for an Any that is too large: its short fields, and those of the message in it.
	head []byte
}

// Peek returns Any, and of one that is too large an Any with the short fields of its message.
// It is for reading the name.
func (r RawResource) Peek() []byte {
	if r.head != nil {
		return r.head
	}
	return r.Any
}

// free gives the buffers back. Nothing of the response is used afterwards.
func (r *Response) free() { r.buffers.Free() }

// Len returns the number of resources.
func (r *Response) Len() int { return r.count }

// leastResource is about what a resource has at least, in bytes.
const leastResource = 128

// Room returns for how many resources to make room before they are looked at: Len, but fewer
// where they have next to no bytes.
func (r *Response) Room() int { return min(r.count, r.size/leastResource) }

// Size returns the size of the encoded response in bytes.
func (r *Response) Size() int { return r.size }

// RemovedLen returns the number of removed names.
func (r *Response) RemovedLen() int { return r.removed }

// Resources yields the resources in the order in which they were sent. Those of more than
// limit bytes are not copied, and come without content; 0 is no limit. It may be called again.
func (r *Response) Resources(limit int) iter.Seq[RawResource] {
	if limit == 0 {
		limit = math.MaxInt32 - 2*maxName
	}
	return func(yield func(RawResource) bool) {
		c := newCursor(r.buffers)
		for f, err := c.next(); err == nil; f, err = c.next() {
			if !f.isResource() {
				c.skip(f.length) //nolint:errcheck // parse has walked the message before
				continue
			}
			raw, err := c.element(f.length, r.Delta, limit)
			if err != nil || !yield(raw) {
				return
			}
		}
	}
}

// Removed yields the names of what is gone, on delta streams. Each is valid until the next
// one. It may be called again.
func (r *Response) Removed() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if r.removed == 0 {
			return
		}
		c := newCursor(r.buffers)
		for f, err := c.next(); err == nil; f, err = c.next() {
			if !f.isRemoved(r.Delta) {
				c.skip(f.length) //nolint:errcheck // parse has walked the message before
				continue
			}
			name, err := c.bytes(f.length)
			if err != nil || !yield(name) {
				return
			}
		}
	}
}

const (
	// maxOther bounds the bytes of a response that are neither resources nor names of removed
	// ones.
	maxOther = 1 << 20
	// maxElements bounds the resources, and the names, of a response. Each costs more here than
	// the two bytes that it may have on the wire.
	maxElements = 1 << 22
	// maxName bounds the name of an element, and its version. Nothing is held by a longer name.
	maxName = 32 << 10
)

// What is sent back to the server of a response, and waits until it is read, is bounded in
// bytes: its type URL, and each of its version and nonce.
const (
	maxTypeURL = 1 << 10
	maxOpaque  = 32 << 10
)

var errUTF8 = errors.New("a string is not valid UTF-8")

// parse checks the framing of an encoded DiscoveryResponse or, with delta, a
// DeltaDiscoveryResponse. It copies nothing that is over a limit. The Response refers to the
// buffers, which remain the caller's.
func parse(buffers mem.BufferSlice, delta bool) (*Response, error) {
	r := &Response{Delta: delta, Complete: !delta, buffers: buffers, size: buffers.Len()}
	if err := r.parse(newCursor(buffers)); err != nil {
		return nil, fmt.Errorf("response does not decode: %w", err)
	}
	return r, nil
}

// ParseResponse reads an encoded response that is in one piece.
func ParseResponse(data []byte, delta bool) (*Response, error) {
	return parse(mem.BufferSlice{mem.SliceBuffer(data)}, delta)
}

func (r *Response) parse(c *cursor) error {
	other := 0
	for {
		start := c.left
		f, err := c.next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if !f.isResource() && !f.isRemoved(r.Delta) {
			if other += start - c.left + f.length; other > maxOther {
				return fmt.Errorf("its fields other than resources have %d bytes, and %d are the most", other, maxOther)
			}
		}
		if err := r.take(c, f); err != nil {
			return err
		}
		if max(r.count, r.removed) > maxElements {
			return fmt.Errorf("it has more than %d resources", maxElements)
		}
	}
	for _, s := range []string{r.Version, r.TypeURL, r.Nonce} {
		if !utf8.ValidString(s) {
			return errUTF8
		}
	}
	return nil
}

// take takes in a field whose value comes next.
func (r *Response) take(c *cursor, f field) (err error) {
	nonce, controlPlane := protowire.Number(5), protowire.Number(6)
	if r.Delta {
		controlPlane = 7
	}
	switch {
	case !f.delimited():
		return c.skip(f.length)
	case f.isResource():
		if !r.Delta {
			err = c.skip(f.length)
		} else if err = c.checkElement(f.length); err != nil {
			err = fmt.Errorf("resource %d: %w", r.count, err)
		}
		r.count++
	case f.isRemoved(r.Delta):
		var name []byte
		if f.length > maxName {
			return fmt.Errorf("the name of a removed resource has %d bytes, and %d are the most", f.length, maxName)
		}
		if name, err = c.bytes(f.length); err == nil && !utf8.Valid(name) {
			return errUTF8
		}
		r.removed++
	case f.number == 1:
		r.Version, err = c.text("version", f.length, maxOpaque)
	case f.number == 4:
		r.TypeURL, err = c.text("type URL", f.length, maxTypeURL)
	case f.number == nonce:
		r.Nonce, err = c.text("nonce", f.length, maxOpaque)
	case f.number == controlPlane:
		var v []byte
		if v, err = c.bytes(f.length); err == nil {
			r.ControlPlane = identifier(v, r.ControlPlane)
		}
	default:
		err = c.skip(f.length)
	}
	return err
}

// identifier returns the identifier of an encoded ControlPlane; id when there is none in it, or
// it is broken: nothing depends on it.
func identifier(data []byte, id string) string {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return id
		}
		m := protowire.ConsumeFieldValue(num, typ, data[n:])
		if m < 0 {
			return id
		}
		if num == 1 && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(data[n:])
			id = clean(string(v[:min(len(v), maxErrorText+1)]))
		}
		data = data[n+m:]
	}
	return id
}

// field is the head of a field of a message: its value has not been read, and has that many
// bytes. The value of a field with a varint or of a group was read, and has none.
type field struct {
	number protowire.Number
	typ    protowire.Type
	length int
}

func (f field) delimited() bool { return f.typ == protowire.BytesType }

func (f field) isResource() bool { return f.number == 2 && f.delimited() }

func (f field) isRemoved(delta bool) bool { return delta && f.number == 6 && f.delimited() }

// cursor reads a message that is spread over buffers.
type cursor struct {
	buffers mem.BufferSlice
	here    []byte // what is left of the present buffer
	left    int    // bytes from here to the end of the message
	groups  int    // that are open
	scratch []byte // holds what is asked for in one piece and is not
}

func newCursor(buffers mem.BufferSlice) *cursor {
	return &cursor{buffers: buffers, left: buffers.Len()}
}

var errTruncated = io.ErrUnexpectedEOF

// fill makes here have something, where anything is left.
func (c *cursor) fill() {
	for len(c.here) == 0 && len(c.buffers) > 0 {
		c.here, c.buffers = c.buffers[0].ReadOnlyData(), c.buffers[1:]
	}
}

// ReadByte implements io.ByteReader.
func (c *cursor) ReadByte() (byte, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.fill()
	b := c.here[0]
	c.here, c.left = c.here[1:], c.left-1
	return b, nil
}

func (c *cursor) uvarint() (uint64, error) {
	if v, n := binary.Uvarint(c.here[:min(len(c.here), c.left)]); n > 0 {
		c.here, c.left = c.here[n:], c.left-n
		return v, nil
	}
	v, err := binary.ReadUvarint(c)
	if errors.Is(err, io.EOF) {
		err = errTruncated
	}
	return v, err
}

// next reads the head of the next field that is in no group; io.EOF at the end.
func (c *cursor) next() (field, error) {
	for {
		if c.left == 0 {
			if c.groups > 0 {
				return field{}, errTruncated
			}
			return field{}, io.EOF
		}
		f, err := c.head()
		if err != nil || c.groups == 0 {
			return f, err
		}
		if err := c.skip(f.length); err != nil {
			return field{}, err
		}
	}
}

func (c *cursor) head() (field, error) {
	tag, err := c.uvarint()
	if err != nil {
		return field{}, err
	}
	f := field{}
	if f.number, f.typ = protowire.DecodeTag(tag); f.number < protowire.MinValidNumber {
		return field{}, errors.New("invalid field number")
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
	case protowire.StartGroupType:
		c.groups++
	case protowire.EndGroupType:
		if c.groups--; c.groups < 0 {
			err = errors.New("mismatching end group marker")
		}
	default:
		err = errors.New("cannot parse reserved wire type")
	}
	if err == nil && length > uint64(c.left) { //nolint:gosec // never negative
		err = errTruncated
	}
	f.length = int(length) //nolint:gosec // at most left
	return f, err
}

func (c *cursor) skip(n int) error {
	if n > c.left {
		return errTruncated
	}
	for c.left -= n; n > len(c.here); c.fill() {
		n -= len(c.here)
		c.here = nil
	}
	c.here = c.here[n:]
	return nil
}

// bytes returns the next n bytes in one piece: they are copied only when they are spread over
// buffers, to where the next call copies to, too.
func (c *cursor) bytes(n int) ([]byte, error) {
	if n > c.left {
		return nil, errTruncated
	}
	if c.fill(); n <= len(c.here) {
		b := c.here[:n:n]
		c.here, c.left = c.here[n:], c.left-n
		return b, nil
	}
	c.scratch = slices.Grow(c.scratch[:0], n)
	for c.left -= n; n > 0; c.fill() {
		m := min(n, len(c.here))
		c.scratch = append(c.scratch, c.here[:m]...)
		c.here, n = c.here[m:], n-m
	}
	return slices.Clip(c.scratch), nil
}

// text returns the next n bytes, unless these are too many.
func (c *cursor) text(what string, n, most int) (string, error) {
	if n > most {
		return "", fmt.Errorf("its %s has %d bytes, and %d are the most", what, n, most)
	}
	b, err := c.bytes(n)
	return string(b), err
}

// within calls read with the next n bytes as a message of its own, and skips what it leaves.
func (c *cursor) within(n int, read func() error) error {
	outer := c.left - n
	c.left = n
	err := read()
	if skipped := c.skip(c.left); err == nil {
		err = skipped
	}
	c.left, c.groups = outer, 0
	return err
}

// element reads a resource of n bytes. One that is larger than limit is not copied.
func (c *cursor) element(n int, delta bool, limit int) (r RawResource, err error) {
	switch {
	case delta && n > limit+2*maxName:
		r.Size = n
		err = c.within(n, func() error { return c.largeElement(&r) })
	case delta:
		var data []byte
		if data, err = c.bytes(n); err == nil {
			r, err = parseElement(data)
		}
	case n > limit:
		r.Size, r.head = n, c.outline(n)
	default:
		r.Size = n
		r.Any, err = c.bytes(n)
	}
	return r, err
}

// parseElement takes an encoded envoy.service.discovery.v3.Resource apart.
func parseElement(data []byte) (r RawResource, err error) {
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return r, protowire.ParseError(n)
		}
		m := protowire.ConsumeFieldValue(num, typ, data[n:])
		if m < 0 {
			return r, protowire.ParseError(m)
		}
		if typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(data[n:])
			switch v = v[:len(v):len(v)]; {
			case num == 1:
				r.Version = v
			case num == 2 && r.Any != nil:
				// A field that comes twice is merged, and concatenation does that.
				r.Any = append(r.Any, v...)
			case num == 2:
				r.Any = v
			case num == 3:
				r.Name = v
			}
		}
		data = data[n+m:]
	}
	r.Size = len(r.Any)
	return r, nil
}

// largeElement reads the rest as a Resource that is too large to be used.
func (c *cursor) largeElement(r *RawResource) error {
	for {
		f, err := c.next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch {
		case f.number == 2 && f.delimited():
			r.head = c.outline(f.length)
		case f.number == 1 && f.delimited():
			r.Version, err = c.copied(f.length)
		case f.number == 3 && f.delimited():
			r.Name, err = c.copied(f.length)
		default:
			err = c.skip(f.length)
		}
		if err != nil {
			return err
		}
	}
}

// checkElement returns an error when a Resource of n bytes is broken.
func (c *cursor) checkElement(n int) error {
	return c.within(n, func() error {
		for {
			f, err := c.next()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if f.delimited() && (f.number == 1 || f.number == 3) && f.length > maxName {
				return fmt.Errorf("its name or version has %d bytes, and %d are the most", f.length, maxName)
			}
			if err := c.skip(f.length); err != nil {
				return err
			}
		}
	})
}

func (c *cursor) copied(n int) ([]byte, error) {
	b, err := c.bytes(n)
	return bytes.Clone(b), err
}

const (
	// maxOutlined bounds a field that an outline has, and maxOutline all of it.
	maxOutlined = 4 << 10
	maxOutline  = 64 << 10
)

// outline returns the short fields of a message of n bytes and, in place of its longer ones,
// the outlines of these: with the metadata of a resource, and without its content. It is
// never nil.
func (c *cursor) outline(n int) []byte {
	return c.appendOutline(make([]byte, 0, 256), n, 2)
}

func (c *cursor) appendOutline(out []byte, n, depth int) []byte {
	// What is broken ends it: the resource is refused anyway.
	_ = c.within(n, func() error {
		for len(out) < maxOutline {
			f, err := c.next()
			if err != nil {
				return err
			}
			switch {
			case f.delimited() && f.length <= maxOutlined:
				v, err := c.bytes(f.length)
				if err != nil {
					return err
				}
				out = protowire.AppendBytes(protowire.AppendTag(out, f.number, f.typ), v)
			case f.delimited() && depth > 0:
				inner := c.appendOutline(nil, f.length, depth-1)
				out = protowire.AppendBytes(protowire.AppendTag(out, f.number, f.typ), inner)
			default:
				if err := c.skip(f.length); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return out
}
