package adsclient

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"meshrelay/internal/panics"
)

// Protocol is a variant of xDS.
type Protocol string

// The protocols.
const (
	// Auto uses delta with another relay and SotW with all other servers: an istiod's delta sends
	// everything again on each push (PROTOCOL C14).
	Auto  Protocol = "auto"
	SotW  Protocol = "sotw"
	Delta Protocol = "delta" // except after a DeltaError
)

// Config configures a Client. The Client may call the functions from several goroutines at once.
type Config struct {
	// Addresses are host:port, at least one, the preferred first.
	Addresses []string
	Protocol  Protocol
	// Node is called for each stream. It is required.
	Node func() *corev3.Node
	// TypeURLs returns the types to subscribe to, at least one, in the order of the requests. It is
	// called for each stream. relay: the server is another relay, which serves every kind under
	// every version. The first type must be the same in both cases.
	TypeURLs func(relay bool) []string
	// MeetFirst: a SotW stream first asks for one type. It asks for the others when it knows
	// whether the server is a relay, or after 10 s. A delta stream always does so.
	MeetFirst bool
	// Names returns the names to ask for of a type. While there are none, no stream opens. It is
	// called for each stream and after each Resubscribe. Servers answer names in parts, so no
	// response is Complete. The protocol must be SotW: an istiod's delta loses deletions of names
	// (PROTOCOL C14). If Names is nil, the client asks for everything.
	Names func(typeURL string) []string
	// Name is the name of this relay in provenance paths, empty for none. See SameNameError.
	Name string
	// Met is called with the server's headers, normally before the first response of the stream is
	// handled. It may run at the same time as a method of the Handler. It may be nil.
	Met func(Peer)
	// Credentials secure the connections. They are required.
	Credentials credentials.TransportCredentials
	DialOptions []grpc.DialOption
	// Stamp, unless nil, returns what changes with the credentials. Then the next attempt is made at once.
	Stamp func() string
	// SyncTimeout is how long a stream may be silent while a type has no first answer. Parts of a
	// response count, so that a slow link has time. If the only address answers some types, the next stream has
	// twice the time, up to 10 min. It is not for Names. Default: 30 s; negative: for ever.
	SyncTimeout time.Duration
	// FailbackAfter is how long a preferred address must have worked again before the
	// stream moves back to it. Default: 1 min; negative: it does not move back.
	FailbackAfter time.Duration
	// Silent gets the types without an answer when the stream has answered others, and then none for
	// the first time for Silence. It returns those that are still awaited. The others count as
	// answered, and stay subscribed. It is called like a method of the Handler, and again while types
	// are awaited. It may be nil. Default of Silence: 10 s.
	Silent  func(typeURLs []string) (awaited []string)
	Silence time.Duration
	// MaxResponseBytes bounds a response: a larger one ends the stream. A response is in memory
	// once. At most 2 GiB, the largest that gRPC can frame. Default: 256 MiB.
	MaxResponseBytes int
	// ResyncInterval is how often, plus or minus a tenth, a SotW stream asks for everything again
	// (PROTOCOL C4). Zero: never.
	ResyncInterval time.Duration
	// MinBackoff and MaxBackoff bound the pause after a round of attempts, plus or minus half of
	// it. The pause grows until a stream syncs. It also grows while each stream ends soon after its
	// sync. Defaults: 250 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// DeniedBackoff is the shortest pause after the server refused the relay's identity. Default:
	// 10 s.
	DeniedBackoff time.Duration
	Logger        *slog.Logger

	// Tests set these. A stream that ends within soon of its sync counts as failed. onSync is
	// called when every type is answered.
	keepalive      keepalive.ClientParameters
	connectTimeout time.Duration
	soon           time.Duration
	onSync         func(address string)
}

// defaultMaxResponseBytes is about ten times the size of 10,000 large resources.
const defaultMaxResponseBytes = 256 << 20

// endsSoon is the default of Config.soon.
const endsSoon = 3 * time.Second

// Phase is the phase of a stream.
type Phase string

// The phases.
const (
	Connecting   Phase = "connecting"   // a stream is opening
	Streaming    Phase = "streaming"    // the stream is open, without a response yet
	Connected    Phase = "connected"    // the stream has received a response
	Disconnected Phase = "disconnected" // the stream has ended, or could not be opened
	Denied       Phase = "denied"       // Disconnected, because the server refuses the relay's identity
)

// State is the state of the connection, for a Handler.
type State struct {
	Phase    Phase
	Address  string
	Protocol Protocol // once it is known
	// Relay: the server is another relay. On a SotW stream, this is known from the phase Connected.
	Relay bool
	// Server is the server's certificate, nil unless the client has verified it. It is set in the phase Connected.
	Server *x509.Certificate
	// Err is the error, with a cure, in the phases Disconnected and Denied.
	Err error
	// Answered: in the phases Disconnected and Denied, the stream had received responses. Its end
	// is normal unless reconnecting fails: servers limit the age of connections (PROTOCOL C18).
	Answered bool
}

