package adsclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Protocol is a variant of xDS.
type Protocol string

// The protocols.
const (
	// Auto uses delta towards another relay and SotW towards everything else: an
	// istiod's delta re-sends everything on each push (PROTOCOL C14).
	Auto  Protocol = "auto"
	SotW  Protocol = "sotw"
	Delta Protocol = "delta"
)

// Config is what a Client is told to do. Its functions may be called from several goroutines
// at once.
type Config struct {
	// Addresses are host:port, the preferred first. See the comment of the package for the
	// order in which they are tried.
	Addresses []string
	Protocol  Protocol
	// Node is called for each stream.
	Node func() *corev3.Node
	// TypeURLs returns the types to subscribe to, in the order of the requests. relay
	// says that the server is another relay, which serves every kind under every
	// version. It is called for each stream, and must not return nothing.
	TypeURLs func(relay bool) []string
	// Names returns the names to ask for of a type, none when nothing is wanted of it: no
	// stream is opened before there is a name. It is called for each stream and after each
	// Resubscribe, from another goroutine than the Handler's methods. What is asked for by
	// name is answered in parts, so its responses are never Complete. It needs the protocol
	// SotW: an istiod's delta loses deletions of what is asked for by name (PROTOCOL C14).
	// Nil: everything is asked for.
	Names func(typeURL string) []string
	// Name is what this client is called in the paths of what is relayed. A relay of that name
	// is not used: see SameNameError. Empty: none.
	Name string
	// Met is called with what the server tells of itself, for each stream on which it tells
	// that in time, before anything of it is handled. It may be called from another goroutine
	// than the Handler's methods, and at the same time as they. It may be nil.
	Met func(Peer)
	// DialOptions carry at least transport credentials, and no dialer: SyncTimeout counts
	// the bytes of the Client's own.
	DialOptions []grpc.DialOption
	// SyncTimeout is how long a stream may make no progress while a type waits for its
	// first answer on it. Progress is what a connection moves, in both directions, beyond
	// the noise of one that is idle: a response that takes its time on a slow link is
	// waited for. It does not apply with Names, which are answered in parts. Default: 30 s;
	// negative: for ever.
	SyncTimeout time.Duration
	// FailbackAfter is how long a preferred address must have worked again before the
	// stream moves back to it. Default: 1 min; negative: it stays where it is until it
	// has to move.
	FailbackAfter time.Duration
	// MaxResponseBytes bounds a response: a larger one ends the stream. A response is in
	// memory once while it is handled. Default: DefaultMaxResponseBytes.
	MaxResponseBytes int
	// Gzip: the server may compress its responses.
	Gzip bool
	// ResyncInterval is how often, give or take a tenth, a SotW stream asks for
	// everything again (PROTOCOL C4). Zero: never.
	ResyncInterval time.Duration
	// MinBackoff and MaxBackoff bound the pause after a round of attempts, give or take
	// half of it: it grows from the one to the other, and begins anew when a stream that
	// worked has ended in the course of things or was moved. Defaults: 250 ms and 30 s, so
	// that an address is tried again after 45 s at the latest, besides what the attempts
	// take.
	MinBackoff, MaxBackoff time.Duration
	// DeniedBackoff is the least pause after the server refused our identity. Default:
	// 10 s.
	DeniedBackoff time.Duration
	Logger        *slog.Logger

	// For tests: how connections are made and within what time, when they are pinged, and
	// below what age the end of a stream is one too soon.
	dialer         *dialer
	keepalive      keepalive.ClientParameters
	connectTimeout time.Duration
	soon           time.Duration
}

// DefaultMaxResponseBytes is Config.MaxResponseBytes unless it is set: some ten times what
// 10,000 large resources take.
const DefaultMaxResponseBytes = 256 << 20

// endsSoon is below what age the end of a stream counts as one too soon.
const endsSoon = 3 * time.Second

// Phase is where a Client is in the life of a stream.
type Phase string

// The phases.
const (
	// Connecting: a stream is being opened.
	Connecting Phase = "connecting"
	// Streaming: the stream is open and has brought nothing yet.
	Streaming Phase = "streaming"
	// Connected: the stream has brought a response.
	Connected Phase = "connected"
	// Disconnected: the stream has ended, or could not be opened.
	Disconnected Phase = "disconnected"
	// Denied: as Disconnected, because the server refuses our identity.
	Denied Phase = "denied"
)

// State is what a Handler is told of the connection.
type State struct {
	Phase    Phase
	Address  string
	Protocol Protocol // once it is known
	// Relay tells that the server is another relay. On a SotW stream that is known from the
	// phase Connected on.
	Relay bool
	// Err is why, with what to do about it, in the phases Disconnected and Denied.
	Err error
	// Answered says, in the phases Disconnected and Denied, that the stream had brought
	// responses. Its end is then routine until reconnecting fails: servers limit the age
	// of connections on purpose (PROTOCOL C18).
	Answered bool
	// Switched says, in the phase Connected, that the last stream that was answered was to
	// another address, From. What was received from there is resumed, not replaced.
	Switched bool
	From     string
}

// Handler takes what a Client receives. Its methods are never called at the same
// time.
type Handler interface {
	// HandleResponse is called for each response before it is acknowledged. An error
	// makes it a NACK that carries the error's text; what the handler could use of the
	// response it has used all the same (PROTOCOL C7). It must not keep any of the
	// response's bytes.
	HandleResponse(*Response) error
	// ResumeVersions returns what is held of a type, by name, with the version that the
	// server gave: the initial_resource_versions of a new delta stream.
	ResumeVersions(typeURL string) map[string]string
	// HandleState is told of every change of the connection.
	HandleState(State)
}

