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

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/views"
	"meshrelay/events"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/push"
)

// The headers of each stream's response, for other relays.
//
// ProtocolHeader identifies a relay: the client may use the delta protocol, because a relay sends only
// changed resources. NameHeader is the name of the relay, so that two relays of one name notice it.
// HoldsHeader is "true" while the relay holds its clients, so that relays do not wait for each other.
const (
	ProtocolHeader = "x-meshrelay"
	NameHeader     = "x-meshrelay-name"
	HoldsHeader    = "x-meshrelay-holds"
)

// DrainTimeout is how long a shutdown waits for streams to end.
const DrainTimeout = 10 * time.Second

// Config configures a Server. The zero value of a limit means its default.
type Config struct {
	// NodeID and Version are in control_plane.identifier.
	NodeID, Version string
	// RelayName is the name of this relay in provenance paths, or empty.
	RelayName string
	// Listeners are the addresses to serve on, at least one.
	Listeners []Listener
	// Views select the copies that clients see. Without views, clients see everything except copies from their own
	// cluster. Server.Reload can replace them, as it can Limits.
	Views []views.View
	// DrainTimeout bounds the shutdown. It is 10 s if not set.
	DrainTimeout time.Duration
	// Limits are the limits that Server.Reload can replace, but for MaxRequestBytes.
	Limits

	timeouts timeouts
	listen   func(network, address string) (net.Listener, error) // net.Listen, except in tests
}

// timeouts are zero except in tests.
type timeouts struct {
	age, idle             time.Duration // of connections
	first, unread, status time.Duration // of streams
}

const (
	// connectionAge is the age, ±10 %, at which a client is told to reconnect, so that clients spread over replicas.
	// connectionAgeGrace later the connection is closed. connectionIdle bounds the time of a connection without a stream.
	connectionAge, connectionAgeGrace, connectionIdle = 30 * time.Minute, 10 * time.Second, 5 * time.Minute
	// firstTimeout bounds the wait for the first request of a stream, and unreadTimeout the time in which a client must
	// read a response.
	firstTimeout, unreadTimeout = 10 * time.Second, 5 * time.Minute
)

func (c Config) withDefaults() Config {
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DrainTimeout)
	t := &c.timeouts
	t.age, t.idle = cmp.Or(t.age, connectionAge), cmp.Or(t.idle, connectionIdle)
	t.first, t.unread, t.status = cmp.Or(t.first, firstTimeout), cmp.Or(t.unread, unreadTimeout), cmp.Or(t.status, statusTimeout)
	if c.listen == nil {
		c.listen = net.Listen
	}
	return c
}

// Resources is the merged view. Any goroutine may call its methods.
type Resources interface {
	Get(key mirror.Key) *mirror.Resource
	// Select merges the copies that accept accepts. If accept accepts all copies of the resource, Select
	// returns the same pointer as Get.
	Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource
	// Keys returns all keys of a kind that any upstream has, sorted by full name.
	Keys(kind mirror.Kind) []mirror.Key
	// SourceKinds returns all kinds with resources of any upstream.
	SourceKinds() []mirror.Kind
}

// Deps are the parts that a Server uses.
type Deps struct {
	Resources Resources
	// Await returns when clients may be served; until then the server holds them (PROTOCOL S4). Run calls it
	// once. nil: clients are served at once.
	Await func(ctx context.Context) error
	// Overloaded returns why the relay can not serve more clients at present, or nil. New streams then end
	// with ResourceExhausted and this text. Connected clients stay, and may reconnect after connectionAge:
	// a peer may open as many streams as it had before. Clients that have proven an identity are refused last. Any
	// goroutine may call Overloaded. It may be nil.
	Overloaded func(proven bool) error
	// Registerer takes the Server's metrics.
	Registerer prometheus.Registerer
	Logger     *slog.Logger
	// Work counts the work of pushes. It may be nil.
	Work *push.Work
	// Events records events of clients. It may be nil.
	Events *events.Journal
}

// Server is the ADS server.
type Server struct {
	cfg           Config
	await         func(ctx context.Context) error
	overloaded    func(proven bool) error
	admission     *admit.Admission
	usage         usage
	log           *slog.Logger
	metrics       *metrics
	work          *push.Work
	events        *events.Journal
	rounds        rounds
	views         *viewSet
	limits        atomic.Pointer[Limits] // the Limits are immutable
	decoding      decoding
	refused       loglimit.Peers  // refused clients retry
	refusals      *loglimit.Limit // of all refused clients
	comings       *loglimit.Limit // of clients that come and go
	nacks         *loglimit.Limit
	panicLog      *loglimit.Limit
	controlPlane  []byte // encoded envoy.config.core.v3.ControlPlane
	identifier    string
	statusStreams *semaphore.Weighted // a place for each stream that asked for statusType
	beginnings    beginnings
	told          atomic.Pointer[told] // nil before Tell
	released      chan struct{}
	draining      chan struct{}
	lastID        atomic.Uint64
	panics        atomic.Uint64  // panics outside of streams
	streams       sync.WaitGroup // streams with a running goroutine
	listening     chan struct{}  // closed once addrs is set
	addrs         []net.Addr
	auth          map[*Listener]*authenticator // set by listen

	// serving changes when a hold of clients begins, with changes locked, and when it ends. A client that was matched by
	// an older one is matched again before it gets a view.
	serving atomic.Pointer[serving]
	changes sync.Mutex // held while views are updated

	mu sync.Mutex // guards conns
	// conns are roughly in the order in which the clients connected, and so in the order of their memory. A
	// push visits them in this order, which uses the CPU's cache well.
	conns []*conn
}

