package downstream

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/security/advancedtls"

	"meshrelay/internal/certfile"
	"meshrelay/internal/identity"
)

// certRefresh is the default of TLS.Refresh.
const certRefresh = 10 * time.Second

// TLS names the PEM files of a listener. The relay reads them again when they change. While a file is bad,
// the last good one stays in use.
type TLS struct {
	CertFile, KeyFile string
	// If ClientCAFile or ClientCAs is set, clients must have a certificate. An istiod as a client has none
	// (PROTOCOL S24). ClientCAFile verifies all identities except SPIFFE IDs of the trust domains in
	// ClientCAs.
	ClientCAFile string
	ClientCAs    []ClientCA
	// Refresh is the time between two checks of the files. Default: 10 s.
	Refresh time.Duration
}

// ClientCA names the roots that verify the SPIFFE IDs of one trust domain. They verify no other identities.
type ClientCA struct {
	TrustDomain, File string
}

// verifies reports whether clients must have a certificate.
func (t *TLS) verifies() bool { return t != nil && (t.ClientCAFile != "" || len(t.ClientCAs) > 0) }

// binds reports whether ClientCAs has a trust domain.
func (t *TLS) binds(domain spiffeid.TrustDomain) bool {
	return t != nil && slices.ContainsFunc(t.ClientCAs, func(ca ClientCA) bool { return ca.TrustDomain == domain.Name() })
}

// identify returns what the verified certificate of a peer proves: its SPIFFE ID, and its DNS names if
// ClientCAFile verified the certificate.
func (t *TLS) identify(p *peer.Peer) (who identity.Identity) {
	_, leaf := verified(p)
	if leaf == nil {
		return who
	}
	who.Expires = leaf.NotAfter
	id, names, err := identity.Of(leaf)
	if err != nil {
		return who
	}
	if !id.IsZero() {
		who.Names = []string{id.String()}
		who.TrustDomain, who.Namespace, who.ServiceAccount = identity.Workload(id)
	}
	if !t.binds(id.TrustDomain()) {
		who.Names = append(who.Names, names...)
	}
	return who
}

// refresh returns the time between two checks of the files.
func (t *TLS) refresh() time.Duration { return cmp.Or(t.Refresh, certRefresh) }

// credentials returns the transport credentials, and a function that frees them. tr may be nil.
func (t *TLS) credentials(tr *trust) (creds credentials.TransportCredentials, free func(), err error) {
	if t == nil {
		return insecure.NewCredentials(), func() {}, nil
	}
	if _, err := certfile.Pair(t.CertFile, t.KeyFile); err != nil {
		return nil, nil, fmt.Errorf("certificate: %w", err)
	}
	own, err := pemfile.NewProvider(pemfile.Options{CertFile: t.CertFile, KeyFile: t.KeyFile, RefreshDuration: t.refresh()})
	if err != nil {
		return nil, nil, fmt.Errorf("certificate %s, key %s: %w", t.CertFile, t.KeyFile, err)
	}
	opts := &advancedtls.Options{
		IdentityOptions:  advancedtls.IdentityCertificateOptions{IdentityProvider: own},
		VerificationType: advancedtls.SkipVerification,
		MinTLSVersion:    tls.VersionTLS12, MaxTLSVersion: tls.VersionTLS13,
	}
	if tr != nil {
		opts.RootOptions = advancedtls.RootCertificateOptions{GetRootCertificates: tr.rootsFor}
		opts.RequireClientCert = true
		opts.VerificationType = advancedtls.CertVerification
	}
	if creds, err = advancedtls.NewServerCreds(opts); err != nil {
		own.Close()
		return nil, nil, err
	}
	return creds, own.Close, nil
}

// watchedCreds calls refused for handshakes that fail because of the client's certificate or TLS version.
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

// isOfTheNetwork reports whether a handshake failed before the client's certificate was checked.
func isOfTheNetwork(err error) bool {
	var network net.Error
	var record tls.RecordHeaderError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || errors.As(err, &record)
}
