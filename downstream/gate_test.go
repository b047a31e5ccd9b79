package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// gate is a listener that takes certificates of a CA.
type gate struct {
	t     *testing.T
	dir   string
	ca    *tls.Certificate
	roots *x509.CertPool // that verify the relay
}

// authority makes a CA without a SPIFFE ID.
func authority(t *testing.T, dir, name string) *tls.Certificate {
	t.Helper()
	return certificateOf(t, dir, name, nil, func(c *x509.Certificate) { c.URIs = nil })
}

// newGate returns a gate, and the option for a relay behind it. change may change the listener.
func newGate(t *testing.T, change func(*TLS)) (*gate, option) {
	t.Helper()
	dir := t.TempDir()
	g := &gate{t: t, dir: dir, ca: authority(t, dir, "ca"), roots: x509.NewCertPool()}
	certificate(t, dir, "relay.example", g.ca)
	g.roots.AddCert(leafOf(g.ca))
	g.trusts(g.ca)
	l := &TLS{
		CertFile: g.file("relay.example.crt"), KeyFile: g.file("relay.example.key"), ClientCAs: []ClientCA{{File: g.file("clients.crt")}},
		Refresh: 10 * time.Millisecond,
	}
	if change != nil {
		change(l)
	}
	return g, func(c *Config, _ *Deps) { c.Listeners[0].TLS = l }
}

func leafOf(c *tls.Certificate) *x509.Certificate {
	return must(x509.ParseCertificate(c.Certificate[0]))
}

func (g *gate) file(name string) string { return filepath.Join(g.dir, name) }

// replace replaces a file as a whole.
func (g *gate) replace(name string, content []byte) {
	g.t.Helper()
	if err := errors.Join(os.WriteFile(g.file(name+".next"), content, 0o600), os.Rename(g.file(name+".next"), g.file(name))); err != nil {
		g.t.Fatal(err)
	}
}

// trusts writes the file of the client CAs.
func (g *gate) trusts(cas ...*tls.Certificate) {
	g.t.Helper()
	var all []byte
	for _, ca := range cas {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]})...)
	}
	g.replace("clients.crt", all)
}

// client returns a certificate of a CA, which has a name and no SPIFFE ID.
func (g *gate) client(ca *tls.Certificate, name string) *tls.Certificate {
	g.t.Helper()
	return certificateOf(g.t, g.t.TempDir(), name, ca, func(c *x509.Certificate) { c.URIs = nil })
}

// with returns the option of a client that shows a certificate, unless it is nil.
func (g *gate) with(cert *tls.Certificate) grpc.DialOption {
	secure := &tls.Config{RootCAs: g.roots, ServerName: "relay.example"}
	if cert != nil {
		secure.Certificates = []tls.Certificate{*cert}
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(secure))
}