// New returns a Server that does not listen yet.
func New(cfg Config, deps Deps) (*Server, error) {
	if len(cfg.Listeners) == 0 {
		return nil, errors.New("downstream: no listeners")
	}
	rs, err := views.New(cfg.Views, listenersOf(cfg.Listeners))
	if err != nil {
		return nil, err
	}
	limits := cfg.complete()
	cfg = cfg.withDefaults()
	identifier, err := json.Marshal(map[string]any{"Component": "relay", "ID": cfg.NodeID, "Info": map[string]string{"version": cfg.Version}})
	if err != nil {
		return nil, err
	}
	if deps.Overloaded == nil {
		deps.Overloaded = func(bool) error { return nil }
	}
	if deps.Await == nil {
		deps.Await = func(context.Context) error { return nil }
	}
	m := newMetrics(deps.Registerer)
	s := &Server{
		cfg: cfg, await: deps.Await, overloaded: deps.Overloaded, log: deps.Logger,
		metrics: m, events: deps.Events, work: cmp.Or(deps.Work, push.NewWork()), views: newViews(deps.Resources),
		decoding:   newDecoding(limits.MaxRequestBytes),
		refusals:   loglimit.New(10, time.Second),
		comings:    loglimit.New(4000, 20*time.Millisecond),
		nacks:      loglimit.New(100, time.Second),
		panicLog:   loglimit.New(20, time.Second),
		identifier: string(identifier), statusStreams: semaphore.NewWeighted(maxStatusStreams),
		beginnings:   newBeginnings(cfg.RelayName),
		controlPlane: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), identifier),
		released:     make(chan struct{}), draining: make(chan struct{}), listening: make(chan struct{}),
		auth: map[*Listener]*authenticator{},
	}
	s.views.panicked, s.rounds.distribution = s.panicked, m.distribution
	deps.Registerer.MustRegister(behindMetric(s))
	s.limits.Store(limits)
	s.serving.Store(&serving{rules: rs})
	var listeners []admit.Listener
	for _, l := range cfg.Listeners {
		listeners = append(listeners, admit.Listener{Address: l.Address, Identifies: l.TLS.verifies()})
	}
	s.admission = admit.New(&limits.Limits, listeners, s.connectionRefused, s.work.BusyWith)
	return s, nil
}

// Run serves until ctx ends, and then ends all streams, for at most Config.DrainTimeout. Call it once.
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
	for l, a := range s.auth {
		g.Go(func() error { return s.watch(ctx, l, a) })
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
	s.streams.Wait() // GracefulStop has waited for new streams
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

// release waits until clients may be served, and then serves them.
func (s *Server) release(ctx context.Context) error {
	began := time.Now()
	err := s.await(ctx)
	if mirror.IsClosed(ctx.Done()) {
		return nil // ctx has ended
	}
	if err != nil {
		return err
	}
	s.lockChanges()
	s.views.open(began)
	s.changes.Unlock()
	s.learn() // move the waiting clients before the first response
	for l, a := range s.auth {
		s.check(l, a) // they may have waited long
	}
	close(s.released)
	s.wakeAll()
	return nil
}

// NeedsPushes reports whether changes must be pushed. Before the views are opened they need not be, because
// opening reads everything. A change that Resources returns before the call is never missed.
func (s *Server) NeedsPushes() bool { return s.views.started.Load() }

// NeedsCopies reports whether any client has a derived view: then changes of copies that lose must be pushed,
// too. A change that Resources returns before the call is never missed.
func (s *Server) NeedsCopies() bool { return s.views.copies.Load() > 0 }

// Released returns a channel that is closed when the server begins to serve clients.
func (s *Server) Released() <-chan struct{} { return s.released }

// HasReleased reports whether the server serves clients.
func (s *Server) HasReleased() bool { return mirror.IsClosed(s.released) }

// Push updates all views with the present content of the keys of a request, which may include keys of copies
// that lose. It wakes the clients, and does not wait for their responses. It waits for a running Reload. Only
// one call runs at a time.
func (s *Server) Push(req *push.Request) {
	s.lockChanges()
	defer s.changes.Unlock()
	began := time.Now()
	defer func() { s.work.Busy(time.Since(began)) }()
	if s.views.update(req.Full, req.ConfigsUpdated, req.Start) {
		for why := range req.Reason {
			s.metrics.pushRequests.WithLabelValues(string(why)).Inc()
		}
		s.rounds.begin(req.Start, time.Now())
		s.wakeAll()
	}
}

// panicked counts and logs a panic during a push.
func (s *Server) panicked(item string, p *panics.Panic) {
	s.metrics.panics.Inc()
	s.panicLog.Log(s.log, slog.LevelError, "panic while pushing", "item", item, "panic", p.Value, "panics", s.panics.Add(1), "stack", p.Stack)
}

// wakeBatch is how many clients wakeAll wakes before it yields the CPU.
const wakeBatch = 16

// wakeAll wakes all streams. It yields often, because thousands of streams that send at the same time would
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

// remove moves the last connection to the place of the removed one.
func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := len(s.conns) - 1
	last := s.conns[end]
	s.conns[c.place], last.place = last, c.place
	s.conns[end] = nil
	s.conns = s.conns[:end]
}
