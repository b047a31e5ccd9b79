package downstream

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// trust is the roots that a listener trusts at present. The handshake of a connection looks at
// its certificate once; what is here ends the streams of those that could not connect any more.
type trust struct {
	file    string
	refresh time.Duration
	now     atomic.Pointer[roots]
}

// roots are the content of a file of root certificates. They are immutable.
type roots struct {
	sum   [sha256.Size]byte // of the file
	pool  *x509.CertPool
	certs map[[sha256.Size]byte]struct{} // by sum
}

// newTrust returns the trust of a listener that wants client certificates, nil of another.
func newTrust(t *TLS) (*trust, error) {
	if t == nil || t.ClientCAFile == "" {
		return nil, nil
	}
	tr := &trust{file: t.ClientCAFile, refresh: t.Refresh}
	if tr.refresh == 0 {
		tr.refresh = certRefresh
	}
	if tr.read(); tr.now.Load() == nil {
		return nil, fmt.Errorf("client CA %s: there is no certificate in it, or it can not be read", t.ClientCAFile)
	}
	return tr, nil
}

// read looks at the file, and reports whether there are other roots in it. A file without a
// certificate, or that can not be read, does not replace a good one.
func (t *trust) read() (changed bool) {
	data, err := os.ReadFile(t.file)
	if err != nil {
		return false
	}
	was := t.now.Load()
	sum := sha256.Sum256(data)
	if was != nil && was.sum == sum {
		return false
	}
	r := &roots{sum: sum, pool: x509.NewCertPool(), certs: map[[sha256.Size]byte]struct{}{}}
	if !r.pool.AppendCertsFromPEM(data) {
		return false
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		r.certs[sha256.Sum256(block.Bytes)] = struct{}{}
	}
	return t.now.CompareAndSwap(was, r)
}

// watch calls changed whenever there are other roots, until ctx ends.
func (t *trust) watch(ctx context.Context, changed func()) error {
	tick := time.NewTicker(t.refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if t.read() {
				changed()
			}
		}
	}
}

// vouches returns an error when a peer's certificate is signed by none of the roots any more.
func (t *trust) vouches(p *peer.Peer) error {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return errNotTrusted
	}
	r := t.now.Load()
	for _, chain := range info.State.VerifiedChains {
		if _, ok := r.certs[sha256.Sum256(chain[len(chain)-1].Raw)]; ok {
			return nil
		}
	}
	// There may be another way to a root that there is.
	opts := x509.VerifyOptions{Roots: r.pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range info.State.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := info.State.PeerCertificates[0].Verify(opts); err != nil {
		return errNotTrusted
	}
	return nil
}

var errNotTrusted = refuse(reasonCertificate, codes.Unauthenticated,
	"the client certificate is signed by none of the certificates in tls.clientCAFile any more; connect with another")

// expiryOf returns when the verified certificate of a peer expires; false: it has none.
func expiryOf(p *peer.Peer) (time.Time, bool) {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return time.Time{}, false
	}
	return info.State.VerifiedChains[0][0].NotAfter, true
}

func errExpired(at time.Time) error {
	return refuse(reasonCertificate, codes.Unauthenticated,
		"the client certificate has expired at %s; connect with a new one", at.UTC().Format(time.RFC3339))
}

// trusts returns why the certificate of a new stream's peer is not good any more.
func (s *Server) trusts(l *Listener, p *peer.Peer) error {
	if at, ok := expiryOf(p); ok && time.Now().After(at) {
		return errExpired(at)
	}
	t := s.trust[l]
	if t == nil {
		return nil
	}
	err := t.vouches(p)
	if err != nil && t.read() { // the handshake may have read the file before
		s.distrust(l)
		err = t.vouches(p)
	}
	return err
}

// distrust ends the streams of a listener whose certificates are not trusted any more.
func (s *Server) distrust(l *Listener) {
	ended := 0
	for _, c := range s.connections() {
		if c.listener != l {
			continue
		}
		if err := s.trust[l].vouches(c.peer); err != nil {
			select {
			case c.distrusted <- err:
				ended++
			default: // it has been told
			}
		}
	}
	s.log.Info("client CA file changed", "listener", l.Address, "file", s.trust[l].file, "ended", ended)
}
