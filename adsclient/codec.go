package adsclient

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// rawMessage is a received message that is not decoded, in the buffers of gRPC.
type rawMessage struct{ buffers mem.BufferSlice }

// codec does not decode received messages, and encodes requests as gRPC does.
type codec struct{ encoding.CodecV2 }

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	v.(*rawMessage).buffers = data
	return nil
}
