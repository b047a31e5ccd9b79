package downstream

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"meshrelay/downstream/snapshot"
)

// codec passes the buffers of a Message to gRPC without copying, and decodes requests with incoming.take. For
// all other messages it uses gRPC's codec for protobuf.
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
