package adsclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// probeTimeout is how long a server has to say whether it is a relay.
	probeTimeout = 10 * time.Second
	// maxRequestBytes is what a request stays below: istiod's receive limit is 4 MiB
	// (PROTOCOL C15), a relay's 32.
	maxRequestBytes      = 3 << 20
	maxRelayRequestBytes = 30 << 20
	// maxVersions is how many versions a request names at most: relays take 600,000.
	maxVersions = 500_000
	// acksWaiting bounds the acknowledgements that wait for the server to read them.
	acksWaiting = 1024
	// maxDetail bounds the text of a NACK.
	maxDetail = 4096

	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

var streamDesc = &grpc.StreamDesc{StreamName: "AggregatedResources", ServerStreams: true, ClientStreams: true}

// end says how a stream went.
type end struct {
	// answered says that it brought a response, synced since when every type was answered,
	// zero if that was not so.
	answered bool
	synced   time.Time
	err      error
}

// attempt connects to the address with that number and serves a stream to its end.
func (c *Client) attempt(ctx context.Context, number int) (e end) {
	address := c.cfg.Addresses[number]
	c.board.tried(number)
	c.handler.HandleState(State{Phase: Connecting, Address: address})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pool := inFlight.open(cancel)
	defer pool.close()
	conn, meter, err := c.connect(address, pool)
	if err != nil {
		return end{err: err}
	}
	defer conn.Close()
	forgetful := c.forgetful[address] // and it may become so now
	defer func() {
		if e.answered {
			return
		}
		delete(c.sotwOnly, address)
		if forgetful {
			delete(c.forgetful, address)
		}
	}()
	run := func(protocol Protocol, probe bool) end {
		s := &stream{client: c, number: number, address: address, protocol: protocol, meter: meter, pool: pool}
		return s.run(ctx, conn, probe)
	}
	protocol := c.cfg.Protocol
	auto := protocol == Auto
	if auto {
		protocol = Delta
		if c.sotwOnly[address] {
			protocol = SotW
		}
	}
	e = run(protocol, auto)
	if auto && protocol == Delta && (errors.Is(e.err, errNotRelay) || status.Code(e.err) == codes.Unimplemented) {
		c.sotwOnly[address] = true
		protocol = SotW
		e = run(SotW, false)
	}
	if auto && protocol == SotW && status.Code(e.err) == codes.Unimplemented {
		// Neither a relay nor an istiod, and delta is all that it has.
		e = run(Delta, false)
	}
	return e
}

