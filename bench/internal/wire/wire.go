// Package wire handles xDS responses as bytes: what the clients, the upstreams and the
// floor of the benchmark have in common. It knows the framing of protobuf and of the two
// response messages, and nothing of what is in a resource.
package wire

import (
	"bytes"
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // for what is not bytes
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Message is an encoded response.
type Message struct{ Data mem.BufferSlice }

// Codec hands messages over as they are. The receiver frees them.
type Codec struct{ encoding.CodecV2 }

// NewCodec returns a Codec that leaves everything else to protobuf.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Marshal returns the bytes of a Message, and bytes, as they are.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *Message:
		return v.Data, nil
	case []byte:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal gives a Message the bytes.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*Message); ok {
		data.Ref()
		m.Data = data
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Field numbers that DiscoveryResponse and DeltaDiscoveryResponse have in common.
const (
	fieldVersion   = 1 // of a delta response: what the relay marks parts with
	FieldResources = 2
	FieldTypeURL   = 4
	FieldNonce     = 5
	FieldRemoved   = 6 // delta only
)

// Reader walks an encoded message that lies in several buffers.
type Reader struct {
	rest  []byte
	after []mem.Buffer
	at    int // bytes read
}

func newReader(data mem.BufferSlice) *Reader {
	r := &Reader{after: data}
	r.next()
	return r
}

// next makes the following buffers current until there is something to read.
func (r *Reader) next() {
	for len(r.rest) == 0 && len(r.after) > 0 {
		r.rest, r.after = r.after[0].ReadOnlyData(), r.after[1:]
	}
}

func (r *Reader) varint() (v uint64, ok bool) {
	for shift := 0; shift < 64; shift += 7 {
		if len(r.rest) == 0 {
			return 0, false
		}
		b := r.rest[0]
		r.rest = r.rest[1:]
		r.at++
		r.next()
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, true
		}
	}
	return 0, false
}

// Skip passes over the next n bytes.
func (r *Reader) Skip(n int) bool {
	r.at += n
	for n > len(r.rest) {
		n -= len(r.rest)
		r.rest = nil
		if r.next(); len(r.rest) == 0 {
			return false
		}
	}
	r.rest = r.rest[n:]
	r.next()
	return true
}

// Take returns the next n bytes, as a copy only when they lie in several buffers.
func (r *Reader) Take(n int) ([]byte, bool) {
	r.at += n
	if n <= len(r.rest) {
		b := r.rest[:n:n]
		r.rest = r.rest[n:]
		r.next()
		return b, true
	}
	b := make([]byte, 0, n)
	for len(b) < n {
		if len(r.rest) == 0 {
			return nil, false
		}
		m := min(n-len(b), len(r.rest))
		b = append(b, r.rest[:m]...)
		r.rest = r.rest[m:]
		r.next()
	}
	return b, true
}

// Walk hands each length-delimited field of the top level to f, which reads or skips
// its n bytes.
func Walk(data mem.BufferSlice, f func(num protowire.Number, n int, r *Reader) bool) error {
	return newReader(data).walk(func(num protowire.Number, n, _ int, r *Reader) bool { return f(num, n, r) })
}

// walk hands each length-delimited field to f, with the offset of its tag.
func (r *Reader) walk(f func(num protowire.Number, n, at int, r *Reader) bool) error {
	for len(r.rest) > 0 {
		at := r.at
		tag, ok := r.varint()
		if !ok {
			return fmt.Errorf("response is cut off")
		}
		num, typ := protowire.DecodeTag(tag)
		n, ok := r.varint()
		if typ == protowire.VarintType && ok {
			continue
		}
		if typ != protowire.BytesType || !ok || !f(num, int(n), at, r) {
			return fmt.Errorf("response is broken at field %d of wire type %d", num, typ)
		}
	}
	return nil
}

// Head is what a client must know of a response to answer it.
type Head struct {
	TypeURL, Nonce string
	Resources      int
	Removed        int
	Part           bool // more parts of the answer follow
	// From is the offset of the first resource, and To that of what follows the last, when nothing lies
	// between them; else both are 0.
	From, To int
}

// ReadHead reads the Head of an encoded response.
func ReadHead(data mem.BufferSlice) (h Head, err error) {
	scattered := false
	err = newReader(data).walk(func(num protowire.Number, n, at int, r *Reader) bool {
		switch num {
		case FieldResources:
			if h.Resources++; h.Resources == 1 {
				h.From, h.To = at, at
			}
			scattered = scattered || h.To != at
			ok := r.Skip(n)
			h.To = r.at
			return ok
		case FieldRemoved:
			h.Removed++
		case fieldVersion, FieldTypeURL, FieldNonce:
			b, ok := r.Take(n)
			switch num {
			case fieldVersion:
				h.Part = string(b) == "part"
			case FieldTypeURL:
				h.TypeURL = string(b)
			default:
				h.Nonce = string(b)
			}
			return ok
		}
		return r.Skip(n)
	})
	if scattered {
		h.From, h.To = 0, 0
	}
	return h, err
}

// Equal reports whether data has the bytes b at an offset.
func Equal(data mem.BufferSlice, from int, b []byte) bool {
	for _, one := range data {
		part := one.ReadOnlyData()
		if from >= len(part) {
			from -= len(part)
			continue
		}
		part = part[from:]
		from = 0
		n := min(len(part), len(b))
		if !bytes.Equal(part[:n], b[:n]) {
			return false
		}
		if b = b[n:]; len(b) == 0 {
			return true
		}
	}
	return len(b) == 0
}

// Copy returns a copy of the bytes of data in [from, to).
func Copy(data mem.BufferSlice, from, to int) []byte {
	r := newReader(data)
	r.Skip(from)
	b, _ := r.Take(to - from)
	return bytes.Clone(b)
}

// Fields walks the length-delimited fields of a message in one piece.
func Fields(b []byte, f func(num protowire.Number, v []byte)) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		if typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return
			}
			f(num, v)
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return
		}
		b = b[n:]
	}
}

// Field returns the last length-delimited field of that number.
func Field(b []byte, num protowire.Number) (value []byte) {
	Fields(b, func(n protowire.Number, v []byte) {
		if n == num {
			value = v
		}
	})
	return value
}
