package downstream

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/internal/wire"
)

const (
	// firstRequestBytes bounds the first request, without its node.
	firstRequestBytes = 256 << 10
	// maxVersions bounds the initial_resource_versions of a request.
	maxVersions = 600_000
	// leastDecoding and mostDecoding bound decoding.most, in bytes.
	leastDecoding, mostDecoding = 32 << 20, 128 << 20
	// smallRequest is the size up to which a request is decoded without waiting for others.
	smallRequest = 4 << 10
	// nodeCost is the memory for each byte of an encoded node, at most. otherCost is the same for any other
	// byte.
	nodeCost  = 40
	otherCost = 8
	// maxToken bounds nonces, versions, type URLs and error texts. The relay sends none that long.
	maxToken = 1024
)

// decoding bounds the memory of all requests that are being decoded.
type decoding struct {
	most int64 // bytes
	used *semaphore.Weighted
}

// newDecoding returns a decoding with room for one request of the largest size, within leastDecoding and
// mostDecoding.
func newDecoding(maxRequest int) decoding {
	most := min(max(int64(maxRequest)*otherCost, leastDecoding), mostDecoding)
	return decoding{most, semaphore.NewWeighted(most)}
}

// incoming receives the requests of one stream. The codec calls take, which checks the encoded request
// against the limits, and then decodes the fields that the relay uses.
type incoming struct {
	ctx      context.Context // of the stream
	decoding decoding
	first    bool // the next request is the first of the stream, which has the node
	limits   *atomic.Pointer[Limits]
	fields   *requestFields
	req      *request // the last request, nil if it was refused
	// err is why the request was refused. take does not return it, because gRPC would replace its status.
	err error
}

// request is a request of either protocol.
type request struct {
	subscription.Request
	node *corev3.Node // of the first request
}

// requestFields are field numbers of DiscoveryRequest or DeltaDiscoveryRequest; 0 means that it has no such
// field.
type requestFields struct {
	node, typeURL, nonce, detail, version protowire.Number
	subscribe, unsubscribe, versions      protowire.Number
}

var fieldsOf = map[string]*requestFields{
	protocolSotW:  {version: 1, node: 2, subscribe: 3, typeURL: 4, nonce: 5, detail: 6},
	protocolDelta: {node: 1, typeURL: 2, subscribe: 3, unsubscribe: 4, versions: 5, nonce: 6, detail: 7},
}

var errNotUTF8 = errors.New("a string field contains invalid UTF-8")

// outline has the sizes of the parts of an encoded request.
type outline struct {
	typeURL                          []byte
	node                             int // bytes
	subscribe, unsubscribe, versions int
}