// stream is one ADS stream.
type stream struct {
	client   *Client
	number   int // of the address
	address  string
	protocol Protocol
	meter    *meter    // of the connection
	pool     *receiver // of the connection
	relay    bool
	types    []string
	grpc     grpc.ClientStream
	// greeted has happened when the headers of a SotW stream were taken in. refused is why the
	// server is not to be used.
	greeted sync.Once
	refused error
	out     chan proto.Message // acknowledgements, for the writer
	// accepted is, by subscribed type, the version of the last response that was accepted.
	accepted map[string]string
	// waiting are the subscribed types that were not answered yet. It is the reader's.
	waiting map[string]bool
	// relisted says, by type, that it was asked for again, and that this is not answered.
	// The map does not change once the stream is served.
	relisted map[string]*atomic.Bool
	// left is len(waiting), and handling says that the handler has a response.
	left     atomic.Int64
	handling atomic.Bool
	// synced is closed when nothing waits any more, at syncedAt.
	synced   chan struct{}
	syncedAt time.Time
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
func (s *stream) run(ctx context.Context, conn *grpc.ClientConn, probe bool) end {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var err error
	// A server that is alive may let no stream be opened (SETTINGS_MAX_CONCURRENT_STREAMS of
	// 0), and gRPC waits for that without end. What it takes to connect has its own bound.
	late := time.AfterFunc(s.client.cfg.connectTimeout*3/2, func() { cancel(errNoStream) })
	s.grpc, err = conn.NewStream(ctx, streamDesc, s.method())
	if !late.Stop() {
		err = errNoStream
	}
	if err != nil {
		return end{err: s.failed(err)}
	}
	s.accepted, s.complete, s.subscriptions = map[string]string{}, map[string]bool{}, map[string]*subscription{}
	s.out = make(chan proto.Message, acksWaiting)
	s.types = s.client.cfg.TypeURLs(false)
	var first []proto.Message
	if s.protocol == Delta {
		// A relay's headers come as soon as the stream is open; an istiod's come with its
		// first answer, so it is asked for one small thing.
		if err := s.grpc.SendMsg(s.firstRequest(0)); err != nil {
			return end{err: s.failed(s.received(s.endOf(err)))}
		}
		first = append(first, nil)
		peer, err := s.peer(ctx)
		if err != nil {
			return end{err: s.failed(s.received(err))}
		}
		s.relay = peer.Relay
		if probe && !s.relay {
			return end{err: errNotRelay}
		}
		if err := s.meet(peer); err != nil {
			return end{err: s.failed(err)}
		}
	}
	if s.relay {
		asked := s.types[0]
		s.types = s.client.cfg.TypeURLs(true)
		if s.types[0] != asked {
			return end{err: fmt.Errorf("%s: the first type differs for relays: %s and %s", s.address, asked, s.types[0])}
		}
	}
	// The handler is asked for all that it holds before it is given anything: its
	// methods are never called at the same time.
	for i := len(first); i < len(s.types) && !s.named(); i++ {
		first = append(first, s.firstRequest(i))
	}
	s.synced = make(chan struct{})
	s.waiting, s.relisted = make(map[string]bool, len(s.types)), make(map[string]*atomic.Bool, len(s.types))
	for _, typeURL := range s.types {
		s.waiting[typeURL], s.relisted[typeURL] = true, &atomic.Bool{}
	}
	s.left.Store(int64(len(s.waiting)))
	s.client.handler.HandleState(State{Phase: Streaming, Address: s.address, Protocol: s.protocol, Relay: s.relay})

	// Requests are written while responses are read: a server with much to answer
	// would otherwise fill its window while we fill ours, and both would wait.
	var others sync.WaitGroup
	others.Go(func() {
		if s.named() {
			s.writeNames(ctx)
		} else {
			s.write(ctx, first)
		}
	})
	others.Go(func() { s.attend(ctx, cancel) })
	if s.protocol == SotW {
		// A relay's headers come before it answers anything, an istiod's with its first answer.
		others.Go(func() {
			if err := s.greet(); err != nil {
				cancel(err)
			}
		})
	}
	answered, err := s.read()
	why := context.Cause(ctx)
	cancel(nil)
	others.Wait()
	var moved *movedError
	var same *SameNameError
	switch {
	case errors.As(why, &moved):
		err = moved
	case errors.As(why, &same):
		err = same
	case errors.Is(why, errStalled):
		err = s.stalled()
	case errors.Is(why, errCrowded):
		err = errCrowded
	default:
		err = s.received(err)
	}
	return end{answered: answered, synced: s.syncedAt, err: s.failed(err)}
}

// received returns why the stream has ended, of which err is what gRPC says.
func (s *stream) received(err error) error {
	if status.Code(err) != codes.ResourceExhausted || errors.Is(err, errUnread) {
		return err
	}
	if local := tooLarge(err, s.client.cfg.MaxResponseBytes); local != nil {
		return local
	}
	if s.resumed && saysTooLarge(err) {
		// It may be that a request was larger than the server takes, and an operator can
		// set that to less than we know of. Sent again, it would fail for ever.
		s.client.forgetful[s.address] = true
	}
	return err
}

func (s *stream) method() string {
	if s.protocol == Delta {
		return deltaMethod
	}
	return sotwMethod
}

// peer waits for the response headers, for as long as a relay may need.
func (s *stream) peer(ctx context.Context) (Peer, error) {
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
			return Peer{}, s.endOf(errNoHeader)
		}
		return parsePeer(r.md), r.err
	case <-late.C:
		return Peer{}, nil
	case <-ctx.Done():
		return Peer{}, ctx.Err()
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

// endOf returns the status of a stream that has ended, of which err says less: a
// failed send says io.EOF.
func (s *stream) endOf(err error) error {
	m := rawMessage{}
	if status := s.grpc.RecvMsg(&m); status != nil {
		return status
	}
	m.buffers.Free()
	return err
}

// write sends the first request of each type, but for those that are nil because
// they were sent already, then whatever is to be acknowledged or asked for again. It
// ends with the stream, and the reader learns why that was.
func (s *stream) write(ctx context.Context, first []proto.Message) {
	select {
	case <-s.client.repeat: // what comes first asks for everything
	default:
	}
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
		case <-s.client.repeat:
			if s.relist() != nil {
				return
			}
		case <-resync:
			if s.relist() != nil {
				return
			}
			again()
		}
	}
}

// relist asks for everything again. On a SotW stream an empty nonce does that (PROTOCOL C4,
// C6), on a delta stream a new subscription to the wildcard (PROTOCOL C14, S17).
func (s *stream) relist() error {
	for _, typeURL := range s.types {
		s.relisted[typeURL].Store(true)
		var again proto.Message = &discoveryv3.DiscoveryRequest{TypeUrl: typeURL}
		if s.protocol == Delta {
			again = &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{wildcard}}
		}
		if err := s.grpc.SendMsg(again); err != nil {
			return err
		}
	}
	return nil
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
	if i == 0 || s.client.forgetful[s.address] || len(req.InitialResourceVersions) > maxVersions || proto.Size(req) > limit {
		// The server could not receive it: of a first request relays take little more than
		// the node. Without, everything is sent.
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
