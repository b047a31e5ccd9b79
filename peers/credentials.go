// Package peers lets the replicas of a relay ask each other for documents, over mTLS. Documents are read only.
//
// The package owns who is a replica, and what an answer may cost. It must not know what documents have.
package peers

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"meshrelay/internal/certfile"
	"meshrelay/internal/identity"
	"meshrelay/internal/lastgood"
)

// Credentials prove to replicas who this one is, and verify others. They have the last good content of their files.
// Any goroutine may call their methods.
type Credentials struct {
	own      *lastgood.File[tls.Certificate]
	roots    *lastgood.File[*x509.CertPool]
	patterns []identity.Pattern
}

// NewCredentials reads a certificate with its key, and the roots of the certificates of all replicas. identities are
// patterns, of which one must match a replica. Without any, a replica must have an identity of the own certificate.
func NewCredentials(certFile, keyFile, caFile string, identities []string) (*Credentials, error) {
	c := &Credentials{}
	for _, text := range identities {
		p, err := identity.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("replicas.peers.identities: %w", err)
		}
		c.patterns = append(c.patterns, p)
	}
	var err error
	if c.own, err = lastgood.Open(certfile.Renewing(certFile, keyFile), certFile, keyFile); err != nil {
		return nil, fmt.Errorf("replicas.peers.certFile: %w", err)
	}
	if c.roots, err = lastgood.Open(func() (*x509.CertPool, error) { return certfile.Roots(caFile) }, caFile); err != nil {
		return nil, fmt.Errorf("replicas.peers.caFile: %w", err)
	}
	if len(c.patterns) == 0 && len(namesOf(c.own.Get().Leaf)) == 0 {
		return nil, fmt.Errorf("replicas.peers.identities: %s has neither a SPIFFE ID nor a DNS name: name the identities of replicas, or issue it with one", certFile)
	}
	return c, nil
}

// Read reads the files again. After an error the former content of the bad files stays.
func (c *Credentials) Read() error {
	_, errOwn := c.own.Read()
	_, errRoots := c.roots.Read()
	return cmp.Or(errOwn, errRoots)
}

// config returns the settings for handshakes with others whose certificates are for a usage.
func (c *Credentials) config(usage x509.ExtKeyUsage) *tls.Config {
	return &tls.Config{
		// Replicas are known by address, which no certificate has, and the roots change: VerifyConnection verifies the
		// chain and the identity.
		InsecureSkipVerify: true, //nolint:gosec // see above
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"http/1.1"},
		ClientAuth:         tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			own := c.own.Get()
			return &own, nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			own := c.own.Get()
			return &own, nil
		},
		VerifyConnection:       func(state tls.ConnectionState) error { return c.verify(state.PeerCertificates, usage) },
		SessionTicketsDisabled: true, // a session that is resumed would bring the certificate of before
	}
}

// verify returns why the certificates of a connection are not those of a replica. The first one is its own.
func (c *Credentials) verify(certs []*x509.Certificate, usage x509.ExtKeyUsage) error {
	if len(certs) == 0 {
		return errors.New("it shows no certificate")
	}
	opts := x509.VerifyOptions{Roots: c.roots.Get(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, cert := range certs[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := certs[0].Verify(opts); err != nil {
		return fmt.Errorf("its certificate is not valid for replicas.peers.caFile: %w", err)
	}
	names := namesOf(certs[0])
	known := func(name string) bool {
		return slices.ContainsFunc(c.patterns, func(p identity.Pattern) bool { return p.Matches(name) })
	}
	if len(c.patterns) == 0 {
		own := namesOf(c.own.Get().Leaf)
		known = func(name string) bool { return slices.Contains(own, name) }
	}
	if !slices.ContainsFunc(names, known) {
		return fmt.Errorf("its certificate has the identities %.300q, and none of them is in replicas.peers.identities, or in the own certificate where that is empty", names)
	}
	return nil
}

// namesOf returns the identities of a certificate.
func namesOf(cert *x509.Certificate) []string {
	id, names, err := identity.Of(cert)
	if err != nil {
		return nil
	}
	if !id.IsZero() {
		names = append(names, id.String())
	}
	return names
}
