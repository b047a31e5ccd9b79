package downstream

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"meshrelay/internal/bearer"
)

// gate is a listener that takes certificates of a CA, tokens of an issuer, and tokens that an API server accepts.
type gate struct {
	t      *testing.T
	dir    string
	ca     *tls.Certificate
	roots  *x509.CertPool // that verify the relay
	key    *ecdsa.PrivateKey
	server *apiServer
	serial int64
}

// apiServer reviews tokens.
type apiServer struct {
	mu    sync.Mutex
	users map[string]string // by token
	down  bool
	asked atomic.Int64

	panics atomic.Bool
	hold   chan struct{} // tokens that begin with slow wait for it
}

func (a *apiServer) Review(_ context.Context, token string, audiences []string) (bearer.Review, error) {
	a.asked.Add(1)
	if a.panics.Load() {
		panic("no good")
	}
	if strings.HasPrefix(token, "slow") {
		<-a.hold
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return bearer.Review{}, errors.New("connection refused")
	}
	user, ok := a.users[token]
	return bearer.Review{Authenticated: ok, User: user, Audiences: audiences}, nil
}

func (*apiServer) Refresh(context.Context) error { return nil }
func (*apiServer) Close()                        {}

func (a *apiServer) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// authority makes a CA that may sign revocation lists.
func authority(t *testing.T, dir, name string) *tls.Certificate {
	t.Helper()
	return certificateOf(t, dir, name, nil, func(c *x509.Certificate) {
		c.KeyUsage |= x509.KeyUsageCRLSign
		c.URIs = nil
	})
}

// newGate returns a gate, and the option for a relay behind it. change may change the listener.
func newGate(t *testing.T, change func(*TLS)) (*gate, option) {
	t.Helper()
	dir := t.TempDir()
	g := &gate{
		t: t, dir: dir, ca: authority(t, dir, "ca"), roots: x509.NewCertPool(),
		key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), server: &apiServer{users: map[string]string{}},
	}
	certificate(t, dir, "relay.example", g.ca)
	g.roots.AddCert(leafOf(g.ca))
	g.trusts(g.ca)
	g.revokes()
	g.keys(map[string]crypto.PublicKey{"base": g.key.Public()})
	l := &TLS{
		CertFile: g.file("relay.example.crt"), KeyFile: g.file("relay.example.key"), ClientCAFile: g.file("clients.crt"), CRLFiles: []string{g.file("clients.crl")},
		Tokens: []bearer.Issuer{
			{Name: "corp", Issuer: "https://issuer.example", Audiences: []string{"relay"}, JWKSFile: g.file("jwks"), GroupsClaim: "groups"},
			{Name: "east", Audiences: []string{"relay"}, Reviewer: g.server, TrustDomain: "east.example"},
		},
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

// revokes writes the revocation list of the CA.
func (g *gate) revokes(certs ...*tls.Certificate) {
	g.t.Helper()
	g.revokesUntil(time.Now().Add(time.Hour), g.ca, certs...)
}

func (g *gate) revokesUntil(next time.Time, signer *tls.Certificate, certs ...*tls.Certificate) {
	g.t.Helper()
	g.serial++
	list := &x509.RevocationList{Number: big.NewInt(g.serial), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: next}
	for _, c := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: leafOf(c).SerialNumber, RevocationTime: time.Now()})
	}
	g.replace("clients.crl", must(x509.CreateRevocationList(rand.Reader, list, leafOf(signer), signer.PrivateKey.(crypto.Signer))))
}

// keys writes the keys of the issuer.
func (g *gate) keys(byID map[string]crypto.PublicKey) {
	g.t.Helper()
	var set jose.JSONWebKeySet
	for kid, key := range byID {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key, KeyID: kid})
	}
	g.replace("jwks", must(json.Marshal(set)))
}

// client returns a certificate of a CA, which has a name and no SPIFFE ID.
func (g *gate) client(ca *tls.Certificate, name string) *tls.Certificate {
	g.t.Helper()
	return certificateOf(g.t, g.t.TempDir(), name, ca, func(c *x509.Certificate) { c.URIs = nil })
}

// token returns a JWT of the issuer.
func (g *gate) token(subject string, valid time.Duration) string {
	return signed(g.key, "base", map[string]any{"iss": "https://issuer.example", "aud": "relay", "sub": subject, "exp": time.Now().Add(valid).Unix()})
}

func signed(key *ecdsa.PrivateKey, kid string, claims map[string]any) string {
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", kid)))
	return must(must(signer.Sign(must(json.Marshal(claims)))).CompactSerialize())
}

// authorization is a header as a client sends it.
type authorization string

func (a authorization) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": string(a)}, nil
}
func (authorization) RequireTransportSecurity() bool { return true }

// with returns the options of a client that shows a certificate, unless it is nil, and a header, unless it is empty.
func (g *gate) with(cert *tls.Certificate, header string) []grpc.DialOption {
	secure := &tls.Config{RootCAs: g.roots, ServerName: "relay.example"}
	if cert != nil {
		secure.Certificates = []tls.Certificate{*cert}
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(secure))}
	if header != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(authorization(header)))
	}
	return opts
}
