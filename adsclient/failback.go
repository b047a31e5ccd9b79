package adsclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// noAnswer is how long a probe waits for its answer without a SyncTimeout.
const noAnswer = 30 * time.Second

var (
	// errStayed ends a probe that succeeded.
	errStayed        = errors.New("worked for long enough")
	errNothingWanted = errors.New("there is nothing to ask for")
	errNoAnswer      = status.Error(codes.DeadlineExceeded, "the probe was not answered in time")
)

// failBack probes the addresses that are preferred to one until one of them works, and returns
// its number. It returns false when ctx ends.
//
// One probe runs at a time. A server that does not work sees a connection attempt now and
// then; one that works sees one more client, of the first type only, for FailbackAfter.
func (c *Client) failBack(ctx context.Context, at int) (to int, ok bool) {
	after := c.cfg.FailbackAfter
	if after < 0 || at == 0 {
		return 0, false
	}
	for wait := time.Duration(0); ; {
		if !sleep(ctx, max(wait, after/4+rand.N(after/2+1), c.cfg.MinBackoff)) {
			return 0, false
		}
		wait = 0
		for p := range at {
			switch err := c.probe(ctx, p); {
			case ctx.Err() != nil:
				return 0, false
			case err == nil:
				return p, true
			case denied(err):
				wait = max(wait, jitter(c.cfg.DeniedBackoff))
			}
		}
	}
}

// probe returns nil when an address has answered, and has then kept its stream open for
// FailbackAfter, give or take a little: all clients of a server see it return at one moment.
func (c *Client) probe(ctx context.Context, p int) (err error) {
	address := c.cfg.Addresses[p]
	c.health.tried(p)
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = explain(fmt.Errorf("%s: %w", address, err))
			c.health.probeEnded(p, err)
			c.log.Debug("preferred address does not work yet", "address", address, "err", err)
		} else if err != nil {
			c.health.probeEnded(p, nil)
		}
	}()
	dial, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pool := inFlight.open(cancel)
	defer pool.close()
	conn, err := c.connect(address, pool)
	if err != nil {
		return err
	}
	defer conn.Close()
	protocols := []Protocol{c.cfg.Protocol}
	if c.cfg.Protocol == Auto {
		protocols = []Protocol{SotW, Delta} // a relay answers both
	}
	for _, protocol := range protocols {
		s := &stream{client: c, number: p, address: address, protocol: protocol, pool: pool}
		if err = s.probe(dial, conn); status.Code(err) != codes.Unimplemented {
			break
		}
	}
	return err
}

func (s *stream) probe(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := s.client.cfg.SyncTimeout
	if patience < 0 {
		patience = noAnswer
	}
	timer := time.AfterFunc(patience, func() { cancel(errNoAnswer) })
	defer func() { timer.Stop() }()
	err := s.ask(ctx, conn, func() {
		if timer.Stop() { // else the end is under way
			s.client.health.works(s.number)
			stay := s.client.cfg.FailbackAfter
			timer = time.AfterFunc(stay+rand.N(stay/8+1), func() { cancel(errStayed) })
		}
	})
	switch why := context.Cause(ctx); {
	case errors.Is(why, errStayed):
		return nil
	case errors.Is(why, errNoAnswer):
		return errNoAnswer
	}
	return err
}

// ask asks for the first type, calls answered once there is an answer, and acknowledges what
// comes until the stream ends.
func (s *stream) ask(ctx context.Context, conn *grpc.ClientConn, answered func()) error {
	first, typeURL := s.probeRequest()
	if first == nil {
		return errNothingWanted
	}
	var err error
	if s.grpc, err = conn.NewStream(ctx, streamDesc, s.method()); err != nil {
		return err
	}
	if err := s.grpc.SendMsg(first); err != nil {
		return s.endOf(err)
	}
	for waiting := true; ; {
		resp, err := s.receive()
		if err != nil {
			if tooLarge := tooLarge(err, s.client.cfg.MaxResponseBytes); tooLarge != nil {
				return tooLarge
			}
			return err
		}
		resp.free()
		s.pool.handled()
		if waiting && resp.TypeURL == typeURL {
			waiting = false
			if md, err := s.grpc.Header(); err == nil && s.client.cfg.Name != "" && parsePeer(md).Name == s.client.cfg.Name {
				return &SameNameError{s.client.cfg.Name}
			}
			answered()
		}
		ack := s.acknowledge(resp, nil)
		if req, ok := ack.(*discoveryv3.DiscoveryRequest); ok {
			req.ResourceNames = first.(*discoveryv3.DiscoveryRequest).ResourceNames
		}
		if ack == nil {
			continue
		}
		if err := s.grpc.SendMsg(ack); err != nil {
			return s.endOf(err)
		}
	}
}

// probeRequest returns the request of a probe and its type: for the first type, or for one
// name of the first type that has any.
func (s *stream) probeRequest() (proto.Message, string) {
	cfg := s.client.cfg
	for _, typeURL := range cfg.TypeURLs(false) {
		var names []string
		if cfg.Names != nil {
			if names, _ = FitNames(cfg.Names(typeURL)); len(names) == 0 {
				continue
			}
			names = names[:1]
		}
		if s.protocol == Delta {
			return &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, Node: cfg.Node()}, typeURL
		}
		return &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names, Node: cfg.Node()}, typeURL
	}
	return nil, ""
}
