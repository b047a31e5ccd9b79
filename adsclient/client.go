package adsclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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

// Config configures a Client, which may call its functions from several goroutines at once.
type Config struct {
	// Addresses are host:port, the preferred first.
	Addresses []string
	Protocol  Protocol
	// Node is called for each stream.
	Node func() *corev3.Node
	// TypeURLs returns the types to subscribe to, at least one, in the order of the requests. It
	// is called for each stream. relay: the server is another relay, which serves every kind
	// under every version; the first type is the same.
	TypeURLs func(relay bool) []string
	// MeetFirst: a SotW stream asks for one type, and for the others when the server has told
	// whether it is a relay, or 10 s later. A delta stream always does so.
	MeetFirst bool
	// Names returns the names to ask for of a type, and no stream opens while there are none. It
	// is called for each stream and after each Resubscribe. Servers answer names in parts, so no
	// response is Complete. It needs the protocol SotW: an istiod's delta loses deletions of
	// names (PROTOCOL C14). Nil: the client asks for everything.
	Names func(typeURL string) []string
	// Name is the name of this relay in provenance paths, empty for none. See SameNameError.
	Name string
	// Met is called with the server's headers before any response of their stream is handled,
	// unless they come late. It may run while a method of the Handler does. It may be nil.
	Met func(Peer)
	// Credentials secure the connections. They are needed.
	Credentials credentials.TransportCredentials
	DialOptions []grpc.DialOption
	// SyncTimeout is how long nothing may come while a type waits for its first answer on a
	// stream. Each DATA frame of a response counts, so that a slow link has time. It does not
	// apply with Names. Default: 30 s; negative: for ever.
	SyncTimeout time.Duration
	// FailbackAfter is how long a preferred address must have worked again before the
	// stream moves back to it. Default: 1 min; negative: it does not move back.
	FailbackAfter time.Duration
	// MaxResponseBytes bounds a response: a larger one ends the stream. A response is in
	// memory once while it is handled. Default: 256 MiB.
	MaxResponseBytes int
	// Gzip: the server may compress its responses.
	Gzip bool
	// ResyncInterval is how often, give or take a tenth, a SotW stream asks for
	// everything again (PROTOCOL C4). Zero: never.
	ResyncInterval time.Duration
	// MinBackoff and MaxBackoff bound the pause after a round of attempts, give or take half of
	// it. The pause grows until a stream syncs, and from one stream that ends soon after its
	// sync to the next. Defaults: 250 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// DeniedBackoff is the least pause after the server refused our identity. Default: 10 s.
	DeniedBackoff time.Duration
	Logger        *slog.Logger

	// Tests set these. A stream that ends within soon of its sync has failed. onSync is called
	// when every type was answered.
	keepalive      keepalive.ClientParameters
	connectTimeout time.Duration
	soon           time.Duration
	onSync         func(address string)
}

// defaultMaxResponseBytes is some ten times what 10,000 large resources take.
const defaultMaxResponseBytes = 256 << 20

// endsSoon is the default of Config.soon.
const endsSoon = 3 * time.Second

// Phase is where a Client is in the life of a stream.
type Phase string

// The phases.
const (
	Connecting   Phase = "connecting"   // a stream is being opened
	Streaming    Phase = "streaming"    // the stream is open and has brought nothing yet
	Connected    Phase = "connected"    // the stream has brought a response
	Disconnected Phase = "disconnected" // the stream has ended, or could not be opened
	Denied       Phase = "denied"       // Disconnected, because the server refuses our identity
)

// State is the state of the connection, for a Handler.
type State struct {
	Phase    Phase
	Address  string
	Protocol Protocol // once it is known
	// Relay: the server is another relay. On a SotW stream that is known from the phase
	// Connected on.
	Relay bool
	// Err is why, with what to do about it, in the phases Disconnected and Denied.
	Err error
	// Answered: in the phases Disconnected and Denied, the stream had brought responses. Its
	// end is routine until reconnecting fails: servers limit the age of connections
	// (PROTOCOL C18).
	Answered bool
}

