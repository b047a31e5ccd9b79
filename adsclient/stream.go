package adsclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
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
	// pingAfter and pingTimeout keep a connection alive, and notice when it is dead.
	// istiod ends connections that ping more often than every 15 s (PROTOCOL C17).
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// maxDetail bounds the text of a NACK.
	maxDetail = 4096

	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

var streamDesc = &grpc.StreamDesc{StreamName: "AggregatedResources", ServerStreams: true, ClientStreams: true}

func dialOptions(own []grpc.DialOption) []grpc.DialOption {
	return append([]grpc.DialOption{
		grpc.WithKeepaliveParams(keepaliveParams()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxResponseBytes),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}),
		),
		grpc.WithDisableServiceConfig(),
	}, own...)
}

func keepaliveParams() keepalive.ClientParameters {
	return keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: false}
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
	forgetful := c.forgetful[address] // and it may become so now
	defer func() {
		if answered {
			return
		}
		delete(c.sotwOnly, address)
		if forgetful {
			delete(c.forgetful, address)
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
		protocol = SotW
		s = &stream{client: c, address: address, protocol: SotW}
		answered, err = s.run(ctx, conn, false)
	}
	if auto && protocol == SotW && status.Code(err) == codes.Unimplemented {
		// Neither a relay nor an istiod, and delta is all that it has.
		s = &stream{client: c, address: address, protocol: Delta}
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
	out      chan proto.Message // acknowledgements, for the writer
	// accepted is, by type, the version of the last response that was accepted.
	accepted map[string]string
	// complete are the types whose next response is the server's whole state, because
	// it could not be told what is held. It is filled before the reader starts.
	complete map[string]bool
	// resumed says that a request told the server what is held.
	resumed bool

	// subscriptions and introduced are the writer's, and only of use when types are asked
	// for by name. introduced says that a request has carried the node.
	subscriptions map[string]*subscription
	introduced    bool
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
	s.accepted, s.complete, s.subscriptions = map[string]string{}, map[string]bool{}, map[string]*subscription{}
	s.out = make(chan proto.Message, acksWaiting)
	s.types = s.client.cfg.TypeURLs(false)
	var first []proto.Message
	if s.protocol == Delta {
		// A relay's headers come as soon as the stream is open; an istiod's come with its
		// first answer, so it is asked for one small thing.
		if err := s.grpc.SendMsg(s.firstRequest(0)); err != nil {
			return false, s.failed(s.endOf(err))
		}
		first = append(first, nil)
		if s.relay, err = s.isRelay(ctx); err != nil {
			return false, s.failed(err)
		}
		if probe && !s.relay {
			return false, errNotRelay
		}
	}
	if s.relay {
		asked := s.types[0]
		s.types = s.client.cfg.TypeURLs(true)
		if s.types[0] != asked {
			return false, fmt.Errorf("%s: the first type differs for relays: %s and %s", s.address, asked, s.types[0])
		}
	}
	// The handler is asked for all that it holds before it is given anything: its
	// methods are never called at the same time.
	for i := len(first); i < len(s.types) && !s.named(); i++ {
		first = append(first, s.firstRequest(i))
	}
	s.client.handler.HandleState(State{Phase: Streaming, Address: s.address, Protocol: s.protocol, Relay: s.relay})

	// Requests are written while responses are read: a server with much to answer
	// would otherwise fill its window while we fill ours, and both would wait.
	written := make(chan struct{})
	go func() {
		defer close(written)
		if s.named() {
			s.writeNames(ctx)
		} else {
			s.write(ctx, first)
		}
	}()
	answered, err = s.read()
	cancel()
	<-written
	if s.resumed && status.Code(err) == codes.ResourceExhausted {
		// It may be that a request was larger than the server takes, and an operator can
		// set that to less than we know of. Sent again, it would fail for ever.
		s.client.forgetful[s.address] = true
	}
	return answered, s.failed(err)
}

// isRelay waits for the response headers, for as long as a relay may need.
func (s *stream) isRelay(ctx context.Context) (bool, error) {
	type result struct {
		md  metadata.MD
		err error
	}
	done := make(chan result, 1) // the goroutine ends with the stream at the latest
	go func() {
		md, err := s.grpc.Header()
		done <- result{md, err}
	}()
	late := time.NewTimer(probeTimeout)
	defer late.Stop()
	select {
	case r := <-done:
		if r.err == nil && r.md == nil {
			// The stream has ended without headers: its status says why.
			return false, s.endOf(errNoHeader)
		}
		return len(r.md.Get(relayHeader)) > 0, r.err
	case <-late.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (s *stream) failed(err error) error {
	switch {
	case err == nil || errors.Is(err, errNotRelay):
		return err
	case errors.Is(err, io.EOF):
		err = errEnded
	}
	return fmt.Errorf("%s: %w", s.address, err)
}

var (
	errNoHeader = errors.New("the server ended the stream without a word")
	errEnded    = errors.New("the server ended the stream, and gave no reason")
)

// endOf returns the status of a stream that has ended, of which err says less: a
// failed send says io.EOF.
func (s *stream) endOf(err error) error {
	var m rawMessage
	if status := s.grpc.RecvMsg(&m); status != nil {
		return status
	}
	m.buf.Free()
	return err
}

// write sends the first request of each type, but for those that are nil because
// they were sent already, then whatever is to be acknowledged or asked for again. It
// ends with the stream, and the reader learns why that was.
func (s *stream) write(ctx context.Context, first []proto.Message) {
	for i, m := range first {
		if m == nil {
			continue
		}
		if s.grpc.SendMsg(m) != nil {
			return
		}
		first[i] = nil // what was held is a large map
	}
	resync, again, stop := s.resync()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-s.out:
			if s.grpc.SendMsg(m) != nil {
				return
			}
		case <-resync:
			for _, typeURL := range s.types {
				// An empty nonce asks for the full state again (PROTOCOL C4, C6).
				if s.grpc.SendMsg(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL}) != nil {
					return
				}
			}
			again()
		}
	}
}

