package replay

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// encoded is a message that is encoded already.
type encoded []byte

// codec sends encoded messages as they are, so that resources stay the bytes that were recorded.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// sotwResponse returns an encoded DiscoveryResponse with all of a type.
func sotwResponse(t *typeState, nonce string) encoded {
	b := make([]byte, 0, sizeOf(t.resources)+len(t.url)+len(t.version)+64)
	b = appendText(b, 1, t.version)
	for _, r := range t.resources {
		b = appendBytes(b, 2, r.body)
	}
	b = appendText(b, 4, t.url)
	return appendText(b, 5, nonce)
}

// deltaResponse returns an encoded DeltaDiscoveryResponse.
func deltaResponse(t *typeState, resources []resource, removed []string, nonce string) encoded {
	b := make([]byte, 0, sizeOf(resources)+len(t.url)+len(t.version)+64)
	b = appendText(b, 1, t.version)
	for _, r := range resources {
		element := make([]byte, 0, len(r.body)+len(r.name)+len(r.version)+16)
		element = appendText(element, 1, r.version)
		element = appendBytes(element, 2, r.body)
		element = appendText(element, 3, r.name)
		b = appendBytes(b, 2, element)
	}
	b = appendText(b, 4, t.url)
	b = appendText(b, 5, nonce)
	for _, name := range removed {
		b = appendText(b, 6, name)
	}
	return b
}

func appendText(b []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

func appendBytes(b []byte, number protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), v)
}

// sizeOf returns about how many bytes resources take in a response.
func sizeOf(resources []resource) (n int) {
	for _, r := range resources {
		n += len(r.body) + len(r.name) + len(r.version) + 32
	}
	return n
}
