package adsclient

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse. Its resources are only
// valid while the handler runs.
type Response struct {
	TypeURL string
	// Version is version_info or system_version_info: opaque, and no sign of change
	// (PROTOCOL C5).
	Version string
	Nonce   string
	// ControlPlane is control_plane.identifier, often empty, in printable characters and
	// cut where it is long.
	ControlPlane string
	// Delta says that it came on a delta stream. Removed are the names of what is gone.
	Delta   bool
	Removed []string
	// Complete says that the resources are all that there are: always in SotW, and in
	// delta when the server could not be told what is held, so that it sends its whole
	// state. (Neither istiod nor a relay splits that over several responses.)
	Complete bool
	// Relist tells that the response answers a request for everything, a periodic one or
	// one of Client.Relist (PROTOCOL C4): it is the first of its type after that request, and
	// not the first of its stream. A push that was under way when the request was written is
	// taken for it, and its answer then for a push: the mark is right about how often, and
	// can be wrong, by what changed within a round trip, about what the answer holds.
	// Never set for what is asked for by name. It is Complete on SotW streams. On a delta
	// stream it may be one of several parts.
	Relist bool

	data  []byte
	count int
}

// RawResource is one element of a response, not decoded.
type RawResource struct {
	// Name and Version are empty in SotW responses.
	Name, Version []byte
	// Any is an encoded google.protobuf.Any.
	Any []byte
}

// Len returns the number of resources.
func (r *Response) Len() int { return r.count }

// leastResource is about what a resource has at least, in bytes.
const leastResource = 128

// Room returns for how many resources to make room before they are looked at: Len, but where
// most of them can be none, as they have next to no bytes.
func (r *Response) Room() int { return min(r.count, len(r.data)/leastResource) }

// Size returns the size of the encoded response in bytes.
func (r *Response) Size() int { return len(r.data) }

// Resources yields the resources in the order in which they were sent.
func (r *Response) Resources() iter.Seq[RawResource] {
	return func(yield func(RawResource) bool) {
		data := r.data
		for len(data) > 0 {
			num, value, n := nextField(data)
			if n < 0 {
				return // parse has made sure that this does not happen
			}
			data = data[n:]
			if num != 2 || value == nil {
				continue
			}
			raw := RawResource{Any: value}
			if r.Delta {
				raw, _ = parseElement(value)
			}
			if !yield(raw) {
				return
			}
		}
	}
}

// nextField returns the number of the first field of an encoded message, its value if
// it is length-delimited (never nil then), and its whole length; negative when the
// message is broken.
func nextField(data []byte) (protowire.Number, []byte, int) {
	num, typ, n := protowire.ConsumeTag(data)
	if n < 0 {
		return 0, nil, n
	}
	if typ == protowire.BytesType {
		v, m := protowire.ConsumeBytes(data[n:])
		if m < 0 {
			return 0, nil, m
		}
		return num, v[:len(v):len(v)], n + m
	}
	m := protowire.ConsumeFieldValue(num, typ, data[n:])
	if m < 0 {
		return 0, nil, m
	}
	return num, nil, n + m
}

// parseElement takes an encoded envoy.service.discovery.v3.Resource apart.
func parseElement(data []byte) (RawResource, error) {
	var r RawResource
	for len(data) > 0 {
		num, v, n := nextField(data)
		if n < 0 {
			return RawResource{}, protowire.ParseError(n)
		}
		data = data[n:]
		switch {
		case v == nil:
		case num == 1:
			r.Version = v
		case num == 2 && r.Any != nil:
			// A field that comes twice is merged, and concatenation does that.
			r.Any = append(slices.Clip(r.Any), v...)
		case num == 2:
			r.Any = v
		case num == 3:
			r.Name = v
		}
	}
	return r, nil
}

const (
	// maxOther bounds the bytes of a response that are neither resources nor names of removed
	// ones.
	maxOther = 1 << 20
	// maxElements bounds the resources, and the names, of a response. Each costs more here than
	// the two bytes that it may have on the wire.
	maxElements = 1 << 22
)

// What is sent back to the server of a response, and waits until it is read, is bounded in
// bytes: its type URL, and each of its version and nonce.
const (
	maxTypeURL = 1 << 10
	maxOpaque  = 32 << 10
)

var errUTF8 = errors.New("a string is not valid UTF-8")

