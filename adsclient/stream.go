package adsclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// relayHeader is the response header by which a relay says that it is one.
	relayHeader = "x-meshrelay"
	// probeTimeout is how long a server has to say whether it is a relay.
	probeTimeout = 10 * time.Second
	// maxRequestBytes is what a request stays below: istiod's receive limit is 4 MiB
	// (PROTOCOL C15), a relay's 32.
	maxRequestBytes      = 3 << 20
	maxRelayRequestBytes = 30 << 20
	// maxResponseBytes is what a response may be: as much as gRPC can frame.
	maxResponseBytes = 1<<31 - 1
	// acksWaiting bounds the acknowledgements that wait for the server to read them.
	acksWaiting = 1024
	// maxDetail bounds the text of a NACK.
	maxDetail = 4096

	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

var streamDesc = &grpc.StreamDesc{StreamName: "AggregatedResources", ServerStreams: true, ClientStreams: true}

func dialOptions(own []grpc.DialOption) []grpc.DialOption {
	return append([]grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxResponseBytes),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}),
		),
		grpc.WithDisableServiceConfig(),
	}, own...)
}

// attempt connects to an address and serves a stream to its end. answered reports
// whether the stream brought a response.
func (c *Client) attempt(ctx context.Context, address string) (answered bool, err error) {
	c.handler.HandleState(State{Phase: Connecting, Address: address})
	// passthrough: the name is looked up anew for each connection.
	conn, err := grpc.NewClient("passthrough:///"+address, dialOptions(c.cfg.DialOptions)...)
	if err != nil {
		return false, fmt.Errorf("%s: %w", address, err)
	}
	defer conn.Close()
	defer func() {
		if !answered {
			delete(c.sotwOnly, address)
		}
	}()
	protocol := c.cfg.Protocol
	auto := protocol == Auto
	if auto {
		protocol = Delta
		if c.sotwOnly[address] {
			protocol = SotW
		}
	}
	s := &stream{client: c, address: address, protocol: protocol}
	answered, err = s.run(ctx, conn, auto)
	if auto && protocol == Delta && (errors.Is(err, errNotRelay) || status.Code(err) == codes.Unimplemented) {
		c.sotwOnly[address] = true
		s = &stream{client: c, address: address, protocol: SotW}
		answered, err = s.run(ctx, conn, false)
	}
	return answered, err
}

// errNotRelay ends the probe of a server that is no relay.
var errNotRelay = errors.New("server is not a relay")

// stream is one ADS stream.
type stream struct {
	client   *Client
	address  string
	protocol Protocol
	relay    bool
	types    []string
	grpc     grpc.ClientStream
	out      chan proto.Message // acknowledgements and resyncs, for the writer
	// accepted is, by type, the version of the last response that was accepted.
	accepted map[string]string

	// complete are the types whose next response is the server's whole state, because
	// it could not be told what is held. The writer sets it, the reader uses it.
	mu       sync.Mutex
	complete map[string]bool
}

// run opens the stream and serves it. With probe it fails with errNotRelay unless the
// server turns out to be a relay.
func (s *stream) run(ctx context.Context, conn *grpc.ClientConn, probe bool) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	method := sotwMethod
	if s.protocol == Delta {
		method = deltaMethod
	}
	if s.grpc, err = conn.NewStream(ctx, streamDesc, method); err != nil {
		return false, s.failed(err)
	}
	s.accepted, s.complete = map[string]string{}, map[string]bool{}
	s.out = make(chan proto.Message, acksWaiting)
	s.types = s.client.cfg.TypeURLs(false)
	sent := 0
	if s.protocol == Delta {
		// A relay's headers come as soon as the stream is open; an istiod's come with its
		// first answer, so it is asked for one small thing.
		if err := s.grpc.SendMsg(s.firstRequest(0)); err != nil {
			return false, s.failed(s.endOf(err))
		}
		sent = 1
		if s.relay, err = s.isRelay(ctx); err != nil {
			return false, s.failed(err)
		}
		if probe && !s.relay {
			return false, errNotRelay
		}
	}
	if s.relay {
		first := s.types[0]
		s.types = s.client.cfg.TypeURLs(true)
		if sent == 1 && s.types[0] != first {
			return false, fmt.Errorf("%s: the first type differs for relays: %s and %s", s.address, first, s.types[0])
		}
	}
	s.client.handler.HandleState(State{Phase: Streaming, Address: s.address, Protocol: s.protocol, Relay: s.relay})

	// Requests are written while responses are read: a server with much to answer
	// would otherwise fill its window while we fill ours, and both would wait.
	written := make(chan error, 1)
	go func() { written <- s.write(ctx, sent) }()
	answered, err = s.read(ctx)
	cancel()
	if werr := <-written; err == nil {
		err = werr
	}
	return answered, s.failed(err)
}

