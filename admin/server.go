package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"meshrelay/internal/buildinfo"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	// writeTimeout is how long a client may take to read a part of an answer.
	writeTimeout    = 30 * time.Second
	shutdownTimeout = 5 * time.Second
	// socketRetry is how often the Server tries again to open the Unix socket.
	socketRetry    = 5 * time.Second
	maxHeaderBytes = 16 << 10
	maxBodyBytes   = 4 << 10
	maxConnections = 256
	// maxSocketConnections bounds the connections over the Unix socket.
	maxSocketConnections = 64
	// maxDebugRequests bounds the debug documents that are made at the same time.
	maxDebugRequests = 8
)

const (
	textType = "text/plain; charset=utf-8"
	jsonType = "application/json"
)

// Config configures a Server.
type Config struct {
	// Address is host:port. Port 0 means any.
	Address string
	// Socket is the absolute path of the Unix socket. It serves what Address does, and changes.
	// Empty: none.
	Socket string
	// OwnSocketDir tells that only the relay uses the directory of the Socket: then the Server
	// takes the permission to write there from others. Otherwise it does not open the Socket in a
	// directory that others can write to.
	OwnSocketDir bool
}

// Deps are the parts that a Server shows and controls.
type Deps struct {
	// Gatherer has the metrics.
	Gatherer prometheus.Gatherer
	// Ready may be called from any goroutine.
	Ready func() Readiness
	Debug *Debug
	// LogLevel is read and set at /debug/loglevel.
	LogLevel *slog.LevelVar
	Build    buildinfo.Info
	// Name is the relay's node.id, Started when the process began.
	Name    string
	Started time.Time
	Logger  *slog.Logger
	// Controls carries out orders about upstreams.
	Controls Controls
	// Clusters carries out orders about clusters that were found.
	Clusters ClusterControls
	// Reload loads the config file again.
	Reload func(ctx context.Context) error
	// ReloadStatus returns the state of the config file.
	ReloadStatus func() ReloadStatus

	// The others may be nil, and may be called from any goroutine.

	// Pages is the web page at /ui/.
	Pages http.Handler
	// Backup writes a copy of the state; nil when no state is kept.
	Backup func(w io.Writer) error
	// Notes returns other problems, a line each, which do not make the relay unready.
	Notes func() []string
	// Remarks returns hints about a relay that works as it is told, a line each.
	Remarks func() []string
	// Memory returns the memory in use and its limit, in bytes. A limit of math.MaxInt64 is none.
	Memory func() (inUse, limit uint64)
	// Supports are for support bundles.
	Supports Supports
}

// Server is the HTTP server for operators. New makes it, Run runs it.
type Server struct {
	cfg       Config
	deps      Deps
	log       *slog.Logger
	busy      chan struct{} // the slots of Debug
	writing   chan struct{} // one slot: one change at a time
	backups   chan struct{} // one slot
	followers chan struct{} // of events
	bundles   chan struct{} // one slot
	level     *logLevel
	socket    atomic.Pointer[socketState]
	handler   http.Handler
	// socketRetry is the constant, but for tests.
	socketRetry time.Duration
}

// New returns a Server that does not listen yet.
func New(cfg Config, deps Deps) *Server {
	s := &Server{
		cfg: cfg, deps: deps, log: deps.Logger,
		busy: deps.Debug.busy, writing: make(chan struct{}, 1), backups: make(chan struct{}, 1), bundles: make(chan struct{}, 1),
		followers:   make(chan struct{}, maxFollowers),
		level:       &logLevel{level: deps.LogLevel, changed: make(chan struct{}, 1)},
		socketRetry: socketRetry,
	}
	s.socket.Store(&socketState{problem: "it is not open yet"})
	s.handler = s.routes()
	return s
}

