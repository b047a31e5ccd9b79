package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"

	"meshrelay/internal/loglimit"
	"meshrelay/internal/peerkey"
)

const (
	requestTimeout = 5 * time.Second  // of a handshake and a request
	answerTimeout  = 30 * time.Second // of the rest
	maxHeaderBytes = 8 << 10
	maxConnections = 64
	maxOfHost      = 16 // connections
	maxAnswers     = 8  // that are made at the same time
	// processHeader has the ID of the process that answers.
	processHeader = "Relay-Process"
)

// ErrNone is the error of a document that a replica does not have.
var ErrNone = errors.New("it has nothing")

// Document writes a document for a query. Before the first byte, it may fail with ErrNone.
type Document func(ctx context.Context, query url.Values, w io.Writer) error

// Server serves documents to other replicas.
type Server struct {
	listen  string
	creds   *Credentials
	process string
	mux     http.ServeMux
	log     *slog.Logger
	notes   *loglimit.Limit // for lines that others cause
	busy    chan struct{}

	mu      sync.Mutex     // guards ofHosts
	ofHosts map[string]int // connections, by peerkey.Of
}

// NewServer returns a Server that does not listen yet. listen is host:port. process identifies this process; see
// NewSet. documents are by name.
func NewServer(listen string, creds *Credentials, process string, documents map[string]Document, log *slog.Logger) *Server {
	s := &Server{listen: listen, creds: creds, process: process, log: log, notes: loglimit.New(10, 10*time.Second), busy: make(chan struct{}, maxAnswers), ofHosts: map[string]int{}}
	for name, d := range documents {
		s.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { s.handle(d, w, r) })
	}
	return s
}

// Run listens and serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	lis, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("replicas.peers.listen: %w", err)
	}
	return s.Serve(ctx, lis)
}

// Serve is Run on an open listener. It closes the listener.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	s.log.Info("listening for replicas", "address", lis.Addr().String())
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout,
		MaxHeaderBytes: maxHeaderBytes, ConnState: s.count,
		ErrorLog:    log.New(s, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	server.SetKeepAlivesEnabled(false) // each request is judged by the certificates of its time
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		secured := tls.NewListener(netutil.LimitListener(lis, maxConnections), s.creds.config(x509.ExtKeyUsageClientAuth))
		if err := server.Serve(secured); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("replicas.peers: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return g.Wait()
}

// count closes a connection of a host that has too many.
func (s *Server) count(c net.Conn, state http.ConnState) {
	host := peerkey.Of(c.RemoteAddr())
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		if s.ofHosts[host]++; s.ofHosts[host] > maxOfHost {
			c.Close() // it becomes StateClosed
		}
	case http.StateClosed:
		if s.ofHosts[host]--; s.ofHosts[host] == 0 {
			delete(s.ofHosts, host)
		}
	}
}

// Write implements io.Writer for the log of the HTTP server.
func (s *Server) Write(line []byte) (int, error) {
	s.notes.Warn(s.log, "connection of a replica failed", "err", fmt.Sprintf("%.500s", line))
	return len(line), nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(processHeader, s.process)
	s.mux.ServeHTTP(w, r)
}

// handle answers a request for a document.
func (s *Server) handle(document Document, w http.ResponseWriter, r *http.Request) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-r.Context().Done():
		return
	}
	out := &answer{w: w}
	err := document(r.Context(), r.URL.Query(), out)
	switch {
	case err == nil:
	case out.begun:
		panic(http.ErrAbortHandler) // the replica then sees that the answer is cut off
	case errors.Is(err, ErrNone):
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// answer notes that a document has begun.
type answer struct {
	w     io.Writer
	begun bool
}

func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	return a.w.Write(p)
}