// isRelay waits for the response headers, for as long as a relay may need.
func (s *stream) isRelay(ctx context.Context) (bool, error) {
	type result struct {
		relay bool
		err   error
	}
	done := make(chan result, 1) // the goroutine ends with the stream at the latest
	go func() {
		md, err := s.grpc.Header()
		if err == nil && md == nil {
			// The stream has ended without headers: its status says why.
			err = s.grpc.RecvMsg(&rawMessage{})
		}
		done <- result{len(md.Get(relayHeader)) > 0, err}
	}()
	late := time.NewTimer(probeTimeout)
	defer late.Stop()
	select {
	case r := <-done:
		return r.relay, r.err
	case <-late.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (s *stream) failed(err error) error {
	if err == nil || errors.Is(err, errNotRelay) {
		return err
	}
	return fmt.Errorf("%s: %w", s.address, err)
}

// endOf returns the status of a stream on which a send failed, which says io.EOF.
func (s *stream) endOf(sendErr error) error {
	if err := s.grpc.RecvMsg(&rawMessage{}); err != nil {
		return err
	}
	return sendErr
}

// write sends the first request of each type but those sent already, then whatever
// is to be acknowledged or asked for again.
func (s *stream) write(ctx context.Context, sent int) error {
	for i := sent; i < len(s.types); i++ {
		if err := s.grpc.SendMsg(s.firstRequest(i)); err != nil {
			return nil // the reader learns why
		}
	}
	resync := make(<-chan time.Time)
	var timer *time.Timer
	if s.client.cfg.ResyncInterval > 0 && s.protocol == SotW {
		timer = time.NewTimer(jitter(s.client.cfg.ResyncInterval))
		defer timer.Stop()
		resync = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-s.out:
			if err := s.grpc.SendMsg(m); err != nil {
				return nil
			}
		case <-resync:
			for _, typeURL := range s.types {
				// An empty nonce asks for the full state again (PROTOCOL C4, C6).
				if err := s.grpc.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL}); err != nil {
					return nil
				}
			}
			timer.Reset(jitter(s.client.cfg.ResyncInterval))
		}
	}
}

// firstRequest subscribes to the type with that number. The first of the stream
// carries the node.
func (s *stream) firstRequest(i int) proto.Message {
	typeURL := s.types[i]
	if s.protocol == SotW {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL}
		if i == 0 {
			req.Node = s.client.cfg.Node()
		}
		return req
	}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, InitialResourceVersions: s.client.handler.ResumeVersions(typeURL)}
	if i == 0 {
		req.Node = s.client.cfg.Node()
	}
	limit := maxRequestBytes
	if s.relay {
		limit = maxRelayRequestBytes
	}
	if len(req.InitialResourceVersions) > 0 && proto.Size(req) > limit {
		// The server could not receive it. Without, everything is sent.
		req.InitialResourceVersions = nil
		s.mu.Lock()
		s.complete[typeURL] = true
		s.mu.Unlock()
	}
	return req
}

// read hands responses to the handler until the stream ends.
func (s *stream) read(ctx context.Context) (answered bool, err error) {
	for {
		var m rawMessage
		if err := s.grpc.RecvMsg(&m); err != nil {
			return answered, err
		}
		resp, err := ParseResponse(m.buf.ReadOnlyData(), s.protocol == Delta)
		if err != nil {
			m.buf.Free()
			return answered, status.Error(codes.DataLoss, err.Error())
		}
		if !answered {
			answered = true
			s.client.handler.HandleState(State{Phase: Connected, Address: s.address, Protocol: s.protocol, Relay: s.relay})
		}
		s.mu.Lock()
		if s.complete[resp.TypeURL] {
			resp.Complete = true
			delete(s.complete, resp.TypeURL)
		}
		s.mu.Unlock()
		ack := s.acknowledge(resp, s.client.handler.HandleResponse(resp))
		m.buf.Free()
		if ack == nil {
			continue
		}
		select {
		case s.out <- ack:
		case <-ctx.Done():
			return answered, ctx.Err()
		}
	}
}

// acknowledge returns the ACK or NACK of a response, nil when it has no nonce to
// acknowledge: an empty one would ask for it again (PROTOCOL C6).
func (s *stream) acknowledge(resp *Response, rejected error) proto.Message {
	if resp.Nonce == "" {
		return nil
	}
	var detail *rpcstatus.Status
	if rejected != nil {
		text := rejected.Error()
		if len(text) > maxDetail {
			text = text[:maxDetail] + "…"
		}
		detail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: toValidUTF8(text)}
	} else {
		s.accepted[resp.TypeURL] = resp.Version
	}
	if s.protocol == Delta {
		return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeURL, ResponseNonce: resp.Nonce, ErrorDetail: detail}
	}
	return &discoveryv3.DiscoveryRequest{
		TypeUrl: resp.TypeURL, ResponseNonce: resp.Nonce, VersionInfo: s.accepted[resp.TypeURL], ErrorDetail: detail,
	}
}
