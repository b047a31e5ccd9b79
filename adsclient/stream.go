package adsclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meshrelay/internal/panics"
)

const (
	// probeTimeout bounds the wait for the headers of a relay.
	probeTimeout = 10 * time.Second
	// maxRequestBytes bounds a request: an istiod accepts 4 MiB (PROTOCOL C15), a relay 32.
	maxRequestBytes      = 3 << 20
	maxRelayRequestBytes = 30 << 20
	// maxVersions bounds the versions in a request: a relay accepts 600,000.
	maxVersions = 500_000
	// acksWaiting bounds the acknowledgements that the server has not read.
	acksWaiting = 1024
	// deltaResync is the time between two requests for everything on a delta stream, plus or minus half of it.
	deltaResync = 4 * time.Hour
	// maxDetail bounds the text of a NACK.
	maxDetail = 4096

	sotwMethod  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
)

var streamDesc = &grpc.StreamDesc{StreamName: "AggregatedResources", ServerStreams: true, ClientStreams: true}

// end is the result of a stream.
type end struct {
	answered bool      // the stream brought a response
	synced   time.Time // when every type was answered, or zero
	err      error
}

// attempt connects to an address, by its number, and serves a stream to its end.
func (c *Client) attempt(ctx context.Context, number int) (e end) {
	address := c.cfg.Addresses[number]
	c.health.tried(number)
	c.handler.HandleState(State{Phase: Connecting, Address: address})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() {
		if p, is := errors.AsType[*panics.Panic](context.Cause(ctx)); is {
			e.err = p
		}
	}()
	r := inFlight.open(cancel)
	defer r.close()
	witness := &Witness{}
	conn, err := c.connect(address, r, witness)
	if err != nil {
		return end{err: err}
	}
	defer conn.Close()
	noResume := c.noResume[address] // this stream may set it
	bad := c.badDelta[address]
	defer func() {
		if errors.As(e.err, &bad) {
			c.badDelta[address] = bad
		}
		if tooManyPings(e.err) {
			c.pinged[address] = true
		}
		if e.answered {
			return
		}
		delete(c.sotwOnly, address)
		delete(c.badDelta, address)
		if noResume {
			delete(c.noResume, address)
		}
	}()
	probe, protocols := false, []Protocol{c.cfg.Protocol}
	switch {
	case bad != nil:
		protocols[0] = SotW
	case c.cfg.Protocol == Auto:
		// A server that is neither a relay nor an istiod may only have delta.
		probe, protocols = !c.sotwOnly[address], []Protocol{SotW, Delta}
	}
	if probe {
		protocols = slices.Insert(protocols, 0, Delta)
	}
	for _, protocol := range protocols {
		s := &stream{client: c, number: number, address: address, protocol: protocol, receiver: r, witness: witness}
		e = s.run(ctx, conn, probe)
		if !errors.Is(e.err, errNotRelay) && status.Code(e.err) != codes.Unimplemented {
			break
		}
		c.sotwOnly[address], probe = c.sotwOnly[address] || probe, false
	}
	if bad != nil && status.Code(e.err) == codes.Unimplemented {
		e.err = fmt.Errorf("%w; its delta can not be used: %s", e.err, bad.Why)
	}
	return e
}

// stream is one ADS stream.
type stream struct {
	client   *Client
	number   int // of the address
	address  string
	protocol Protocol
	receiver *receiver // of the connection
	witness  *Witness  // of the connection
	relay    bool
	types    []string
	grpc     grpc.ClientStream
	peer     func() (Peer, error) // waits for the headers
	greet    func() error         // waits for the headers and handles them; an error ends the stream
	out      chan proto.Message   // acknowledgements for the writer
	// accepted is the version of the last accepted response, by subscribed type.
	accepted map[string]string
	// mu guards waiting and silent. It is held during calls of the handler.
	mu sync.Mutex
	// waiting has the subscribed types without an answer, silent those that are not offered.
	waiting, silent map[string]bool
	firsts          atomic.Int64 // counts first answers of a type, and their parts
	// relisted tells, by subscribed type, whether a request for everything has no answer yet.
	relisted map[string]*atomic.Bool
	// synced is closed when every type was answered. syncedAt is the time of that.
	synced   chan struct{}
	syncedAt time.Time
	// complete has the types whose next response is the whole state of the server, because the
	// request could not carry the versions to resume from. It is filled before the reader starts.
	complete map[string]bool
	resumed  bool // a request carried versions to resume from

	// Only the writer uses subscriptions and introduced, and only with Config.Names.
	subscriptions map[string]*subscription
	introduced    bool // a request carried the node
}

