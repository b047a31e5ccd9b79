package downstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/events"
	"meshrelay/internal/loglimit"
	"meshrelay/mirror"
	"meshrelay/push"
)

// ProtocolHeader is the response header that every stream begins with: it tells another relay
// that it may use the delta protocol, as this server re-sends only what has changed.
//
// NameHeader tells another relay the name of this one, so that two of one name notice. HoldsHeader
// is "true" on streams that begin while clients are held: relays do not wait for each other.
const (
	ProtocolHeader = "x-meshrelay"
	NameHeader     = "x-meshrelay-name"
	HoldsHeader    = "x-meshrelay-holds"
)

// Config configures a Server. The zero value of a limit means its default.
type Config struct {
	// NodeID and Version name this relay in control_plane.identifier.
	NodeID, Version string
	// RelayName is the name of this relay in the paths of resources. Empty: they do not have it.
	RelayName string
	// ShortForIstiods sends SotW clients that look like istiods the short form of resources.
	ShortForIstiods bool
	// Listeners are the addresses to serve on. At least one.
	Listeners []Listener
	// Views are what clients see. None: everything, but what came from their own cluster.
	Views []View
	// MaxConnectionAge is how long a connection lives, ±10 %; then the client is told
	// to reconnect, and cut off after MaxConnectionAgeGrace.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
	// DrainTimeout bounds the shutdown.
	DrainTimeout time.Duration
	// SendTimeout is how long a client may leave a response unread.
	SendTimeout time.Duration
	// FirstRequestTimeout is how long a new stream may be without a request.
	FirstRequestTimeout time.Duration
	// MaxConnectionIdle is how long a connection may be without a stream.
	MaxConnectionIdle time.Duration
	// MaxStreamsPerConnection, MaxRequestBytes and MaxHeaderBytes bound one client. They and the
	// times above are fixed while the Server runs. The transport refuses headers of more than
	// twice MaxHeaderBytes, and counts nothing.
	MaxStreamsPerConnection int
	MaxRequestBytes         int
	MaxHeaderBytes          int
	// Gzip lets clients compress their requests.
	Gzip bool
	// Limits are those that Server.Reload can replace.
	Limits

	replyTimeout time.Duration // the constant, but in tests
}

func (c Config) withDefaults() Config {
	c.MaxConnectionAge = cmp.Or(c.MaxConnectionAge, 30*time.Minute)
	c.MaxConnectionAgeGrace = cmp.Or(c.MaxConnectionAgeGrace, 10*time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.SendTimeout = cmp.Or(c.SendTimeout, 5*time.Minute)
	c.FirstRequestTimeout = cmp.Or(c.FirstRequestTimeout, 10*time.Second)
	c.MaxConnectionIdle = cmp.Or(c.MaxConnectionIdle, 5*time.Minute)
	c.MaxStreamsPerConnection = cmp.Or(c.MaxStreamsPerConnection, 100)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, 32<<20)
	c.MaxHeaderBytes = cmp.Or(c.MaxHeaderBytes, 64<<10)
	c.replyTimeout = cmp.Or(c.replyTimeout, replyTimeout)
	return c
}

// Resources is the merged view. It is safe for use by several goroutines.
type Resources interface {
	Get(key mirror.Key) *mirror.Resource
	// Select merges the copies that accept lets through. It returns the very resource that Get
	// returns when accept lets all copies of it through.
	Select(key mirror.Key, accept func(*mirror.Resource) bool) *mirror.Resource
	// Keys returns all keys of a kind that any source has, sorted by full name.
	Keys(kind mirror.Kind) []mirror.Key
	// SourceKinds returns all kinds that any source has resources of.
	SourceKinds() []mirror.Kind
}

// Debugger answers the debug types of istiod (PROTOCOL D1, D2).
type Debugger interface {
	// Handle returns the JSON document of a debug handler, named as in a path with an
	// optional query: "configz?kind=ServiceEntry".
	Handle(nameAndQuery string) ([]byte, error)
	// SyncStatus returns the state of every client.
	SyncStatus() []*statusv3.ClientConfig
	// Begin takes a slot for an answer, and returns the function that gives it back once the
	// answer is sent. It fails when there is none.
	Begin() (end func(), err error)
}

