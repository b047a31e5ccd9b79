package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/security/advancedtls"

	"meshrelay/internal/identity"
)

// certRefresh is how often certificate files are looked at, unless told otherwise.
const certRefresh = 10 * time.Second

// TLS are the files of a listener, in PEM form. They are read again when they
// change; a bad file does not replace a good one.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile and ClientCAs, when one of them is set, make a client certificate
	// mandatory. An istiod as client has none to show (PROTOCOL S24).
	//
	// Roots in ClientCAFile vouch for every identity, but for SPIFFE IDs of the trust domains
	// in ClientCAs.
	ClientCAFile string
	ClientCAs    []ClientCA
	// Refresh is how often the files are looked at. Default: 10 s.
	Refresh time.Duration
}

// ClientCA are roots that vouch for the SPIFFE IDs of one trust domain and nothing else.
type ClientCA struct {
	TrustDomain, File string
}

// verifies reports whether clients show a certificate.
func (t *TLS) verifies() bool { return t != nil && (t.ClientCAFile != "" || len(t.ClientCAs) > 0) }

// binds reports whether a trust domain has roots of its own.
func (t *TLS) binds(domain spiffeid.TrustDomain) bool {
	if t == nil {
		return false
	}
	for _, ca := range t.ClientCAs {
		if ca.TrustDomain == domain.Name() {
			return true
		}
	}
	return false
}

// identitiesOf returns the identities in the certificate of a peer, if the listener has
// verified it: a SPIFFE ID, and DNS names if the roots vouch for them.
func (t *TLS) identitiesOf(p *peer.Peer) (out []string) {
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	id, names, err := identity.Of(info.State.VerifiedChains[0][0])
	switch {
	case err != nil:
		return nil
	case id.IsZero():
		return names
	case t.binds(id.TrustDomain()):
		return []string{id.String()}
	}
	return append([]string{id.String()}, names...)
}

// clientRoots are the roots that vouch for clients.
type clientRoots struct {
	byDomain map[string]certprovider.Provider
	others   certprovider.Provider // nil: there are none
}

// of returns the roots that may vouch for a certificate.
func (c *clientRoots) of(leaf *x509.Certificate) (*x509.CertPool, error) {
	id, _, err := identity.Of(leaf)
	if err != nil {
		return nil, err
	}
	provider := c.others
	if own := c.byDomain[id.TrustDomain().Name()]; own != nil {
		provider = own
	}
	if provider == nil && id.IsZero() {
		return nil, errors.New("the certificate has no SPIFFE ID, and no client CA vouches for other names")
	}
	if provider == nil {
		return nil, fmt.Errorf("no client CA vouches for the trust domain of %s", id)
	}
	material, err := provider.KeyMaterial(context.Background())
	if err != nil {
		return nil, err
	}
	if material.Roots == nil {
		return nil, errors.New("there are no roots") // those of the host would be used
	}
	return material.Roots, nil
}

// get implements the callback of advancedtls.
func (c *clientRoots) get(info *advancedtls.ConnectionInfo) (*advancedtls.RootCertificates, error) {
	leaf, err := x509.ParseCertificate(info.RawCerts[0])
	if err != nil {
		return nil, err
	}
	pool, err := c.of(leaf)
	if err != nil {
		return nil, err
	}
	return &advancedtls.RootCertificates{TrustCerts: pool}, nil
}

// providers reads PEM files again when they change.
type providers struct {
	refresh time.Duration
	open    []certprovider.Provider
}

func (ps *providers) add(o pemfile.Options) (certprovider.Provider, error) {
	o.RefreshDuration = ps.refresh
	p, err := pemfile.NewProvider(o)
	if err == nil {
		ps.open = append(ps.open, p)
	}
	return p, err
}

// roots returns the roots in a file, which must have some.
func (ps *providers) roots(file string) (certprovider.Provider, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client CA %s: there is no certificate in it", file)
	}
	p, err := ps.add(pemfile.Options{RootFile: file})
	if err != nil {
		return nil, fmt.Errorf("client CA %s: %w", file, err)
	}
	return p, nil
}

func (ps *providers) close() {
	for _, p := range ps.open {
		p.Close()
	}
}

// credentials returns the listener's transport credentials and what frees them.
func (t *TLS) credentials() (creds credentials.TransportCredentials, free func(), err error) {
	if t == nil {
		return insecure.NewCredentials(), func() {}, nil
	}
	if _, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
		return nil, nil, fmt.Errorf("certificate %s, key %s: %w", t.CertFile, t.KeyFile, err)
	}
	files := &providers{refresh: t.Refresh}
	if files.refresh == 0 {
		files.refresh = certRefresh
	}
	defer func() {
		if err != nil {
			files.close()
		}
	}()
	own, err := files.add(pemfile.Options{CertFile: t.CertFile, KeyFile: t.KeyFile})
	if err != nil {
		return nil, nil, fmt.Errorf("certificate %s, key %s: %w", t.CertFile, t.KeyFile, err)
	}
	opts := &advancedtls.Options{
		IdentityOptions:  advancedtls.IdentityCertificateOptions{IdentityProvider: own},
		VerificationType: advancedtls.SkipVerification,
		MinTLSVersion:    tls.VersionTLS12, MaxTLSVersion: tls.VersionTLS13,
	}
	if t.verifies() {
		roots := &clientRoots{byDomain: map[string]certprovider.Provider{}}
		if t.ClientCAFile != "" {
			if roots.others, err = files.roots(t.ClientCAFile); err != nil {
				return nil, nil, err
			}
		}
		for _, ca := range t.ClientCAs {
			if roots.byDomain[ca.TrustDomain], err = files.roots(ca.File); err != nil {
				return nil, nil, err
			}
		}
		opts.RootOptions = advancedtls.RootCertificateOptions{GetRootCertificates: roots.get}
		opts.RequireClientCert = true
		opts.VerificationType = advancedtls.CertVerification
	}
	if creds, err = advancedtls.NewServerCreds(opts); err != nil {
		return nil, nil, err
	}
	return creds, files.close, nil
}

// watchedCreds reports the handshakes that fail because of what the client shows.
type watchedCreds struct {
	credentials.TransportCredentials
	refused func(from net.Addr, err error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (w watchedCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := w.TransportCredentials.ServerHandshake(conn)
	if err != nil && !isOfTheNetwork(err) {
		w.refused(conn.RemoteAddr(), err)
	}
	return secured, info, err
}

// isOfTheNetwork reports whether a handshake failed before the client was judged: the
// connection ended, or it was no TLS.
func isOfTheNetwork(err error) bool {
	var network net.Error
	var record tls.RecordHeaderError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || errors.As(err, &record)
}