// run opens the stream and serves it. With probe, it fails with errNotRelay if the server is not a
// relay.
func (s *stream) run(ctx context.Context, conn *grpc.ClientConn, probe bool) end {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var err error
	// A server may accept a connection but no stream (SETTINGS_MAX_CONCURRENT_STREAMS of 0). gRPC
	// would wait for ever. Connecting has its own timeout.
	late := time.AfterFunc(s.client.cfg.connectTimeout*3/2, func() { cancel(errNoStream) })
	method := sotwMethod
	if s.protocol == Delta {
		method = deltaMethod
	}
	s.grpc, err = conn.NewStream(ctx, streamDesc, method)
	if !late.Stop() {
		err = errNoStream
	}
	if err != nil {
		return end{err: s.failed(err)}
	}
	s.setHeaders()
	s.accepted, s.complete, s.subscriptions = map[string]string{}, map[string]bool{}, map[string]*subscription{}
	s.out = make(chan proto.Message, acksWaiting)
	s.types = s.client.cfg.TypeURLs(false)
	var first []proto.Message
	meets := s.protocol == Delta || s.client.cfg.MeetFirst
	if meets {
		// A relay sends headers when the stream opens, an istiod with its first answer. So ask for
		// one small type first.
		if err := s.grpc.SendMsg(s.firstRequest(0)); err != nil {
			return end{err: s.failed(s.received(s.endOf(err)))}
		}
		first = append(first, nil)
		peer, err := s.peerInTime(ctx)
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
		s.types = s.client.cfg.TypeURLs(true)
	}
	// The handler returns its versions before it gets a response, so that its methods never run at
	// the same time.
	for i := len(first); i < len(s.types) && !s.named(); i++ {
		first = append(first, s.firstRequest(i))
	}
	s.synced, s.silent = make(chan struct{}), map[string]bool{}
	s.waiting, s.relisted = make(map[string]bool, len(s.types)), make(map[string]*atomic.Bool, len(s.types))
	for _, typeURL := range s.types {
		s.waiting[typeURL], s.relisted[typeURL] = true, &atomic.Bool{}
	}
	s.client.handler.HandleState(State{Phase: Streaming, Address: s.address, Protocol: s.protocol, Relay: s.relay})

	// Write requests while reading responses. Otherwise both sides could fill their windows, and
	// wait for each other for ever.
	var others sync.WaitGroup
	start := func(f func()) { others.Go(func() { s.receiver.contain(f) }) }
	start(func() { s.write(ctx, first) })
	start(func() { s.watchdog(ctx, cancel) })
	if !meets {
		// A relay sends headers before it answers, an istiod with its first answer.
		start(func() {
			if err := s.greet(); err != nil {
				cancel(err)
			}
		})
	}
	var answered bool
	s.receiver.contain(func() { answered, err = s.read() })
	why := context.Cause(ctx)
	cancel(nil)
	others.Wait()
	switch {
	case errors.Is(why, errStalled):
		err = s.stalled()
	case why != nil:
		err = why
	default:
		err = s.received(err)
	}
	return end{answered: answered, synced: s.syncedAt, err: s.failed(err)}
}

