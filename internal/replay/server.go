package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec
	"google.golang.org/grpc/keepalive"

	"meshrelay/adsclient"
	"meshrelay/internal/recording"
	"meshrelay/internal/text"
)

const (
	// maxConns bounds the connections, and maxStreams the streams of each.
	maxConns   = 32
	maxStreams = 16
	// maxRequest bounds a request, in bytes: those of relays have the versions that they hold.
	maxRequest = 32 << 20
	// maxWords bounds what a notice quotes, in bytes.
	maxWords = 512
)

// Server serves a recording.
type Server struct {
	summary Summary
	speed   float64
	notice  func(text string)

	begun chan struct{} // closed with the first request of a client
	begin sync.Once

	mu      sync.Mutex
	types   map[string]*typeState
	streams map[*stream]struct{}
}

// New returns a Server of what a recording has. Time passes speed times as fast as it did, from the
// first request of a client on. notice may be called from several goroutines at once.
func New(s Summary, speed float64, notice func(text string)) *Server {
	return &Server{
		summary: s, speed: speed, notice: notice, begun: make(chan struct{}),
		types: map[string]*typeState{}, streams: map[*stream]struct{}{},
	}
}

// Serve serves the recording to the clients of a listener until ctx ends, and then returns nil. The
// last state stays served. It closes the listener.
func (s *Server) Serve(ctx context.Context, lis net.Listener, r *recording.Reader) error {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
		// A client that is gone must not hold the others up.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads{s})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// nil when Stop comes while it serves, and an error when it came before
		if err := server.Serve(netutil.LimitListener(lis, maxConns)); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	})
	g.Go(func() error { return s.play(ctx, r) })
	g.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	return g.Wait()
}

// play applies the records at their times. It returns early only with an error, or when ctx ends.
func (s *Server) play(ctx context.Context, r *recording.Reader) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.begun:
	}
	start, f := time.Now(), newFold()
	for {
		rec, err := r.Next()
		if torn := (*recording.TornError)(nil); errors.Is(err, io.EOF) || errors.As(err, &torn) {
			break
		}
		if err != nil {
			return err
		}
		changed, err := f.step(rec)
		if err != nil {
			return &recording.BadError{Offset: r.Offset(), Reason: err.Error()}
		}
		if changed == nil {
			continue
		}
		at := time.Duration(float64(rec.At-s.summary.First) / s.speed)
		if !sleep(ctx, at-time.Since(start)) {
			return nil
		}
		s.publish(ctx, changed)
	}
	for _, changed := range f.finish() {
		s.publish(ctx, changed)
	}
	s.notice("the recording is over: its last state stays served")
	return nil
}

// sleep waits, and reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// publish gives all streams a new state, and waits until each has taken it: every client sees every
// state, and the slowest sets the pace.
func (s *Server) publish(ctx context.Context, t *typeState) {
	s.mu.Lock()
	s.types[t.url] = t
	open := slices.Collect(maps.Keys(s.streams))
	s.mu.Unlock()
	for _, st := range open {
		select {
		case st.updates <- t:
		case <-st.done:
		case <-ctx.Done():
		}
	}
}

// add returns a new stream that has the present state and gets all later ones.
func (s *Server) add(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.types = maps.Clone(s.types)
	s.streams[st] = struct{}{}
}

func (s *Server) remove(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
}

// known reports whether the recording has an answer of a type.
func (s *Server) known(url string) bool {
	_, ok := s.summary.Types[url]
	return ok
}

// serve serves a stream. receive returns the next request, and who asks, where the request tells.
func (s *Server) serve(grpcStream grpc.ServerStream, delta bool, receive func() (request, *corev3.Node, error)) error {
	peer := adsclient.Peer{Relay: s.summary.Server.Relay, Name: s.summary.Server.Name}
	if err := grpcStream.SendHeader(peer.Header()); err != nil {
		return err
	}
	req, node, err := receive()
	if err != nil {
		return ended(err)
	}
	st := &stream{
		delta: delta, client: text.Shorten(node.GetId(), maxWords), known: s.known, notice: s.notice,
		send:    func(m encoded) error { return grpcStream.SendMsg(m) },
		asked:   map[string]*subscription{},
		updates: make(chan *typeState), done: make(chan struct{}),
	}
	s.notice(fmt.Sprintf("client %s connected, %s", st.client, protocolName(delta)))
	s.add(st)
	defer s.remove(st)
	defer close(st.done)
	s.begin.Do(func() { close(s.begun) })
	ctx := grpcStream.Context()
	requests, failed := make(chan request), make(chan error, 1)
	go func() { // it ends with the stream, whose context ends when serve has returned
		defer close(requests)
		for err == nil {
			select {
			case requests <- req:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
			req, _, err = receive()
		}
		failed <- err
	}()
	if err := st.run(ctx, requests); err != nil {
		return err
	}
	return ended(<-failed)
}

// ended returns nil for a client that has closed its stream.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func protocolName(delta bool) adsclient.Protocol {
	if delta {
		return adsclient.Delta
	}
	return adsclient.SotW
}

// ads is the service of a Server.
type ads struct{ *Server }

// StreamAggregatedResources implements the ADS service.
func (a ads) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return a.serve(stream, false, func() (request, *corev3.Node, error) {
		m, err := stream.Recv()
		return request{url: m.GetTypeUrl(), nonce: m.GetResponseNonce(), rejected: words(m.GetErrorDetail())}, m.GetNode(), err
	})
}

// DeltaAggregatedResources implements the ADS service.
func (a ads) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.serve(stream, true, func() (request, *corev3.Node, error) {
		m, err := stream.Recv()
		return request{
			url: m.GetTypeUrl(), nonce: m.GetResponseNonce(), rejected: words(m.GetErrorDetail()),
			all: slices.Contains(m.GetResourceNamesSubscribe(), "*"), held: m.GetInitialResourceVersions(),
		}, m.GetNode(), err
	})
}

// words returns the words of a NACK, empty for none.
func words(s *rpcstatus.Status) string {
	if s == nil {
		return ""
	}
	return text.Shorten(cmp.Or(s.GetMessage(), "no reason"), maxWords)
}