// ParseResponse checks the framing of an encoded DiscoveryResponse or, with delta, a
// DeltaDiscoveryResponse. The Response refers to data.
func ParseResponse(data []byte, delta bool) (*Response, error) {
	r := &Response{Delta: delta, Complete: !delta, data: data}
	nonce, controlPlane, removed := protowire.Number(5), protowire.Number(6), protowire.Number(-1)
	if delta {
		controlPlane, removed = 7, removedField
	}
	other := 0
	for rest := data; len(rest) > 0; {
		num, v, n := nextField(rest)
		if n < 0 {
			return nil, fmt.Errorf("response does not decode: %w", protowire.ParseError(n))
		}
		rest = rest[n:]
		if v == nil || num != 2 && num != removed {
			if other += n; other > maxOther {
				return nil, errOther(other)
			}
		}
		if v == nil {
			continue
		}
		switch num {
		case 1:
			r.Version = string(v)
		case 2:
			if delta {
				if _, err := parseElement(v); err != nil {
					return nil, fmt.Errorf("response does not decode: resource %d: %w", r.count, err)
				}
			}
			r.count++
		case 4:
			r.TypeURL = string(v)
		case nonce:
			r.Nonce = string(v)
		case controlPlane:
			r.ControlPlane = identifier(v, r.ControlPlane)
		case removed:
			r.Removed = append(r.Removed, string(v))
		}
		if max(r.count, len(r.Removed)) > maxElements {
			return nil, fmt.Errorf("response does not decode: it has more than %d resources", maxElements)
		}
	}
	if len(r.TypeURL) > maxTypeURL {
		return nil, fmt.Errorf("response does not decode: its type URL has %d bytes, and %d are the most", len(r.TypeURL), maxTypeURL)
	}
	if n := max(len(r.Version), len(r.Nonce)); n > maxOpaque {
		return nil, fmt.Errorf("response does not decode: its version or nonce has %d bytes, and %d are the most", n, maxOpaque)
	}
	for _, s := range append([]string{r.Version, r.TypeURL, r.Nonce}, r.Removed...) {
		if !utf8.ValidString(s) {
			return nil, fmt.Errorf("response does not decode: %w", errUTF8)
		}
	}
	return r, nil
}

// identifier returns the identifier of an encoded ControlPlane; id when it says none,
// or is broken: nothing depends on it.
func identifier(data []byte, id string) string {
	for len(data) > 0 {
		num, v, n := nextField(data)
		if n < 0 {
			return id
		}
		data = data[n:]
		if num == 1 && v != nil {
			id = clean(string(v[:min(len(v), maxErrorText+1)]))
		}
	}
	return id
}

// removedField is the number of DeltaDiscoveryResponse.removed_resources.
const removedField = 6

func errOther(n int) error {
	return fmt.Errorf("response does not decode: its fields other than resources have %d bytes, and %d are the most", n, maxOther)
}

// checkOther returns an error when the fields of an encoded response other than resources are
// too large, before the response is copied. What is broken is for ParseResponse to tell.
func checkOther(data mem.BufferSlice, delta bool) error {
	if data.Len() <= maxOther {
		return nil
	}
	r := data.Reader()
	defer r.Close()
	other := 0
	for r.Remaining() > 0 {
		before := r.Remaining()
		tag, err := binary.ReadUvarint(r)
		if err != nil {
			return nil
		}
		num, typ := protowire.DecodeTag(tag)
		var length uint64
		switch typ {
		case protowire.BytesType:
			if length, err = binary.ReadUvarint(r); err != nil {
				return nil
			}
		case protowire.VarintType:
			_, err = binary.ReadUvarint(r)
		case protowire.Fixed32Type:
			length = 4
		case protowire.Fixed64Type:
			length = 8
		default:
			return nil
		}
		if err != nil || length > uint64(r.Remaining()) {
			return nil
		}
		if _, err := r.Discard(int(length)); err != nil {
			return nil
		}
		if typ != protowire.BytesType || num != 2 && (!delta || num != removedField) {
			if other += before - r.Remaining(); other > maxOther {
				return errOther(other)
			}
		}
	}
	return nil
}

// rawMessage receives a message as it is.
type rawMessage struct {
	buf   mem.Buffer
	delta bool // it is a DeltaDiscoveryResponse
}

// codec leaves received messages as they are and encodes requests as gRPC does.
type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*rawMessage)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if err := checkOther(data, m.delta); err != nil {
		return err
	}
	m.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	return nil
}