// received returns why the stream has ended, from an error of gRPC.
func (s *stream) received(err error) error {
	switch {
	case status.Code(err) != codes.ResourceExhausted || errors.Is(err, errUnread):
	case !s.witness.ended.Load(): // an error of this side: gRPC has refused to receive a response
		return status.Errorf(codes.OutOfRange, "a response is larger than the limit of %d bytes: give the relay more memory, or let the server serve less (%s)",
			s.client.cfg.MaxResponseBytes, status.Convert(err).Message())
	case s.resumed && s.syncedAt.IsZero():
		// The server's limit for a request may be below its default. The same request would fail
		// for ever.
		s.client.noResume[s.address] = true
	}
	return err
}

func (s *stream) failed(err error) error {
	switch {
	case err == nil || errors.Is(err, errNotRelay):
		return err
	case errors.Is(err, io.EOF):
		err = errEnded
	}
	return fmt.Errorf("%s: %w", s.address, s.witness.plain(err))
}

// endOf returns the status of a stream that has ended. The error of a failed send is only io.EOF.
func (s *stream) endOf(err error) error {
	m := rawMessage{}
	if status := s.grpc.RecvMsg(&m); status != nil {
		return status
	}
	m.buffers.Free()
	return err
}

// write sends the first request of each type, except nil ones, which were sent before. Then it
// sends acknowledgements, new names, and requests for everything, until the stream ends. The reader
// finds out why it ended.
func (s *stream) write(ctx context.Context, first []proto.Message) {
	repeat, names, confirm, again := s.client.repeat, (chan struct{})(nil), s.grpc.SendMsg, s.relist
	if s.named() {
		repeat, names = nil, s.client.namesChanged
		confirm, again = s.confirm, func() error { return s.subscribe(true) }
	}
	select {
	case <-repeat: // the first requests ask for everything anyway
	default:
	}
	var err error
	for i, m := range first {
		if m != nil && err == nil {
			err = s.grpc.SendMsg(m)
		}
		first[i] = nil // free the versions, a large map
	}
	if s.named() {
		err = s.subscribe(false)
	}
	var resync <-chan time.Time
	rearm := func() {
		if interval := s.client.cfg.ResyncInterval; interval > 0 {
			if s.protocol == Delta { // its server tells each change
				interval = deltaResync/2 + rand.N(deltaResync)
			}
			resync = time.After(jitter(interval))
		}
	}
	for rearm(); err == nil; {
		select {
		case <-ctx.Done():
			return
		case m := <-s.out:
			err = confirm(m)
		case <-names:
			err = s.subscribe(false)
		case <-repeat:
			err = again()
		case <-resync:
			err = again()
			rearm()
		}
	}
}

// relist asks for everything again: with an empty nonce on a SotW stream (PROTOCOL C4, C6), with a
// new subscription to the wildcard on a delta stream (PROTOCOL C14, S17).
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

// firstRequest subscribes to a type, by its number. The first request of the stream carries the
// node.
func (s *stream) firstRequest(i int) proto.Message {
	typeURL := s.types[i]
	var node *corev3.Node
	if i == 0 {
		node = s.client.cfg.Node()
	}
	if s.protocol == SotW {
		return &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: node}
	}
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, Node: node, InitialResourceVersions: sendable(s.client.handler.ResumeVersions(typeURL))}
	limit := maxRequestBytes
	if s.relay {
		limit = maxRelayRequestBytes
	}
	switch n := len(req.InitialResourceVersions); {
	case n == 0:
	case i == 0 || s.client.noResume[s.address] || n > maxVersions || proto.Size(req) > limit:
		// The server could not receive the versions: relays accept little more than the node in a
		// first request. Without versions the server sends everything.
		req.InitialResourceVersions = nil
		s.complete[typeURL] = true
	default:
		s.resumed = true
	}
	return req
}

// sendable returns held without strings that are not UTF-8. No request can carry them, so a server
// with such names could make every later stream fail.
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
			held[name] = "" // the server sends the resource again
		}
	}
	return held
}
