package attacks

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// Numbers of the fields of requests and responses that attacks fill.
const (
	sotwNode, sotwNames, sotwType, sotwError            protowire.Number = 2, 3, 4, 6
	deltaNode, deltaType, deltaNames, deltaLeave        protowire.Number = 1, 2, 3, 4
	deltaVersions, deltaError                           protowire.Number = 5, 7
	responseVersion, responseResources, responseTypeURL protowire.Number = 1, 2, 4
	responseNonce, sotwControlPlane, deltaRemoved       protowire.Number = 5, 6, 6
)

// field encodes one field.
func field(num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), value)
}

func text(num protowire.Number, value string) []byte { return field(num, []byte(value)) }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// repeat encodes n fields, each with what value makes of its number.
func repeat(num protowire.Number, n int, value func(i int) string) []byte {
	var b []byte
	for i := range n {
		b = protowire.AppendTag(b, num, protowire.BytesType)
		b = protowire.AppendString(b, value(i))
	}
	return b
}

// node encodes a node with metadata.
func node(metadata map[string]*structpb.Value) []byte {
	b, err := proto.Marshal(&corev3.Node{Id: "sidecar~10.0.0.66~evil.ns~ns.svc.cluster.local", Metadata: &structpb.Struct{Fields: metadata}})
	if err != nil {
		panic(err)
	}
	return b
}

// raw returns a message that is sent as these bytes. Many streams can share them.
func raw(b []byte) *discoveryv3.DiscoveryResponse {
	m := &discoveryv3.DiscoveryResponse{}
	m.ProtoReflect().SetUnknown(b)
	return m
}

// codec sends raw messages without a copy.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(proto.Message); ok && len(m.ProtoReflect().GetUnknown()) > 0 {
		return mem.BufferSlice{mem.SliceBuffer(m.ProtoReflect().GetUnknown())}, nil
	}
	return c.CodecV2.Marshal(v)
}

func compressed() grpc.DialOption {
	return grpc.WithCompressor(grpc.NewGZIPCompressor()) //nolint:staticcheck // the other way registers it for all servers here, too
}

// dial connects to a relay from an address.
func (s *stage) dial(from, to string, opts ...grpc.DialOption) *grpc.ClientConn {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := grpc.NewClient("passthrough:///"+to, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(1<<30)),
	}, opts...)...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	return conn
}

// shared returns the i-th of the connections that streams of the attacker share.
func (s *stage) shared(i int) *grpc.ClientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.conns) <= i {
		s.conns = append(s.conns, s.dial(attacker, s.address))
	}
	return s.conns[i]
}

const (
	sotw  = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	delta = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
)

// open opens a stream, which stays open to the end of the stage.
func (s *stage) open(conn *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	return conn.NewStream(s.ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.WaitForReady(true))
}

// ask opens a stream, sends requests, and waits until the relay has dealt with them: it has ended
// the stream, or has answered one more request. The stream stays open, and acknowledges what it is
// sent by delta. What ended the stream is told.
func (s *stage) ask(conn *grpc.ClientConn, method string, requests ...[]byte) {
	stream, err := s.open(conn, method)
	if err != nil {
		s.tell("%v", err)
		return
	}
	last := text(sotwType, meshType)
	if method == delta {
		last = text(deltaType, meshType)
	}
	acks := make(chan []byte, 1<<10) // so that responses are read while nobody reads requests
	go func() {
		for _, r := range append(slices.Clone(requests), last) {
			if stream.SendMsg(raw(r)) != nil {
				return // RecvMsg tells why
			}
		}
		for r := range acks {
			if stream.SendMsg(raw(r)) != nil {
				return
			}
		}
	}()
	done := make(chan error, 1)
	go func() {
		defer close(acks)
		for {
			resp, ack, err := s.receive(stream, method)
			if err == nil && resp != meshType {
				if ack != nil {
					acks <- ack
				}
				continue
			}
			select {
			case done <- err:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	if err := await.Value(soft{s}, "an answer to the attacker, or the end of its stream", done); err != nil {
		s.tell("%v", err)
	}
}

// receive returns the type of the next response, and on delta streams what acknowledges it.
func (s *stage) receive(stream grpc.ClientStream, method string) (typeURL string, ack []byte, err error) {
	if method == sotw {
		var resp discoveryv3.DiscoveryResponse
		err := stream.RecvMsg(&resp)
		s.received.Add(int64(proto.Size(&resp)))
		return resp.TypeUrl, nil, err
	}
	var resp discoveryv3.DeltaDiscoveryResponse
	if err := stream.RecvMsg(&resp); err != nil {
		return "", nil, err
	}
	s.received.Add(int64(proto.Size(&resp)))
	return resp.TypeUrl, join(text(deltaType, resp.TypeUrl), text(6, resp.Nonce)), nil
}

// together calls f n times at once.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// requests makes an attack of a stream that sends these requests.
func requests(method string, all [][]byte, opts ...grpc.DialOption) func(*stage, int) {
	return func(s *stage, n int) {
		together(n, func(int) { s.ask(s.dial(attacker, s.address, opts...), method, all...) })
	}
}

// respond makes an attack of a response of all attacking upstreams at once.
func respond(response func() []byte, times int) func(*stage, int) {
	return func(s *stage, _ int) {
		m := raw(response())
		together(len(s.west), func(i int) {
			s.await("the upstream is asked", func() bool {
				return slices.ContainsFunc(s.west[i].Requests(), func(r fakexds.Request) bool { return r.TypeURL == entryType })
			})
			for range times {
				s.west[i].Send(m)
			}
		})
	}
}
