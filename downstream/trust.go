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

// trust has the present roots of a listener that requires client certificates.
type trust struct {
	refresh  time.Duration
	byDomain map[string]*rootFile // by trust domain
	others   *rootFile            // nil: there are none
}

// rootFile is a file of root certificates. Any goroutine may call its methods.
type rootFile struct {
	path string
	now  atomic.Pointer[roots]
}

// roots are the certificates of one reading of a file. They are immutable.
type roots struct {
	sum  [sha256.Size]byte // of the file
	pool *x509.CertPool
}

// newTrust returns the trust of a listener, nil if the listener does not require client certificates.
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

// read reads the file, and reports whether its roots have changed. While the file is bad, the last good roots
// stay.
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

// read reads every file, and reports whether any roots have changed.
func (t *trust) read() (changed bool) {
	if t.others != nil {
		changed = t.others.read()
	}
	for _, f := range t.byDomain {
		changed = f.read() || changed
	}
	return changed
}

// of returns the roots that verify a certificate.
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

// rootsFor returns the roots that verify the client of a handshake.
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

// watch calls changed after each change of the roots, until ctx ends.
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

// vouches returns an error if the present roots do not verify a peer's certificate.
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

// errExpired is the error for a client whose certificate has expired.
func errExpired(at time.Time) error {
	return refusal.New(refusal.Certificate, codes.Unauthenticated,
		"the client certificate has expired at %s; connect with a new one", at.UTC().Format(time.RFC3339))
}

// trusts returns an error if the certificate of a new stream's peer has expired, or is no longer trusted.
func (s *Server) trusts(l *Listener, p *peer.Peer) error {
	if _, leaf := verified(p); leaf != nil && time.Now().After(leaf.NotAfter) {
		return errExpired(leaf.NotAfter)
	}
	if t := s.trust[l]; t != nil {
		return t.vouches(p)
	}
	return nil
}

// distrust ends the streams of a listener whose certificates are no longer trusted.
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