// Deps are what a Server works with.
type Deps struct {
	Resources Resources
	// Await waits until clients may be served: until then they are held (PROTOCOL S4). Run calls
	// it once. Nil: they are served at once.
	Await func(ctx context.Context) error
	// Debug may be nil: then the debug types are unknown types.
	Debug Debugger
	// Overloaded returns why the relay takes on no more clients at present; nil: it does. New
	// streams then end with ResourceExhausted and that text. Connected clients stay, and may
	// reconnect after MaxConnectionAge: a peer may have as many streams as it had before.
	// It is safe for use by several goroutines, or nil.
	Overloaded func() error
	// Registerer takes the Server's metrics.
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	// Work takes the work that pushes make. It may be nil.
	Work *push.Work
	// Events takes what clients do. It may be nil.
	Events *events.Journal
	// Generators make types beside those of MCP-over-xDS.
	Generators []Generator
}

// Server is the ADS server.
type Server struct {
	cfg          Config
	await        func(ctx context.Context) error
	debug        Debugger
	overloaded   func() error
	log          *slog.Logger
	metrics      *metrics
	work         *push.Work
	events       *events.Journal
	rounds       rounds
	views        *views
	connLimiter  *connLimiter
	limits       atomic.Pointer[Limits] // what it points to is immutable
	decoding     decoding
	peers        *peers
	receiving    *receiving
	limiter      *rate.Limiter
	refusals     *loglimit.Limit // who is refused comes back
	comings      *loglimit.Limit // of clients that come and go
	nacks        *loglimit.Limit
	panicLog     *loglimit.Limit
	controlPlane []byte // encoded envoy.config.core.v3.ControlPlane
	identifier   string
	beginnings   beginnings
	released     chan struct{}
	draining     chan struct{}
	lastID       atomic.Uint64
	panics       atomic.Uint64  // outside of streams
	open         atomic.Int64   // streams
	streams      sync.WaitGroup // those that were taken in
	listening    chan struct{}  // closed once addrs is set
	addrs        []net.Addr
	trust        map[*Listener]*trust // of listeners that want client certificates; set by listen

	// changing guards rules. Whoever gives a client its view or updates views holds a share of
	// it; a reload, and whoever moves clients, holds all of it.
	changing *semaphore.Weighted
	// rules are the newest rules. A client that was matched by others is matched again before it
	// gets a view.
	rules *rules

	mu sync.Mutex // guards conns
	// conns are about in the order in which they came, as their memory is: a push finds what it needs
	// of one beside what it needed of the last.
	conns []*conn
}

// New returns a Server that listens to nobody yet.
func New(cfg Config, deps Deps) (*Server, error) {
	if len(cfg.Listeners) == 0 {
		return nil, errors.New("downstream: no listeners")
	}
	rs, err := newRules(cfg.Views, cfg.Listeners)
	if err != nil {
		return nil, err
	}
	limits, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	identifier, err := json.Marshal(map[string]any{"Component": "relay", "ID": cfg.NodeID, "Info": map[string]string{"version": cfg.Version}})
	if err != nil {
		return nil, err
	}
	if deps.Overloaded == nil {
		deps.Overloaded = func() error { return nil }
	}
	if deps.Await == nil {
		deps.Await = func(context.Context) error { return nil }
	}
	generators := append(slices.Clone(deps.Generators), newMCPGenerator())
	m, err := newMetrics(deps.Registerer, generators)
	if err != nil {
		return nil, fmt.Errorf("downstream: register metrics: %w", err)
	}
	s := &Server{
		cfg: cfg, await: deps.Await, debug: deps.Debug, overloaded: deps.Overloaded, log: deps.Logger,
		metrics: m, events: deps.Events, work: cmp.Or(deps.Work, push.NewWork()), rules: rs, changing: semaphore.NewWeighted(alone), views: newViews(deps.Resources, generators),
		limiter:      rate.NewLimiter(rate.Limit(limits.NewStreamsPerSecond), limits.NewStreamsPerSecond),
		peers:        newPeers(),
		decoding:     newDecoding(cfg.MaxRequestBytes),
		refusals:     loglimit.New(10, time.Second),
		comings:      loglimit.New(4000, 20*time.Millisecond),
		nacks:        loglimit.New(100, time.Second),
		panicLog:     loglimit.New(20, time.Second),
		identifier:   string(identifier),
		beginnings:   newBeginnings(cfg.RelayName),
		controlPlane: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), identifier),
		released:     make(chan struct{}), draining: make(chan struct{}), listening: make(chan struct{}),
		trust: map[*Listener]*trust{},
	}
	s.views.panicked = s.panicked
	s.limits.Store(limits)
	s.receiving = newReceiving(cfg.MaxRequestBytes, s.connectionRefused, s.work)
	s.connLimiter = newConnLimiter(func() (all, ofOne int) {
		l := s.limits.Load()
		return l.MaxConnections, l.MaxConnectionsPerPeer
	}, s.connectionRefused)
	return s, nil
}

