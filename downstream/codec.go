package downstream

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"meshrelay/downstream/snapshot"
)

// codec encodes messages by handing out their buffers, and decodes requests by
// incoming.take. Everything else goes through gRPC's own codec for protobuf.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if in, ok := v.(*incoming); ok {
		return in.take(data)
	}
	return c.CodecV2.Unmarshal(data, v)
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*snapshot.Message); ok {
		return m.Buffers, nil
	}
	return c.CodecV2.Marshal(v)
}
