package adsclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// noAnswer is how long a probe waits for its answer where there is no SyncTimeout.
const noAnswer = 30 * time.Second

// offered is how long a preferred address that was found to work is there to move to. When
// the stream does not come to that, what was found is out of date.
const offered = 10 * time.Second

var (
	// errStayed ends a probe that went well.
	errStayed        = errors.New("worked for long enough")
	errNothingWanted = errors.New("there is nothing to ask for")
	errNoAnswer      = status.Error(codes.DeadlineExceeded, "the probe was not answered in time")
)

// failBack watches, while the stream is at an address that is not the first, whether one
// that is preferred to it works again, and offers that to the stream. It returns when ctx
// ends.
//
// At most one probe runs at a time. To a server that does not work it costs a connection
// attempt now and then, between an eighth of FailbackAfter and three times that apart; to one that
// does, a client more, of the first type only, for as long as it has to be healthy, and
// for a moment once more. It is gone before the stream comes.
func (c *Client) failBack(ctx context.Context) {
	if len(c.cfg.Addresses) == 1 || c.cfg.FailbackAfter < 0 {
		return
	}
	b := c.board
	pause := &backoff.ExponentialBackOff{
		InitialInterval: max(c.cfg.FailbackAfter/4, c.cfg.MinBackoff), MaxInterval: 2 * c.cfg.FailbackAfter, RandomizationFactor: 0.5, Multiplier: 1.6,
	}
	pause.Reset()
	wait := pause.NextBackOff()
	for b.await(ctx, func() bool { return b.up && b.synced > 0 }) && sleep(ctx, wait) {
		wait = pause.NextBackOff()
		for p := range b.preferred() {
			err := c.tryBack(ctx, p)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				pause.Reset()
				wait = pause.NextBackOff()
			case denied(err):
				wait = max(wait, jitter(c.cfg.DeniedBackoff))
			}
			if err == nil {
				break
			}
		}
	}
}

// preferred returns how many addresses are preferred to the one that the stream is at.
func (b *board) preferred() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.up {
		return 0
	}
	return b.synced
}

// tryBack offers a preferred address to the stream once it has worked for long enough. It
// returns nil when that was so, or does not matter any more.
func (c *Client) tryBack(ctx context.Context, p int) error {
	ctx, cancel := context.WithCancel(ctx)
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		c.board.await(ctx, func() bool { return c.board.synced <= p })
		cancel()
	}()
	defer func() { cancel(); <-arrived }()
	c.board.tried(p)
	err := c.probe(ctx, p)
	if ctx.Err() != nil {
		// The stream has come here by itself, or the client ends.
		c.board.probeEnded(p, nil)
		return nil //nolint:nilerr // nobody wants to know any more
	}
	if err != nil {
		err = explain(err)
		c.board.probeEnded(p, err)
		c.log.Debug("preferred address does not work yet", "address", c.cfg.Addresses[p], "err", err)
		return err
	}
	late := time.NewTimer(offered)
	defer late.Stop()
	select {
	case c.back <- p:
	case <-late.C:
		c.board.probeEnded(p, nil)
	case <-ctx.Done():
	}
	return nil
}

// probe returns nil once an address has worked for as long as it has to, with pings
// answered and the stream open all the time, and has then answered a new stream.
func (c *Client) probe(ctx context.Context, p int) error {
	address := c.cfg.Addresses[p]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pool := inFlight.open(cancel)
	defer pool.close()
	conn, _, err := c.connect(address, pool)
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
		if err = s.probe(ctx, conn, c.board.healthyFor(p)); err == nil {
			err = s.probe(ctx, conn, 0)
		}
		if status.Code(err) != codes.Unimplemented {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

// probe asks for the first type alone, and returns nil when it was answered and the stream
// then stayed open.
func (s *stream) probe(ctx context.Context, conn *grpc.ClientConn, stay time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := s.client.cfg.SyncTimeout
	if patience < 0 {
		patience = noAnswer
	}
	late := time.AfterFunc(patience, func() { cancel(errNoAnswer) })
	defer func() { late.Stop() }()
	err := s.askAndStay(ctx, conn, func() (done bool) {
		if !late.Stop() {
			return false // the end is under way
		}
		s.client.board.probed(s.number)
		if stay > 0 {
			late = time.AfterFunc(stay, func() { cancel(errStayed) })
		}
		return stay == 0
	})
	switch why := context.Cause(ctx); {
	case errors.Is(why, errStayed):
		return nil
	case errors.Is(why, errNoAnswer):
		return errNoAnswer
	}
	return err
}

// askAndStay asks for the first type, calls answered when it is answered, and then takes
// and acknowledges what comes until answered said that this was all, or the stream ends.
func (s *stream) askAndStay(ctx context.Context, conn *grpc.ClientConn, answered func() (done bool)) error {
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
			if answered() {
				return nil
			}
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

// probeRequest returns the request of a probe and its type: for the first one, or for one
// name of the first that has any.
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