// Run serves until ctx ends, then drains for Config.DrainTimeout at most. Call it once.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	for _, l := range listeners {
		s.addrs = append(s.addrs, l.lis.Addr())
	}
	close(s.listening)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.release(ctx) })
	g.Go(func() error { return s.learnOn(ctx) })
	for l, t := range s.trust {
		g.Go(func() error { return t.watch(ctx, func() { s.distrust(l) }) })
	}
	for _, l := range listeners {
		g.Go(func() error {
			if err := l.serve(); err != nil {
				return fmt.Errorf("downstream: listener %s: %w", l.address, err)
			}
			return nil
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		close(s.draining)
		for _, c := range s.connections() {
			c.end(errDraining)
		}
		var stop errgroup.Group
		for _, l := range listeners {
			stop.Go(func() error { l.stop(s.cfg.DrainTimeout); return nil })
		}
		return stop.Wait()
	})
	err = g.Wait()
	s.streams.Wait() // gRPC has waited for those that were coming
	return err
}

// Addrs waits until the listeners are open and returns their addresses, in the order of
// Config.Listeners.
func (s *Server) Addrs(ctx context.Context) ([]net.Addr, error) {
	select {
	case <-s.listening:
		return s.addrs, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// release opens the server to its clients once they may be served.
func (s *Server) release(ctx context.Context) error {
	began := time.Now()
	err := s.await(ctx)
	if isClosed(ctx.Done()) {
		return nil // somebody has asked for the end
	}
	if err != nil {
		return err
	}
	_ = s.changing.Acquire(context.Background(), 1) // a reload ends
	s.views.open(began)
	s.changing.Release(1)
	s.learn(ctx) // before anybody is sent anything: of clients that have waited
	close(s.released)
	s.wakeAll()
	return nil
}

// NeedsPushes reports whether changes have to be pushed: until the server opens, it reads
// everything anyway. It misses no change that Resources shows before the call.
func (s *Server) NeedsPushes() bool { return s.views.started.Load() }

// NeedsCopies reports whether any client sees less than everything, so that changes of copies
// that lose have to be pushed too. It misses no change that Resources shows before the call.
func (s *Server) NeedsCopies() bool { return s.views.copies.Load() > 0 }

// Released returns what is closed when clients begin to be served.
func (s *Server) Released() <-chan struct{} { return s.released }

// HasReleased reports whether clients are being served.
func (s *Server) HasReleased() bool { return isClosed(s.released) }

// Push updates every view to the present content of the keys of a request, which may name keys of
// copies that lose. Clients are sent the changes after it has returned. It waits for a Reload
// under way. Only one call at a time.
func (s *Server) Push(req *push.Request) {
	_ = s.changing.Acquire(context.Background(), 1)
	defer s.changing.Release(1)
	began := time.Now()
	defer func() { s.work.Busy(time.Since(began)) }()
	if s.views.update(req.Full, req.ConfigsUpdated, req.Start) {
		for why := range req.Reason {
			s.metrics.pushRequests.WithLabelValues(string(why)).Inc()
		}
		s.rounds.begin(time.Now())
		s.wakeAll()
	}
}

// panicked counts and logs a panic while views were brought to other content.
func (s *Server) panicked(item string, p *mirror.Panic) {
	s.metrics.panics.Inc()
	s.panicLog.Log(s.log, slog.LevelError, "panic while pushing", "item", item, "panic", p.Value, "panics", s.panics.Add(1), "stack", p.Stack)
}

// wakeBatch is how many clients are woken before they are given the processor.
const wakeBatch = 16

// wakeAll wakes every client. It yields now and then: thousands that are under way at once would
// each hold a write buffer.
func (s *Server) wakeAll() {
	for i, c := range s.connections() {
		c.tell()
		if i%wakeBatch == wakeBatch-1 {
			runtime.Gosched()
		}
	}
}

func (s *Server) connections() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns)
}

func (s *Server) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.place = len(s.conns)
	s.conns = append(s.conns, c)
}

// remove gives the place of a connection to the last one.
func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := len(s.conns) - 1
	last := s.conns[end]
	s.conns[c.place], last.place = last, c.place
	s.conns[end] = nil
	s.conns = s.conns[:end]
}
