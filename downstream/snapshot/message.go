package snapshot

import (
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Message is an encoded response. gRPC sends its buffers without copying. Most buffers are shared with other
// clients.
type Message struct {
	Buffers mem.BufferSlice
	Size    int
}

// SotW builds a DiscoveryResponse of frames, which are encoded resources. It puts the other fields into the
// first buffer, which the caller has left free.
func SotW(typeURL, version, nonce string, controlPlane []byte, frames mem.BufferSlice, size int) *Message {
	b := make([]byte, 0, 24+len(version)+len(typeURL)+len(nonce)+len(controlPlane))
	b = appendString(b, 1, version)
	b = appendString(b, 4, typeURL)
	b = appendString(b, 5, nonce)
	b = appendBytes(b, 6, controlPlane)
	frames[0] = mem.SliceBuffer(b)
	return &Message{Buffers: frames, Size: size + len(b)}
}

// PartMark is the system_version_info of a part: more of the same answer follows. The field is only for
// debugging. Other responses leave it out, because it would be a large share of a small response.
const PartMark = "part"

// Head has the fields of a DeltaDiscoveryResponse other than resources and removed names.
type Head struct {
	TypeURL, Nonce string
	ControlPlane   []byte // encoded
	Part           bool   // more of the same answer follows
}

// Delta builds a DeltaDiscoveryResponse of entries, which are encoded resources of size bytes, and of removed
// names.
func Delta(h Head, entries mem.BufferSlice, size int, removed []string) *Message {
	n := 32 + len(h.TypeURL) + len(h.Nonce) + len(h.ControlPlane)
	for _, name := range removed {
		n += 1 + protowire.SizeBytes(len(name))
	}
	b := make([]byte, 0, n)
	if h.Part {
		b = appendString(b, 1, PartMark)
	}
	b = appendString(b, 4, h.TypeURL)
	b = appendString(b, 5, h.Nonce)
	for _, name := range removed {
		b = protowire.AppendTag(b, 6, protowire.BytesType)
		b = protowire.AppendString(b, name)
	}
	b = appendBytes(b, 7, h.ControlPlane)
	buffers := make(mem.BufferSlice, 0, 1+len(entries))
	buffers = append(buffers, mem.SliceBuffer(b))
	buffers = append(buffers, entries...)
	return &Message{Buffers: buffers, Size: size + len(b)}
}

// FirstNoncePrefix is the prefix of the nonces of a first answer.
const FirstNoncePrefix = "first/"

// FirstNonce returns the nonce of a part of the first answer of a type; parts count from 1. It is the same on
// all streams, so that clients can share the answer. All other nonces are numbers.
func FirstNonce(typeURL string, part int) string {
	if part == 1 {
		return FirstNoncePrefix + typeURL
	}
	return FirstNoncePrefix + typeURL + "#" + strconv.Itoa(part)
}

// Cut returns how many entries fit into most bytes, at least one, and their size.
func Cut(entries mem.BufferSlice, most int) (n, size int) {
	for _, e := range entries {
		if n > 0 && size+e.Len() > most {
			break
		}
		n, size = n+1, size+e.Len()
	}
	return n, size
}

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