// Run listens on the configured address and socket and serves until ctx ends; then it gives
// requests a few seconds to finish. While the socket can not be opened it serves the address, and
// tries again.
func (s *Server) Run(ctx context.Context) error {
	lis, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("admin.address: %w", err)
	}
	return s.Serve(ctx, lis)
}

// Serve is Run on a listener that is open already. It closes the listener.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	s.log.Info("listening for operators", "address", lis.Addr().String())
	socket := s.openSocket() // before anybody can ask where it is
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serve(ctx, netutil.LimitListener(lis, maxConnections)) })
	g.Go(func() error { return s.level.run(ctx, s.log) })
	if s.cfg.Socket != "" {
		g.Go(func() error {
			defer s.socket.Store(&socketState{problem: "the relay is shutting down"})
			if socket == nil {
				if socket = s.awaitSocket(ctx); socket == nil {
					return nil
				}
			}
			return s.serve(ctx, netutil.LimitListener(socket, maxSocketConnections))
		})
	}
	return g.Wait()
}

// serve serves the connections of a listener until ctx ends.
func (s *Server) serve(ctx context.Context, lis net.Listener) error {
	// Requests live no longer than the shutdown lasts: profiles and large documents
	// would otherwise outlive it.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ending, end := context.WithCancel(base)
	defer end()
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return context.WithValue(base, endingKey{}, ending.Done()) },
		ConnContext:       withPeer,
	}
	server.RegisterOnShutdown(end) // streams would keep it waiting
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("admin: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		timeout, cancelTimeout := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancelTimeout()
		if err := server.Shutdown(timeout); err != nil {
			cancel()
			return server.Close()
		}
		return nil
	})
	return g.Wait()
}

// Version is the build of a running relay, its name, its start, its socket, and its memory.
type Version struct {
	buildinfo.Info
	// Name is the relay's node.id.
	Name    string    `json:"name,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// AdminSocket is the path of the Unix socket, on the relay's own host; empty when it is
	// not open.
	AdminSocket string `json:"adminSocket,omitempty"`
	// MemoryInUse and MemoryLimit are in bytes; 0 when unknown, and without a limit.
	MemoryInUse uint64 `json:"memoryInUse,omitempty"`
	MemoryLimit uint64 `json:"memoryLimit,omitempty"`
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", s.ready)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", textType)
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.deps.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: maxDebugRequests,
	}))
	for _, doc := range documents() {
		h := s.debugOnly(s.document(doc))
		if doc.name == "events" {
			h = s.events(h)
		}
		mux.Handle("GET /debug/"+doc.name, h)
	}
	mux.Handle("GET /debug/loglevel", s.debugOnly(s.logLevel))
	s.addControls(mux)
	s.addProfiles(mux)
	mux.Handle("GET /version", s.debugOnly(func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, s.Version())
	}))
	if s.deps.Pages != nil {
		mux.HandleFunc("GET /ui/", s.pages)
		mux.Handle("GET /ui", http.RedirectHandler("/ui/", http.StatusSeeOther))
	}
	mux.Handle("GET /{$}", s.debugOnly(s.index))
	mux.Handle("GET /debug/{$}", s.debugOnly(s.index))
	mux.Handle("GET /debug", s.debugOnly(s.index))
	return common(mux)
}

// common wraps all handlers.
func common(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		notFromPages(next).ServeHTTP(&patientWriter{ResponseWriter: w, rc: http.NewResponseController(w)}, r)
	})
}

// patientWriter gives the client writeTimeout for each part of an answer, however long
// the whole takes to make.
type patientWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	extends time.Time // when the deadline is next to be moved
}

// Write implements io.Writer.
func (p *patientWriter) Write(b []byte) (int, error) {
	if now := time.Now(); now.After(p.extends) {
		if err := p.rc.SetWriteDeadline(now.Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return 0, err
		}
		p.extends = now.Add(writeTimeout / 8)
	}
	return p.ResponseWriter.Write(b)
}

// Unwrap serves http.ResponseController.
func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
