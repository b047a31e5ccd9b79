package snapshot

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Message is an encoded response: buffers that are handed to the transport as they
// are, most of them shared with other clients.
type Message struct {
	Buffers mem.BufferSlice
	Size    int
}

// SotW builds a DiscoveryResponse from frames (encoded resources fields); the
// first buffer is left free for the fields before them.
func SotW(typeURL, version, nonce string, controlPlane []byte, frames mem.BufferSlice, size int) *Message {
	b := make([]byte, 0, 24+len(version)+len(typeURL)+len(nonce)+len(controlPlane))
	b = appendString(b, 1, version)
	b = appendString(b, 4, typeURL)
	b = appendString(b, 5, nonce)
	b = appendBytes(b, 6, controlPlane)
	frames[0] = mem.SliceBuffer(b)
	return &Message{Buffers: frames, Size: size + len(b)}
}

// Delta builds a DeltaDiscoveryResponse from entries (encoded resources
// fields) and removed names. system_version_info, which is for debugging only, is
// left out: it would be a good part of a small change.
func Delta(typeURL, nonce string, controlPlane []byte, entries mem.BufferSlice, size int, removed []string) *Message {
	n := 24 + len(typeURL) + len(nonce) + len(controlPlane)
	for _, name := range removed {
		n += 1 + protowire.SizeBytes(len(name))
	}
	b := make([]byte, 0, n)
	b = appendString(b, 4, typeURL)
	b = appendString(b, 5, nonce)
	for _, name := range removed {
		b = protowire.AppendTag(b, 6, protowire.BytesType)
		b = protowire.AppendString(b, name)
	}
	b = appendBytes(b, 7, controlPlane)
	buffers := make(mem.BufferSlice, 0, 1+len(entries))
	buffers = append(buffers, mem.SliceBuffer(b))
	buffers = append(buffers, entries...)
	return &Message{Buffers: buffers, Size: size + len(b)}
}

// FirstNoncePrefix begins the nonces of first responses.
const FirstNoncePrefix = "first/"

// FirstNonce is the nonce of the first response of a type on any stream. All others are
// numbers, from 1 on.
func FirstNonce(typeURL string) string { return FirstNoncePrefix + typeURL }

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendBytes(b, v)
}
