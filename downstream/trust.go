package downstream

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/security/advancedtls"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/identity"
)

// trust is the roots that a listener trusts at present, for handshakes and for open streams.
type trust struct {
	refresh  time.Duration
	byDomain map[string]*rootFile // by trust domain
	others   *rootFile            // nil: there are none
}

// rootFile is a file of root certificates. It is safe for use by several goroutines.
type rootFile struct {
	path string
	now  atomic.Pointer[roots]
}

// roots are the content of a file of root certificates. They are immutable.
type roots struct {
	sum  [sha256.Size]byte // of the file
	pool *x509.CertPool
}

// newTrust returns the trust of a listener that wants client certificates, nil of another.
func newTrust(t *TLS) (*trust, error) {
	if !t.verifies() {
		return nil, nil
	}
	tr := &trust{refresh: t.refresh(), byDomain: map[string]*rootFile{}}
	var err error
	if t.ClientCAFile != "" {
		if tr.others, err = openRoots(t.ClientCAFile); err != nil {
			return nil, err
		}
	}
	for _, ca := range t.ClientCAs {
		if tr.byDomain[ca.TrustDomain], err = openRoots(ca.File); err != nil {
			return nil, err
		}
	}
	return tr, nil
}

func openRoots(path string) (*rootFile, error) {
	f := &rootFile{path: path}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	if f.read(); f.now.Load() == nil {
		return nil, fmt.Errorf("client CA %s: there is no certificate in it, or it can not be read", path)
	}
	return f, nil
}

// read looks at the file, and reports whether it has other roots. A bad file replaces none.
func (f *rootFile) read() (changed bool) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return false
	}
	was := f.now.Load()
	sum := sha256.Sum256(data)
	if was != nil && was.sum == sum {
		return false
	}
	r := &roots{sum: sum, pool: x509.NewCertPool()}
	if !r.pool.AppendCertsFromPEM(data) {
		return false
	}
	return f.now.CompareAndSwap(was, r)
}

// read looks at every file, and reports whether there are other roots in any.
func (t *trust) read() (changed bool) {
	if t.others != nil {
		changed = t.others.read()
	}
	for _, f := range t.byDomain {
		changed = f.read() || changed
	}
	return changed
}

// of returns the roots that may vouch for a certificate.
func (t *trust) of(leaf *x509.Certificate) (*roots, error) {
	id, _, err := identity.Of(leaf)
	if err != nil {
		return nil, err
	}
	file := t.others
	if own := t.byDomain[id.TrustDomain().Name()]; own != nil {
		file = own
	}
	switch {
	case file != nil:
		return file.now.Load(), nil
	case id.IsZero():
		return nil, errors.New("the certificate has no SPIFFE ID, and no client CA vouches for other names")
	}
	return nil, fmt.Errorf("no client CA vouches for the trust domain of %s", id)
}

// rootsFor gives handshakes the roots that may vouch for a client.
func (t *trust) rootsFor(info *advancedtls.ConnectionInfo) (*advancedtls.RootCertificates, error) {
	leaf, err := x509.ParseCertificate(info.RawCerts[0])
	if err != nil {
		return nil, err
	}
	r, err := t.of(leaf)
	if err != nil {
		return nil, err
	}
	return &advancedtls.RootCertificates{TrustCerts: r.pool}, nil
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
	state, _ := verified(p)
	if len(state.PeerCertificates) == 0 {
		return errNotTrusted
	}
	r, err := t.of(state.PeerCertificates[0])
	if err != nil {
		return errNotTrusted
	}
	opts := x509.VerifyOptions{Roots: r.pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, c := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := state.PeerCertificates[0].Verify(opts); err != nil {
		return errNotTrusted
	}
	return nil
}

var errNotTrusted = refusal.New(refusal.Certificate, codes.Unauthenticated,
	"the client certificate is signed by none of the certificates in tls.clientCAFile or tls.clientCAs any more; connect with another")

// errExpired is the error of clients whose certificate has expired.
func errExpired(at time.Time) error {
	return refusal.New(refusal.Certificate, codes.Unauthenticated,
		"the client certificate has expired at %s; connect with a new one", at.UTC().Format(time.RFC3339))
}

// trusts returns why the certificate of a new stream's peer is not good any more.
func (s *Server) trusts(l *Listener, p *peer.Peer) error {
	if _, leaf := verified(p); leaf != nil && time.Now().After(leaf.NotAfter) {
		return errExpired(leaf.NotAfter)
	}
	if t := s.trust[l]; t != nil {
		return t.vouches(p)
	}
	return nil
}

// distrust ends the streams of a listener whose certificates are not trusted any more.
func (s *Server) distrust(l *Listener) {
	ended := 0
	for _, c := range s.connections() {
		if c.listener != l {
			continue
		}
		if err := s.trust[l].vouches(c.peer); err != nil {
			c.end(err)
			ended++
		}
	}
	s.log.Info("client CA file changed", "listener", l.Address, "ended", ended)
}