// take decodes a request. It sets err if it refuses the request, and returns an error if it can not decode
// it.
func (in *incoming) take(data mem.BufferSlice) error {
	in.req, in.err = nil, nil
	limits := in.limits.Load()
	size := data.Len()
	if most := limits.MaxNodeBytes + firstRequestBytes; in.first && size > most {
		in.err = refusal.New(refusal.Bytes, codes.ResourceExhausted,
			"the first request has %d bytes, more than %d (the node and %d more): send names and versions of resources in a later one",
			size, most, firstRequestBytes)
		return nil
	}
	if size > smallRequest {
		cost := int64(size) * otherCost
		if in.first {
			cost = int64(size) * nodeCost
		}
		cost = min(cost, in.decoding.most)
		if err := in.decoding.used.Acquire(in.ctx, cost); err != nil {
			in.err = status.FromContextError(err).Err()
			return nil
		}
		defer in.decoding.used.Release(cost)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	raw := buf.ReadOnlyData()
	o, err := in.fields.outline(raw)
	if err != nil {
		return err
	}
	if in.err = in.check(o, limits); in.err != nil {
		return nil
	}
	in.req, err = in.fields.decode(raw, o, in.first && string(o.typeURL) != healthType)
	return err
}

// outline returns the outline of an encoded request. It allocates nothing.
func (f *requestFields) outline(raw []byte) (o outline, err error) {
	err = eachField(raw, func(num protowire.Number, v []byte) error {
		switch num {
		case f.typeURL:
			o.typeURL = v
		case f.node:
			o.node += len(v)
		case f.subscribe:
			o.subscribe++
		case f.unsubscribe:
			o.unsubscribe++
		case f.versions:
			o.versions++
		}
		return nil
	})
	return o, err
}

// check returns why a request is refused, nil if it is within the limits.
func (in *incoming) check(o outline, limits *Limits) error {
	switch most := limits.MaxNodeBytes; {
	case in.first && o.node > most && string(o.typeURL) != healthType:
		return refusal.New(refusal.Node, codes.InvalidArgument, "the node has %d bytes, more than %d", o.node, most)
	case max(o.subscribe, o.unsubscribe) > limits.MaxNamesPerClient:
		return subscription.TooManyNames(limits.MaxNamesPerClient)
	case o.versions > maxVersions:
		return refusal.New(refusal.Bytes, codes.ResourceExhausted, "a request with more than %d initial_resource_versions", maxVersions)
	}
	return nil
}

// eachField calls f with each length-delimited field of an encoded message, until it fails.
func eachField(raw []byte, f func(num protowire.Number, value []byte) error) error {
	c := wire.Fields(raw)
	for c.Next() {
		if c.Type == protowire.BytesType {
			if err := f(c.Number, c.Value()); err != nil {
				return err
			}
		}
	}
	return c.Err()
}

// decode decodes the fields that the relay uses. It decodes the node only if withNode is set.
func (f *requestFields) decode(raw []byte, o outline, withNode bool) (*request, error) {
	req := &request{}
	req.Subscribe = slices.Grow(req.Subscribe, o.subscribe)
	req.Unsubscribe = slices.Grow(req.Unsubscribe, o.unsubscribe)
	if o.versions > 0 {
		const usual = 32 // bytes of an entry, at least
		req.Versions = make(map[string]string, min(o.versions, len(raw)/usual))
	}
	return req, eachField(raw, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case f.version:
			return token(&req.Version, v)
		case f.node:
			if withNode {
				return mergeNode(&req.node, v)
			}
		case f.typeURL:
			return token(&req.TypeURL, v)
		case f.subscribe:
			req.Subscribe, err = appendName(req.Subscribe, v)
		case f.unsubscribe:
			req.Unsubscribe, err = appendName(req.Unsubscribe, v)
		case f.versions:
			return putVersion(req.Versions, v)
		case f.nonce:
			return token(&req.Nonce, v)
		case f.detail:
			req.Rejected = true
			return mergeDetail(&req.Error, v)
		}
		return err
	})
}

// token sets a text, cut to maxToken bytes. The relay sends no longer ones, so a cut text equals none of
// them.
func token(to *string, v []byte) error {
	if !utf8.Valid(v) {
		return errNotUTF8
	}
	*to = string(v[:min(len(v), maxToken)])
	return nil
}

func appendName(names []string, v []byte) ([]string, error) {
	if !utf8.Valid(v) {
		return names, errNotUTF8
	}
	return append(names, string(v)), nil
}

// putVersion adds an entry of initial_resource_versions.
func putVersion(versions map[string]string, entry []byte) error {
	var name, version string
	err := eachField(entry, func(num protowire.Number, v []byte) error {
		switch num {
		case 1, 2:
			if !utf8.Valid(v) {
				return errNotUTF8
			}
			if num == 1 {
				name = string(v)
			} else {
				version = string(v)
			}
		}
		return nil
	})
	if err == nil {
		versions[name] = version
	}
	return err
}

// mergeNode decodes only the fields that parseNode reads: all of them could take many times their bytes in
// memory.
func mergeNode(to **corev3.Node, v []byte) error {
	if *to == nil {
		*to = &corev3.Node{}
	}
	const id, metadata protowire.Number = 1, 3
	return eachField(v, func(num protowire.Number, v []byte) error {
		switch num {
		case id:
			if !utf8.Valid(v) {
				return errNotUTF8
			}
			(*to).Id = string(v)
		case metadata:
			if (*to).Metadata == nil {
				(*to).Metadata = &structpb.Struct{}
			}
			return proto.UnmarshalOptions{Merge: true}.Unmarshal(v, (*to).Metadata)
		}
		return nil
	})
}

// mergeDetail decodes the message of an error, without its details.
func mergeDetail(to *string, v []byte) error {
	const message protowire.Number = 2
	return eachField(v, func(num protowire.Number, v []byte) error {
		if num != message {
			return nil
		}
		return token(to, v)
	})
}