// Client keeps a stream alive. New makes it, Run runs it.
type Client struct {
	cfg     Config
	handler Handler
	log     *slog.Logger
	board   *board
	// sotwOnly are the addresses that turned out not to be relays, until a stream to
	// one fails before it brings anything.
	sotwOnly map[string]bool
	// forgetful are the addresses that turned down a stream whose requests said what is
	// held. They are asked for everything, until a stream to one fails before it brings
	// anything.
	forgetful map[string]bool
	// renamed has an element when Names has other names to give.
	renamed chan struct{}
	// leftOut is, by type, why not all names are asked for. Run and the writer of the
	// present stream use it in turn.
	leftOut map[string]string
	// repeat has an element when the present stream is to ask for everything again.
	repeat chan struct{}
	// back gives the number of a preferred address to move to. Nothing waits in it.
	back chan int
}

// New returns a Client that is not connected.
func New(cfg Config, h Handler) (*Client, error) {
	switch {
	case len(cfg.Addresses) == 0:
		return nil, errors.New("adsclient: no addresses")
	case cfg.Node == nil || cfg.TypeURLs == nil || h == nil:
		return nil, errors.New("adsclient: node, types and handler are needed")
	case cfg.Protocol != Auto && cfg.Protocol != SotW && cfg.Protocol != Delta:
		return nil, fmt.Errorf("adsclient: protocol %q: want %s, %s or %s", cfg.Protocol, Auto, SotW, Delta)
	case cfg.MaxResponseBytes < 0 || cfg.MaxResponseBytes > math.MaxInt32:
		return nil, fmt.Errorf("adsclient: responses of %d bytes: want 1 to %d, which is what gRPC can frame", cfg.MaxResponseBytes, math.MaxInt32)
	case cfg.Names != nil && cfg.Protocol != SotW:
		return nil, fmt.Errorf("adsclient: protocol %s: names need %s", cfg.Protocol, SotW)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.MinBackoff, 250*time.Millisecond)
	def(&cfg.MaxBackoff, 30*time.Second)
	def(&cfg.DeniedBackoff, 10*time.Second)
	def(&cfg.SyncTimeout, 30*time.Second)
	def(&cfg.FailbackAfter, time.Minute)
	def(&cfg.soon, endsSoon)
	def(&cfg.connectTimeout, connectTimeout)
	if cfg.MaxResponseBytes == 0 {
		cfg.MaxResponseBytes = DefaultMaxResponseBytes
	}
	inFlight.admit(cfg.MaxResponseBytes)
	if cfg.keepalive.Time == 0 {
		cfg.keepalive = keepaliveParams()
	}
	if cfg.dialer == nil {
		cfg.dialer = newDialer(cfg.keepalive.Timeout)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{
		cfg: cfg, handler: h, log: cfg.Logger, sotwOnly: map[string]bool{}, forgetful: map[string]bool{},
		renamed: make(chan struct{}, 1), repeat: make(chan struct{}, 1), leftOut: map[string]string{}, board: newBoard(cfg.Addresses, cfg.FailbackAfter), back: make(chan int),
	}, nil
}

// Run connects and reconnects until ctx ends, and then returns nil. It is called
// once.
func (c *Client) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failback := make(chan struct{})
	go func() {
		defer close(failback)
		c.failBack(ctx)
	}()
	defer func() { <-failback }()
	defer cancel()
	pause := &backoff.ExponentialBackOff{
		InitialInterval: c.cfg.MinBackoff, MaxInterval: c.cfg.MaxBackoff, RandomizationFactor: 0.5, Multiplier: 1.6,
	}
	pause.Reset()
	way := newRoute(len(c.cfg.Addresses), c.board.unwell)
	refused := false // by any address of the present round
	for {
		for !c.wanted() {
			select {
			case <-ctx.Done():
				return nil
			case <-c.renamed:
			}
		}
		i := way.next()
		end := c.attempt(ctx, i)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		state := State{Phase: Disconnected, Address: c.cfg.Addresses[i], Err: explain(end.err), Answered: end.answered}
		if denied(end.err) {
			state.Phase, refused = Denied, true
		}
		soon := end.synced.IsZero() || time.Since(end.synced) < c.cfg.soon
		var wait time.Duration
		var moved *movedError
		switch {
		case errors.As(end.err, &moved):
			way.move(moved.to, i)
			pause.Reset()
			refused = false
			c.board.left(i, end.err, true)
			c.board.returnTo(moved.to)
		case end.synced.IsZero():
			// Only what has answered everything works: until something does, each further
			// round waits longer (gRFC A57). Many clients can have come to the next address at
			// the same moment.
			c.board.left(i, state.Err, false)
			if wait = rand.N(max(c.cfg.MinBackoff, 1)); way.over() {
				wait = pause.NextBackOff()
			}
		default:
			routine := way.ended(i, soon)
			refused = state.Phase == Denied
			c.board.left(i, state.Err, routine)
			if routine {
				pause.Reset()
			}
			wait = pause.NextBackOff()
		}
		c.handler.HandleState(state)
		if refused && way.over() {
			wait, refused = max(wait, jitter(c.cfg.DeniedBackoff)), false
		}
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// Relist has the present stream ask for everything again, once for any number of calls
// that it has not come to yet. It does not wait. The answers are marked (Response.Relist).
// A stream that is opened later asks for everything anyway, so without an open stream the
// call has no effect. It has none with Config.Names either. It may be called from any
// goroutine.
func (c *Client) Relist() {
	select {
	case c.repeat <- struct{}{}:
	default:
	}
}

// jitter returns d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
