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

// rawMessage is a received message that is not decoded, in the buffers of gRPC.
type rawMessage struct{ buffers mem.BufferSlice }

// codec does not decode received messages, and encodes requests as gRPC does.
type codec struct{ encoding.CodecV2 }

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	v.(*rawMessage).buffers = data
	return nil
}

// zipped leaves gzipped messages to unzip: gRPC's decompressor has a message in memory twice.
type zipped struct{ most int }

// Type implements grpc.Decompressor.
func (zipped) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (z zipped) Do(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(z.most)+1))
	if err == nil && len(b) > z.most {
		err = fmt.Errorf("it has more than %d compressed bytes, a quarter of maxResponseBytes", z.most)
	}
	return b, err
}

// gzipMagic begins gzipped data. No message begins with these bytes, because no field has such a tag.
var gzipMagic = []byte{0x1f, 0x8b}

// unzip decompresses a message, to limit bytes at most, unless it is not compressed.
func (m *rawMessage) unzip(limit int) error {
	if len(m.buffers) == 0 || !bytes.HasPrefix(m.buffers[0].ReadOnlyData(), gzipMagic) {
		return nil
	}
	defer m.buffers.Free()
	in, err := gzip.NewReader(m.buffers.Reader())
	if err != nil {
		return status.Errorf(codes.DataLoss, "response does not decompress: %v", err)
	}
	out, err := mem.ReadAll(io.LimitReader(in, int64(limit)+1), mem.DefaultBufferPool())
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