// resync returns a channel that says when to ask for everything again, nil for never,
// what makes it say so once more, and what ends it.
func (s *stream) resync() (due <-chan time.Time, again, stop func()) {
	interval := s.client.cfg.ResyncInterval
	if interval <= 0 || s.protocol != SotW {
		return nil, func() {}, func() {}
	}
	timer := time.NewTimer(jitter(interval))
	return timer.C, func() { timer.Reset(jitter(interval)) }, func() { timer.Stop() }
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
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, InitialResourceVersions: sendable(s.client.handler.ResumeVersions(typeURL))}
	if i == 0 {
		req.Node = s.client.cfg.Node()
	}
	limit := maxRequestBytes
	if s.relay {
		limit = maxRelayRequestBytes
	}
	if len(req.InitialResourceVersions) == 0 {
		return req
	}
	if s.client.forgetful[s.address] || proto.Size(req) > limit {
		// The server could not receive it. Without, everything is sent.
		req.InitialResourceVersions = nil
		s.complete[typeURL] = true
		return req
	}
	s.resumed = true
	return req
}

// sendable returns held without what a request can not say: its strings are UTF-8, and
// a server that does not keep to that could otherwise make every later stream fail.
func sendable(held map[string]string) map[string]string {
	bad := func(s string) bool { return !utf8.ValidString(s) }
	copied := false
	for name, version := range held {
		if !bad(name) && !bad(version) {
			continue
		}
		if !copied {
			held, copied = maps.Clone(held), true
		}
		delete(held, name)
		if !bad(name) {
			held[name] = "" // it is held; the server shall send it again
		}
	}
	return held
}

// read hands responses to the handler until the stream ends. It never waits for the
// writer: a server that does not read requests while it sends would then wait for us.
func (s *stream) read() (answered bool, err error) {
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
		if s.named() {
			resp.Complete = false // what it does not mention is as it was
		}
		if s.complete[resp.TypeURL] {
			resp.Complete = true
			delete(s.complete, resp.TypeURL)
		}
		ack := s.acknowledge(resp, s.client.handler.HandleResponse(resp))
		m.buf.Free()
		if ack == nil {
			continue
		}
		select {
		case s.out <- ack:
		default:
			return answered, status.Errorf(codes.ResourceExhausted, "the server has left %d acknowledgements unread", acksWaiting)
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
