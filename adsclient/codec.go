package adsclient

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// rawMessage receives a message as it is, in the buffers of gRPC.
type rawMessage struct{ buffers mem.BufferSlice }

// codec leaves received messages as they are and encodes requests as gRPC does.
type codec struct{ encoding.CodecV2 }

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	v.(*rawMessage).buffers = data
	return nil
}

// zipped leaves gzipped messages as they are, for unzip: gRPC's decompressor has a message in
// memory twice.
type zipped struct{ most int }

// Type implements grpc.Decompressor.
func (zipped) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (z zipped) Do(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(z.most)+1))
	if err == nil && len(b) > z.most {
		err = fmt.Errorf("it has more than %d bytes, which is a quarter of maxResponseBytes", z.most)
	}
	return b, err
}

// gzipMagic begins what is gzipped, and no message: there is no such field.
var gzipMagic = []byte{0x1f, 0x8b}

// unzip decompresses a message that zipped has left as it was, to limit bytes at most.
func (m *rawMessage) unzip(limit int, pool mem.BufferPool) error {
	if len(m.buffers) == 0 || !bytes.HasPrefix(m.buffers[0].ReadOnlyData(), gzipMagic) {
		return nil
	}
	defer m.buffers.Free()
	in, err := gzip.NewReader(m.buffers.Reader())
	if err != nil {
		return status.Errorf(codes.DataLoss, "response does not decompress: %v", err)
	}
	out, err := mem.ReadAll(io.LimitReader(in, int64(limit)+1), pool)
	switch {
	case err != nil:
		err = status.Errorf(codes.DataLoss, "response does not decompress: %v", err)
	case out.Len() > limit:
		err = errTooLarge(limit, "after decompression")
	default:
		m.buffers = out
		return nil
	}
	out.Free()
	return err
}
