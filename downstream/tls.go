package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/admit"
	"meshrelay/internal/identity"
)

// certRefresh is the default of TLS.Refresh.
const certRefresh = 10 * time.Second

// TLS tells how a listener proves who it is, and whom it lets in. The relay reads the files again when they change.
// While a file is bad, the last good one stays in use.
type TLS struct {
	CertFile, KeyFile string
	// With ClientCAs, clients must have a certificate, unless AllowAnonymous is set. An istiod as a client has none
	// (PROTOCOL S24).
	ClientCAs []ClientCA
	// AllowAnonymous lets clients in that have no certificate. Without client CAs, it is always so.
	AllowAnonymous bool
	// Refresh is the time between two checks of the files. Default: 10 s.
	Refresh time.Duration
}

// ClientCA names the roots that verify the SPIFFE IDs of one trust domain, and no other identities. Without a trust
// domain they verify all identities except SPIFFE IDs of those of others.
type ClientCA struct {
	TrustDomain, File string
}

// verifies reports whether the listener verifies client certificates, so that clients can prove who they are.
func (t *TLS) verifies() bool { return t != nil && len(t.ClientCAs) > 0 }

// binds reports whether roots of their own verify the SPIFFE IDs of a trust domain.
func (t *TLS) binds(domain spiffeid.TrustDomain) bool {
	return t != nil && !domain.IsZero() && slices.ContainsFunc(t.ClientCAs, func(ca ClientCA) bool { return ca.TrustDomain == domain.Name() })
}

// identify returns what the verified certificate of a peer proves: its SPIFFE ID, and its DNS names if roots
// without a trust domain verified the certificate.
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
		who.Namespace, who.ServiceAccount = identity.Workload(id)
	}
	if !t.binds(id.TrustDomain()) {
		who.Names = append(who.Names, names...)
	}
	return who
}

// proves returns the name of what a handshake has proven, empty for nothing.
func (t *TLS) proves(info credentials.AuthInfo) string {
	if who := t.identify(&peer.Peer{AuthInfo: info}); !who.IsZero() {
		return peerKey(who, nil)
	}
	return ""
}

// verified returns the TLS state of a peer, and its certificate if that was verified.
func verified(p *peer.Peer) (state tls.ConnectionState, leaf *x509.Certificate) {
	auth := p.AuthInfo
	if in, ok := auth.(admit.Info); ok {
		auth = in.AuthInfo
	}
	info, _ := auth.(credentials.TLSInfo)
	if chains := info.State.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 {
		leaf = chains[0][0]
	}
	return info.State, leaf
}

// credentials returns the transport credentials of a listener.
func (a *authenticator) credentials() credentials.TransportCredentials {
	if a == nil {
		return insecure.NewCredentials()
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			own := a.own.Get()
			return &own, nil
		},
		// A session that is resumed would bring the certificate of before.
		SessionTicketsDisabled: true,
	}
	if a.trust != nil {
		// VerifyConnection verifies: the roots depend on the certificate.
		if cfg.ClientAuth = tls.RequireAnyClientCert; a.tls.AllowAnonymous {
			cfg.ClientAuth = tls.RequestClientCert
		}
		cfg.VerifyConnection = func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil // ClientAuth lets it pass
			}
			_, err := a.trust.verify(state.PeerCertificates)
			return err
		}
	}
	return credentials.NewTLS(cfg)
}

// watchedCreds calls refused for handshakes that fail because of the client's certificate or TLS version. With
// certified, it marks the certificates of clients as verified.
type watchedCreds struct {
	credentials.TransportCredentials
	certified bool
	refused   func(from net.Addr, err error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (w watchedCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := w.TransportCredentials.ServerHandshake(conn)
	if err != nil && !isOfTheNetwork(err) {
		w.refused(conn.RemoteAddr(), err)
	}
	if seen, ok := info.(credentials.TLSInfo); ok && err == nil && w.certified && len(seen.State.PeerCertificates) > 0 {
		seen.State.VerifiedChains = [][]*x509.Certificate{seen.State.PeerCertificates} // VerifyConnection has verified them
		info = seen
	}
	return secured, info, err
}

// isOfTheNetwork reports whether a handshake failed before the client's certificate was checked.
func isOfTheNetwork(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(net.Error)) || errors.As(err, new(tls.RecordHeaderError))
}