// Handler receives the responses of a Client. The Client calls one method at a time.
type Handler interface {
	// HandleResponse is called for each response before it is acknowledged. It uses the good part
	// of the response. Its error becomes the text of a NACK (PROTOCOL C7). A DeltaError ends a delta
	// stream instead. It must not keep any bytes of the response.
	HandleResponse(*Response) error
	// ResumeVersions returns the versions of the held resources of a type, by name. They are the
	// initial_resource_versions of a new delta stream.
	ResumeVersions(typeURL string) map[string]string
	// HandleState is called for each change of the connection.
	HandleState(State)
}

// Client keeps a stream open.
type Client struct {
	cfg     Config
	handler Handler
	log     *slog.Logger
	health  *addressHealth
	// sotwOnly has the addresses of servers that are not relays. noResume has those that refused
	// the versions to resume from. An address leaves both when a stream to it fails without a
	// response.
	sotwOnly, noResume map[string]bool
	// badDelta has the DeltaError of an address, until a stream to it fails without a response. pinged
	// has the addresses that have ended a connection for too many pings. Only attempt changes them.
	badDelta map[string]*DeltaError
	pinged   map[string]bool
	// namesChanged has an element when Names returns other names, and repeat when the stream has to
	// ask for everything again.
	namesChanged, repeat chan struct{}
	// leftOut has, by type, why the client does not ask for some names. Run and the writer of the
	// present stream use it in turn.
	leftOut  map[string]string
	patience time.Duration   // SyncTimeout of a stream that has answered some types
	silent   map[string]bool // types that the server does not offer, for the watchdog
}

// New returns a Client that is not connected.
func New(cfg Config, h Handler) *Client {
	cfg.MinBackoff = cmp.Or(cfg.MinBackoff, 250*time.Millisecond)
	cfg.MaxBackoff = cmp.Or(cfg.MaxBackoff, 30*time.Second)
	cfg.DeniedBackoff = cmp.Or(cfg.DeniedBackoff, 10*time.Second)
	cfg.SyncTimeout = cmp.Or(cfg.SyncTimeout, 30*time.Second)
	cfg.FailbackAfter = cmp.Or(cfg.FailbackAfter, time.Minute)
	cfg.Silence = cmp.Or(cfg.Silence, 10*time.Second)
	cfg.soon = cmp.Or(cfg.soon, endsSoon)
	cfg.connectTimeout = cmp.Or(cfg.connectTimeout, connectTimeout)
	cfg.MaxResponseBytes = cmp.Or(cfg.MaxResponseBytes, defaultMaxResponseBytes)
	cfg.keepalive = cmp.Or(cfg.keepalive, keepaliveParams())
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Stamp == nil {
		cfg.Stamp = func() string { return "" }
	}
	inFlight.mu.Lock()
	inFlight.limit = max(inFlight.limit, cfg.MaxResponseBytes+cfg.MaxResponseBytes/4)
	inFlight.mu.Unlock()
	return &Client{
		cfg: cfg, handler: h, log: cfg.Logger, sotwOnly: map[string]bool{}, noResume: map[string]bool{},
		badDelta: map[string]*DeltaError{}, pinged: map[string]bool{},
		namesChanged: make(chan struct{}, 1), repeat: make(chan struct{}, 1), leftOut: map[string]string{}, health: newAddressHealth(cfg.Addresses),
		patience: cfg.SyncTimeout,
	}
}

// Run connects and reconnects until ctx ends. Then it returns nil. It is called once. After a panic in a goroutine of
// its own it returns a panics.Panic. A panic of the handler may also be one of Run.
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
		i, stamp := way.next(), c.cfg.Stamp()
		end := c.attempt(ctx, i)
		if p, is := errors.AsType[*panics.Panic](end.err); is {
			return p
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		state := State{Phase: Disconnected, Address: c.cfg.Addresses[i], Err: explain(end.err), Answered: end.answered}
		if denied(end.err) {
			state.Phase, pause.refused = Denied, true
		}
		c.health.streamEnded(i, state.Err)
		if c.patience = min(2*c.patience, max(10*time.Minute, c.cfg.SyncTimeout)); !end.answered || !end.synced.IsZero() || way.addresses > 1 {
			c.patience = c.cfg.SyncTimeout
		}
		wait := rand.N(max(c.cfg.MinBackoff, 1)) // spreads the clients of a server that went away
		switch moved, is := errors.AsType[*movedError](end.err); {
		case is:
			way.begin(moved.to, i)
			pause.stayed()
			wait = 0
		case errors.As(end.err, new(*DeltaError)):
			way.begin(i) // with SotW
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
		for ; wait > time.Second && c.cfg.Stamp() == stamp; wait -= time.Second {
			if !sleep(ctx, time.Second) {
				return nil
			}
		}
		if c.cfg.Stamp() == stamp && !sleep(ctx, wait) {
			return nil
		}
	}
}

// Relist makes the present stream ask for everything again, once for several calls. It does not
// block. The answers have the mark Response.Relist. Without a stream, and with Config.Names, it has
// no effect. Any goroutine may call it.
func (c *Client) Relist() {
	select {
	case c.repeat <- struct{}{}:
	default:
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
