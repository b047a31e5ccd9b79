package adsclient

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

const (
	// A relay sends the response header relayHeader. nameHeader has its name, and holdsHeader
	// whether it holds its clients.
	relayHeader = "x-meshrelay"
	nameHeader  = "x-meshrelay-name"
	holdsHeader = "x-meshrelay-holds"

	// maxNameBytes bounds the name of a relay. A longer one is ignored.
	maxNameBytes = 253
)

// Peer describes a server, from the headers of a stream.
type Peer struct {
	// Relay: the server is another relay.
	Relay bool
	// Name is the relay's name in provenance paths, empty if unknown.
	Name string
	// Holds: the relay holds its clients until its own upstreams have synced, and does not answer
	// yet.
	Holds bool
}

// ParsePeer returns the Peer of response headers. It ignores what is malformed.
func ParsePeer(md metadata.MD) Peer {
	p := Peer{Relay: len(md.Get(relayHeader)) > 0}
	if !p.Relay {
		return p
	}
	if names := md.Get(nameHeader); len(names) == 1 && isName(names[0]) {
		p.Name = names[0]
	}
	if holds := md.Get(holdsHeader); len(holds) == 1 {
		p.Holds = holds[0] == "true"
	}
	return p
}

func isName(s string) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
	return s != "" && len(s) <= maxNameBytes && strings.Trim(s, allowed) == ""
}

// SameNameError ends a stream to a relay with the client's own name. All its resources would be
// left out, because they have passed this relay already.
type SameNameError struct {
	Name string
}

func (e *SameNameError) Error() string {
	return fmt.Sprintf("the server is a relay of this relay's own name, %q, so that all its resources would be left out: give each relay a name of its own with provenance.relay; replicas share one name, and must not be upstreams of each other", e.Name)
}

// meet checks the server's description and passes it to Met. An error ends the stream.
func (s *stream) meet(p Peer) error {
	if cfg := s.client.cfg; cfg.Name != "" && p.Name == cfg.Name {
		return &SameNameError{p.Name}
	} else if cfg.Met != nil {
		cfg.Met(p)
	}
	return nil
}

// certificate returns the certificate of the server, nil unless the client has verified it. It is called once
// there are headers.
func (s *stream) certificate() *x509.Certificate {
	p, ok := peer.FromContext(s.grpc.Context())
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.PeerCertificates[0]
}

// setHeaders makes peer and greet wait for the headers of the stream. Several goroutines may call
// them, and get the same result.
func (s *stream) setHeaders() {
	s.peer = sync.OnceValues(func() (Peer, error) {
		md, err := s.grpc.Header()
		if err == nil && md == nil {
			err = errNoHeader // the stream has ended
		}
		return ParsePeer(md), err
	})
	s.greet = sync.OnceValue(func() error {
		if p, err := s.peer(); err == nil {
			return s.meet(p)
		}
		return nil // the reader returns why the stream has ended
	})
}

// peerInTime is peer with a timeout: an istiod sends headers with its first answer.
func (s *stream) peerInTime(ctx context.Context) (Peer, error) {
	done := make(chan struct{}) // the goroutine ends with the stream at the latest
	go func() {
		defer close(done)
		s.receiver.contain(func() { _, _ = s.peer() })
	}()
	select {
	case <-time.After(probeTimeout):
		return Peer{}, nil
	case <-ctx.Done():
		return Peer{}, ctx.Err()
	case <-done:
	}
	p, err := s.peer()
	if errors.Is(err, errNoHeader) {
		err = s.endOf(err)
	}
	return p, err
}