// Handler receives the responses of a Client, which calls one method at a time.
type Handler interface {
	// HandleResponse is called for each response before it is acknowledged. It uses the good
	// part of the response, and its error becomes the text of a NACK (PROTOCOL C7). It must not
	// keep any of the response's bytes.
	HandleResponse(*Response) error
	// ResumeVersions returns the versions of the held resources of a type, by name: the
	// initial_resource_versions of a new delta stream.
	ResumeVersions(typeURL string) map[string]string
	// HandleState is called for every change of the connection.
	HandleState(State)
}

// Client keeps a stream alive. New makes it, Run runs it.
type Client struct {
	cfg     Config
	handler Handler
	log     *slog.Logger
	health  *addressHealth
	// sotwOnly has the addresses that are no relays, and noResume those that refused versions to
	// resume from, until a stream to one fails before it brings anything.
	sotwOnly, noResume map[string]bool
	// namesChanged has an element when Names returns other names, and repeat one when the present
	// stream has to ask for everything again.
	namesChanged, repeat chan struct{}
	// leftOut has, by type, why the client does not ask for all names. Run and the writer of the
	// present stream use it in turn.
	leftOut map[string]string
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
	case cfg.Credentials == nil:
		return nil, errors.New("adsclient: credentials are needed")
	}
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 250*time.Millisecond)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 30*time.Second)
	cfg.DeniedBackoff = cmp.Or(cfg.DeniedBackoff, 10*time.Second)
	cfg.SyncTimeout = cmp.Or(cfg.SyncTimeout, 30*time.Second)
	cfg.FailbackAfter = cmp.Or(cfg.FailbackAfter, time.Minute)
	cfg.soon = cmp.Or(cfg.soon, endsSoon)
	cfg.connectTimeout = cmp.Or(cfg.connectTimeout, connectTimeout)
	cfg.MaxResponseBytes = cmp.Or(cfg.MaxResponseBytes, defaultMaxResponseBytes)
	cfg.keepalive = cmp.Or(cfg.keepalive, keepaliveParams())
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	inFlight.admit(cfg.MaxResponseBytes)
	return &Client{
		cfg: cfg, handler: h, log: cfg.Logger, sotwOnly: map[string]bool{}, noResume: map[string]bool{},
		namesChanged: make(chan struct{}, 1), repeat: make(chan struct{}, 1), leftOut: map[string]string{}, health: newAddressHealth(cfg.Addresses),
	}, nil
}

// Run connects and reconnects until ctx ends, and then returns nil. It is called once.
func (c *Client) Run(ctx context.Context) error {
	pause := newPauses(c.cfg.MinBackoff, c.cfg.MaxBackoff, c.cfg.DeniedBackoff)
	way := route{addresses: len(c.cfg.Addresses)}
	for {
		for !c.wanted() {
			select {
			case <-ctx.Done():
				return nil
			case <-c.namesChanged:
			}
		}
		i := way.next()
		end := c.attempt(ctx, i)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		state := State{Phase: Disconnected, Address: c.cfg.Addresses[i], Err: explain(end.err), Answered: end.answered}
		if denied(end.err) {
			state.Phase, pause.refused = Denied, true
		}
		c.health.streamEnded(i, state.Err)
		wait := rand.N(max(c.cfg.MinBackoff, 1)) // many clients may come from a server that went away
		var moved *movedError
		switch {
		case errors.As(end.err, &moved):
			way.begin(moved.to, i)
			pause.stayed()
			wait = 0
		case !end.synced.IsZero() && time.Since(end.synced) >= c.cfg.soon:
			way.begin(i)
			pause.stayed()
			pause.refused = state.Phase == Denied
			wait = pause.unreachable.NextBackOff()
		default:
			if !end.synced.IsZero() {
				pause.left()
			}
			if way.over() {
				wait = pause.afterRound()
			}
		}
		c.handler.HandleState(state)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// Relist makes the present stream ask for everything again, soon, once for several calls, and
// does not wait. The answers have the mark Response.Relist. Without a stream, and with
// Config.Names, it has no effect. Any goroutine may call it.
func (c *Client) Relist() {
	select {
	case c.repeat <- struct{}{}:
	default:
	}
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
