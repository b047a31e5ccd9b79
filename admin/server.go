package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"meshrelay/internal/buildinfo"
	"meshrelay/internal/loglimit"
)

const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	// idleTimeout is how long a connection may wait for its next request. It is short, because anybody may reach the
	// address. Prometheus connects again.
	idleTimeout       = 10 * time.Second
	socketIdleTimeout = 2 * time.Minute
	// answerTimeout bounds a request, from its headers to the end of the answer, operatorTimeout one of this host, and
	// backupTimeout a backup. streamTimeout bounds a part of an event stream.
	answerTimeout   = 30 * time.Second
	operatorTimeout = (maxProfileSeconds + 60) * time.Second
	backupTimeout   = time.Hour
	streamTimeout   = 30 * time.Second
	shutdownTimeout = 5 * time.Second
	// socketRetry is how often the Server tries again to open the Unix socket.
	socketRetry    = 5 * time.Second
	maxHeaderBytes = 16 << 10
	maxBodyBytes   = 4 << 10
	maxConnections = 256
	// maxSocketConnections bounds the connections over the Unix socket.
	maxSocketConnections = 64
	// maxDebugRequests is the most debug documents that are made at the same time.
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
	// Socket is the absolute path of the Unix socket, or empty. It serves the same as Address, and changes.
	Socket string
	// OwnSocketDir is set when only the relay uses the directory of the Socket. The Server then removes the
	// write permission of others from it. Otherwise it refuses a directory to which others can write.
	OwnSocketDir bool
}

// Deps are the parts that a Server shows and controls.
type Deps struct {
	// Gatherer has the metrics.
	Gatherer prometheus.Gatherer
	// Ready must be safe for concurrent use.
	Ready func() Readiness
	Debug *Debug
	// LogLevel is read and set at /debug/loglevel.
	LogLevel *slog.LevelVar
	Build    buildinfo.Info
	// Name is the relay's node.id, Relay its name in provenance, Started when the process began.
	Name    string
	Relay   string
	Started time.Time
	Logger  *slog.Logger
	// Controls carries out orders about upstreams.
	Controls Controls
	// Clusters carries out orders about found clusters.
	Clusters ClusterControls
	// Reload loads the config file again.
	Reload func(ctx context.Context) error
	// ReloadStatus returns the state of the config file.
	ReloadStatus func() ReloadStatus

	// Preview tells what a config file would change for sinks and views.
	Preview func(ctx context.Context, config []byte) (Preview, error)

	// Sinks shows and controls sinks.
	Sinks SinkControls

	// The functions below must be safe for concurrent use.

	// Pages is the web page at /ui/.
	Pages http.Handler
	// Backup writes a copy of the state. It is nil when the relay keeps no state.
	Backup func(w io.Writer) error
	// Notes returns one line for each other problem that degrades the relay, but does not make it unready.
	Notes func() []string
	// Remarks returns hints that do not degrade the relay, one line each.
	Remarks func() []string
	// Memory returns the memory in use and its limit, in bytes. The limit is math.MaxInt64 if there is none.
	Memory func() (inUse, limit uint64)
	// Supports write parts of support bundles.
	Supports Supports
}

// Server is the HTTP server for operators. New makes it, Run runs it.
type Server struct {
	cfg       Config
	deps      Deps
	log       *slog.Logger
	busy      chan struct{} // the slots of Debug
	writing   chan struct{} // one slot: one change at a time
	followers chan struct{} // a slot for each event stream
	// Each is held while one is made.
	backups, bundles, previews sync.Mutex
	level                      *logLevel
	socket                     atomic.Pointer[socketState]
	handler                    http.Handler
	refused                    loglimit.Peers
	// socketRetry is the constant socketRetry, except in tests.
	socketRetry time.Duration
}

// New returns a Server that does not listen yet.
func New(cfg Config, deps Deps) *Server {
	s := &Server{
		cfg: cfg, deps: deps, log: deps.Logger,
		busy: deps.Debug.busy, writing: make(chan struct{}, 1),
		followers:   make(chan struct{}, maxFollowers),
		level:       &logLevel{level: deps.LogLevel, log: deps.Logger},
		socketRetry: socketRetry,
	}
	s.socket.Store(&socketState{problem: "it is not open yet"})
	s.handler = s.handle()
	return s
}

// Run listens on the configured address and socket and serves until ctx ends. Then it gives requests shutdownTimeout
// to finish. If the socket can not be opened, it serves the address and tries the socket again.
func (s *Server) Run(ctx context.Context) error {
	lis, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("admin.address: %w", err)
	}
	return s.Serve(ctx, lis)
}

// Serve is Run on an open listener. It closes the listener.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	s.log.Info("listening for operators", "address", lis.Addr().String())
	socket := s.openSocket() // before the first answer, which may contain its path
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.serve(ctx, newPlaces(lis, maxConnections), idleTimeout) })
	if s.cfg.Socket != "" {
		g.Go(func() error {
			defer s.socket.Store(&socketState{problem: "the relay is shutting down"})
			if socket == nil {
				if socket = s.awaitSocket(ctx); socket == nil {
					return nil
				}
			}
			return s.serve(ctx, newPlaces(socket, maxSocketConnections), socketIdleTimeout)
		})
	}
	return g.Wait()
}

// serve serves the connections of a listener until ctx ends.
func (s *Server) serve(ctx context.Context, lis *places, idle time.Duration) error {
	// The context of requests ends with the shutdown. Profiles and large documents would outlive it otherwise.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ending, end := context.WithCancel(base)
	defer end()
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idle,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return context.WithValue(base, endingKey{}, ending.Done()) },
		ConnContext:       withPeer,
	}
	server.RegisterOnShutdown(end) // ends streams, for which Shutdown would wait
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

// Version describes a running relay: its build, name, start, socket and memory.
type Version struct {
	buildinfo.Info
	// Name is the relay's node.id, Relay its name in provenance.
	Name    string    `json:"name,omitempty"`
	Relay   string    `json:"relay,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// AdminSocket is the path of the open Unix socket on the relay's host, or empty.
	AdminSocket string `json:"adminSocket,omitempty"`
	// MemoryInUse and MemoryLimit are in bytes. They are 0 when unknown or without a limit.
	MemoryInUse uint64 `json:"memoryInUse,omitempty"`
	MemoryLimit uint64 `json:"memoryLimit,omitempty"`
}

// common adds to all handlers the headers, the bounds and the checks that they share.
func common(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		most := int64(maxBodyBytes)
		if r.URL.Path == "/plan" {
			most = maxConfigBytes + 1
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		endIn(w, answerTimeout)
		if in, is := r.Context().Value(placeKey{}).(*place); is {
			in.wait(time.Time{})
			defer func() { in.wait(time.Now()) }()
		}
		notFromPages(next).ServeHTTP(w, r)
	})
}

// endIn bounds the time until the client has read the answer.
func endIn(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d)) // it fails if the client has gone, as writing does
}
