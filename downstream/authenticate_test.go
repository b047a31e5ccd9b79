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
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	jose "github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
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

// TestAClientIsItsCertificateElseItsTokenElseNobody: a token that is shown and bad is refused also where nobody need
// show one.
func TestAClientIsItsCertificateElseItsTokenElseNobody(t *testing.T) {
	for _, anonymous := range []bool{false, true} {
		t.Run(fmt.Sprintf("anonymous=%t", anonymous), func(t *testing.T) {
			g, set := newGate(t, func(l *TLS) { l.AllowAnonymous = anonymous })
			log := &lockedLog{}
			r := startRelay(t, true, set, logTo(log))
			g.server.set(func() { g.server.users["opaque"] = "system:serviceaccount:a:b" })
			cert := g.client(g.ca, "client.example")
			foreign := g.client(authority(t, t.TempDir(), "evil"), "client.example")
			good := g.token("alice", time.Hour)
			for name, tc := range map[string]struct {
				opts  []grpc.DialOption
				who   string // empty: nobody; ! and a text: refused with it
				code  codes.Code
				token string
			}{
				"a certificate":           {g.with(cert, ""), "dns:client.example", 0, ""},
				"a certificate and more":  {g.with(cert, "Bearer bad"), "dns:client.example", 0, ""},
				"a JWT":                   {g.with(nil, "Bearer "+good), "jwt:corp/alice", 0, good},
				"a JWT, in small letters": {g.with(nil, "bearer "+good), "jwt:corp/alice", 0, good},
				"a reviewed token":        {g.with(nil, "Bearer opaque"), "spiffe://east.example/ns/a/sa/b jwt:east/system:serviceaccount:a:b", 0, ""},
				"a bad token":             {g.with(nil, "Bearer bad-and-secret"), "!a token that is no JWT: the API server of east does not accept it; want ", codes.Unauthenticated, "bad-and-secret"},
				"a foreign audience":      {g.with(nil, "Bearer "+signed(g.key, "base", map[string]any{"iss": "https://issuer.example", "aud": "b", "sub": "a", "exp": 1e10})), `!a JWT of issuer "https://issuer.example" for audience "b"`, codes.Unauthenticated, ""},
				"another scheme":          {g.with(nil, "Basic YTpi"), "!want one, with Bearer and ", codes.Unauthenticated, "YTpi"},
				"two tokens":              {append(g.with(nil, "Bearer "+good), grpc.WithStreamInterceptor(twice)), "!2 headers authorization", codes.Unauthenticated, good},
				"a certificate of nobody": {g.with(foreign, "Bearer "+good), "!", codes.Unavailable, good},
				"nothing":                 {g.with(nil, ""), map[bool]string{true: "", false: "!neither a certificate nor a token; want a certificate of the client CAs, or a JWT"}[anonymous], codes.Unauthenticated, ""},
			} {
				s, err := openStream(t, r, tc.opts...)
				want, refused := strings.CutPrefix(tc.who, "!")
				if refused {
					if err == nil {
						err = s.end()
					}
					if status.Code(err) != tc.code || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v, want %s", name, err, tc.who)
					}
				} else {
					s.next()
					var got string
					eventually(t, name+" is connected", func() bool { cs := r.server.connections(); return len(cs) == 1 })
					got = strings.Join(r.server.connections()[0].who.Names, " ")
					if got != want {
						t.Errorf("%s is %q, want %q", name, got, want)
					}
					s.cancel()
					eventually(t, name+" is gone", func() bool { return len(r.server.connections()) == 0 })
				}
				if text := fmt.Sprint(log, err); tc.token != "" && strings.Contains(text, tc.token) {
					t.Errorf("%s: the token is told: %s", name, text)
				}
			}
			wantRefused(t, r, refusal.Token, 4)
			if !anonymous {
				wantRefused(t, r, refusal.Anonymous, 1)
			}
		})
	}
}

// twice sends one more token.
func twice(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return next(withAuthorization(ctx, "Bearer another"), d, cc, method, opts...)
}

// logTo is an option that logs everything.
func logTo(log *lockedLog) option {
	return func(_ *Config, d *Deps) { d.Logger = testLogger(log) }
}

// keeper is a delta client that keeps what it is sent.
type keeper struct {
	mu     sync.Mutex
	index  map[string]string // versions by name
	answer bool              // has come
	ended  chan struct{}
	err    error // set before ended is closed
	cancel context.CancelFunc
}

// follow connects a client that has what index has.
func (r *relay) follow(index map[string]string, opts ...grpc.DialOption) *keeper {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	f := &keeper{index: maps.Clone(index), ended: make(chan struct{}), cancel: cancel}
	if f.index == nil {
		f.index = map[string]string{}
	}
	stream, err := r.dial(opts...).DeltaAggregatedResources(ctx)
	if err != nil {
		cancel()
		f.err = err
		close(f.ended)
		return f
	}
	first := subscribeDelta(seV1)
	first.InitialResourceVersions = maps.Clone(index)
	_ = stream.Send(first) // Recv returns why it fails
	go func() {
		defer close(f.ended)
		for {
			m, err := stream.Recv()
			if err != nil {
				f.err = err
				return
			}
			f.mu.Lock()
			f.answer = true
			for _, res := range m.Resources {
				f.index[res.Name] = res.Version
			}
			for _, name := range m.RemovedResources {
				delete(f.index, name)
			}
			f.mu.Unlock()
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: m.Nonce})
		}
	}()
	r.t.Cleanup(func() { cancel(); <-f.ended })
	return f
}

func (f *keeper) has() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.index)
}

// in waits until the stream has its first response, or has ended. It reports whether it is let in.
func (f *keeper) in() bool {
	for until := time.Now().Add(patience); time.Now().Before(until); {
		select {
		case <-f.ended:
			return false
		case <-time.After(time.Millisecond):
			f.mu.Lock()
			answer := f.answer
			f.mu.Unlock()
			if answer {
				return true
			}
		}
	}
	return false
}

// wantEnd waits until the stream ends with a status.
func (f *keeper) wantEnd(t *testing.T, text string) {
	t.Helper()
	select {
	case <-f.ended:
		wantCode(t, f.err, codes.Unauthenticated)
		if !strings.Contains(f.err.Error(), text) {
			t.Errorf("the client is told %q, want %s", f.err, text)
		}
	case <-time.After(patience):
		t.Fatalf("the stream does not end: want %s", text)
	}
}

// TestAStreamEndsWithWhatItHasProven: it is told why, streams of others stay, and nothing is lost when it comes back
// with something else.
func TestAStreamEndsWithWhatItHasProven(t *testing.T) {
	for name, tc := range map[string]struct {
		// show returns what the client shows, and what takes it back.
		show func(g *gate) (opts []grpc.DialOption, takeBack func())
		want string
	}{
		"a certificate that is revoked": {func(g *gate) ([]grpc.DialOption, func()) {
			cert := g.client(g.ca, "bad.example")
			return g.with(cert, ""), func() { g.revokes(cert) }
		}, "was revoked at"},
		"a certificate of a CA that is revoked": {func(g *gate) ([]grpc.DialOption, func()) {
			below := certificateOf(g.t, g.t.TempDir(), "below", g.ca, func(c *x509.Certificate) { c.IsCA, c.URIs = true, nil })
			cert := g.client(below, "bad.example")
			cert.Certificate = append(cert.Certificate, below.Certificate[0])
			return g.with(cert, ""), func() { g.revokes(below) }
		}, "was revoked at"},
		"a certificate of a CA that leaves": {func(g *gate) ([]grpc.DialOption, func()) {
			other := authority(g.t, g.t.TempDir(), "other")
			g.trusts(g.ca, other)
			return g.with(g.client(other, "bad.example"), ""), func() { g.trusts(g.ca) }
		}, "signed by none of the certificates"},
		"a token that expires": {func(g *gate) ([]grpc.DialOption, func()) {
			return g.with(nil, "Bearer "+g.token("bob", 3*time.Second)), func() {}
		}, "the token of the client has expired at"},
		"a token whose key leaves": {func(g *gate) ([]grpc.DialOption, func()) {
			key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
			g.keys(map[string]crypto.PublicKey{"base": g.key.Public(), "bad": key.Public()})
			raw := signed(key, "bad", map[string]any{"iss": "https://issuer.example", "aud": "relay", "sub": "bob", "exp": 1e10})
			return g.with(nil, "Bearer "+raw), func() { g.keys(map[string]crypto.PublicKey{"base": g.key.Public()}) }
		}, "the issuer has no key with the kid of the token"},
		"a token that the API server takes back": {func(g *gate) ([]grpc.DialOption, func()) {
			g.server.set(func() { g.server.users["bad"] = "bob" })
			return g.with(nil, "Bearer bad"), func() { g.server.set(func() { delete(g.server.users, "bad") }) }
		}, "the API server of east does not accept it"},
		"a token that is another user's": {func(g *gate) ([]grpc.DialOption, func()) {
			g.server.set(func() { g.server.users["bad"] = "bob" })
			return g.with(nil, "Bearer bad"), func() { g.server.set(func() { g.server.users["bad"] = "eve" }) }
		}, "proves something else than before"},
	} {
		t.Run(name, func(t *testing.T) {
			g, set := newGate(t, nil)
			r := startRelay(t, true, set)
			r.put(se("shop", "a", "1"), se("shop", "b", "1"))
			g.server.set(func() { g.server.users["good"] = "alice" })
			stay := []*keeper{
				r.follow(nil, g.with(g.client(g.ca, "good.example"), "")...), r.follow(nil, g.with(nil, "Bearer "+g.token("alice", time.Hour))...), r.follow(nil, g.with(nil, "Bearer good")...),
			}
			opts, takeBack := tc.show(g)
			var leaves *keeper
			eventually(t, "the client is let in", func() bool { // once the files are read
				leaves = r.follow(nil, opts...)
				return leaves.in()
			})
			takeBack()
			leaves.wantEnd(t, tc.want)
			if again := r.follow(nil, opts...); again.in() != (name == "a token that is another user's") {
				t.Error("the client comes back with what it has shown")
			} else {
				again.cancel()
			}
			r.put(se("shop", "a", "2"), se("shop", "c", "1"))
			r.remove(se("shop", "b", "1"))
			back := r.follow(leaves.has(), g.with(nil, "Bearer "+g.token("alice", time.Hour))...)
			for _, f := range append(stay, back) {
				eventually(t, "the client has everything", func() bool {
					has := f.has()
					return len(has) == 2 && has["shop/a"] == stay[0].has()["shop/a"] && has["shop/c"] != ""
				})
				select {
				case <-f.ended:
					t.Errorf("the stream of another client has ended: %v", f.err)
				default:
				}
			}
		})
	}
}

// TestAHeldClientIsJudgedAgainBeforeItsFirstResponse: by the files as they are when the hold ends, not as the relay
// read them last.
func TestAHeldClientIsJudgedAgainBeforeItsFirstResponse(t *testing.T) {
	g, set := newGate(t, func(l *TLS) { l.Refresh = time.Hour })
	r := startRelay(t, false, set)
	bad := g.client(g.ca, "bad.example")
	leaves, stays := r.follow(nil, g.with(bad, "")...), r.follow(nil, g.with(g.client(g.ca, "good.example"), "")...)
	eventually(t, "the clients are held", func() bool { return len(r.server.Clients()) == 2 })
	r.store.Put(se("shop", "a", "1"))
	g.revokes(bad)
	r.store.SetSynced()
	leaves.wantEnd(t, "was revoked at")
	if len(leaves.has()) != 0 {
		t.Error("a revoked client has got resources")
	}
	eventually(t, "the other client is served", func() bool { return len(stays.has()) == 1 })
}

// TestAStreamIsJudgedBeforeItsNextResponse: after a change of what is trusted, also before the stream's turn has come.
func TestAStreamIsJudgedBeforeItsNextResponse(t *testing.T) {
	g, set := newGate(t, func(l *TLS) { l.Refresh = time.Hour })
	r := startRelay(t, true, set)
	bad := g.client(g.ca, "bad.example")
	f := r.follow(nil, g.with(bad, "")...)
	eventually(t, "the client is connected", func() bool { return len(r.server.Clients()) == 1 })
	a := r.server.auth[&r.server.cfg.Listeners[0]]
	g.revokes(bad)
	if !a.trust.read(func(what, _ string, err error) { t.Error(what, err) }) {
		t.Fatal("the list has not changed")
	}
	a.changes.Add(1) // as check does, which then judges the streams one by one
	r.put(se("shop", "a", "1"))
	f.wantEnd(t, "was revoked at")
	if len(f.has()) != 0 {
		t.Error("a revoked client has got resources")
	}
}

// TestABadFileKeepsWhatIsTrusted: it is counted, and logged once when it begins. A list that is out of date counts.
func TestABadFileKeepsWhatIsTrusted(t *testing.T) {
	g, set := newGate(t, nil)
	log := &lockedLog{}
	r := startRelay(t, true, set, logTo(log))
	bad := g.client(g.ca, "bad.example")
	g.revokesUntil(time.Now().Add(-time.Minute), g.ca, bad)
	counted := func(what string) bool {
		return testutil.ToFloat64(r.server.metrics.credentials.WithLabelValues(what)) > 3
	}
	eventually(t, "the old list is counted", func() bool { return counted(badCRL) })
	refused := func() {
		t.Helper()
		f := r.follow(nil, g.with(bad, "")...)
		if f.in() || status.Code(f.err) != codes.Unavailable { // the handshake fails
			t.Errorf("a revoked certificate: %v", f.err)
		}
	}
	refused()
	for name, what := range map[string]string{"clients.crl": badCRL, "clients.crt": badCA, "jwks": badToken, "relay.example.crt": badCertificate} {
		g.replace(name, []byte("nothing"))
		eventually(t, name+" is counted", func() bool { return counted(what) })
	}
	refused()
	for _, opts := range [][]grpc.DialOption{g.with(g.client(g.ca, "good.example"), ""), g.with(nil, "Bearer "+g.token("alice", time.Hour))} {
		s := r.sotw(opts...)
		s.send(subscribe(seV1))
		s.next()
	}
	for what, times := range map[string]int{badCRL: 2, badCA: 1, badToken: 1, badCertificate: 1} {
		logged := func() int {
			return strings.Count(log.String(), "the last good ones are used\" listener=127.0.0.1:0 what="+what)
		}
		eventually(t, what+" is logged", func() bool { return logged() >= times })
		if got := logged(); got != times {
			t.Errorf("%s is logged %d times, want %d", what, got, times)
		}
	}
}

// TestAListCountsWhateverTheKeyUsageOfItsCA: many CAs are made for certificates only, and openssl signs their lists.
func TestAListCountsWhateverTheKeyUsageOfItsCA(t *testing.T) {
	g, _ := newGate(t, nil)
	ca := certificateOf(t, g.dir, "ca", nil, func(c *x509.Certificate) { c.URIs = nil })
	cert := g.client(ca, "client.example")
	signer := leafOf(ca)
	signer.KeyUsage |= x509.KeyUsageCRLSign
	list := &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: leafOf(cert).SerialNumber, RevocationTime: time.Now()}},
	}
	g.trusts(ca)
	g.replace("clients.crl", must(x509.CreateRevocationList(rand.Reader, list, signer, ca.PrivateKey.(crypto.Signer))))
	tr := must(newTrust(&TLS{ClientCAFile: g.file("clients.crt"), CRLFiles: []string{g.file("clients.crl")}}, nil))
	if _, err := tr.verify([]*x509.Certificate{leafOf(cert)}); !errors.As(err, new(*revokedError)) {
		t.Errorf("a revoked certificate: %v", err)
	}
}

// TestAListOfAnotherCARevokesNothing: a serial number alone does not tell a certificate.
func TestAListOfAnotherCARevokesNothing(t *testing.T) {
	g, _ := newGate(t, nil)
	cert := g.client(g.ca, "client.example")
	imposter := authority(t, t.TempDir(), "ca") // of the same name
	for name, signer := range map[string]*tls.Certificate{"another CA": authority(t, t.TempDir(), "other"), "a CA of the same name": imposter} {
		g.revokesUntil(time.Now().Add(time.Hour), signer, cert)
		tr := must(newTrust(&TLS{ClientCAFile: g.file("clients.crt"), CRLFiles: []string{g.file("clients.crl")}}, nil))
		if _, err := tr.verify([]*x509.Certificate{leafOf(cert)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.revokes(cert)
	tr := must(newTrust(&TLS{ClientCAFile: g.file("clients.crt"), CRLFiles: []string{g.file("clients.crl")}}, nil))
	for range 2 { // the signature is verified once
		if _, err := tr.verify([]*x509.Certificate{leafOf(cert)}); err == nil {
			t.Error("the list of its CA does not revoke the certificate")
		}
	}
}

// TestAnAPIServerThatIsDownEndsNoStream: new streams are told to try again.
func TestAnAPIServerThatIsDownEndsNoStream(t *testing.T) {
	g, set := newGate(t, nil)
	r := startRelay(t, true, set)
	g.server.set(func() { g.server.users["a"], g.server.users["b"] = "alice", "bob" })
	f := r.follow(nil, g.with(nil, "Bearer a")...)
	eventually(t, "the client is connected", func() bool { return len(r.server.Clients()) == 1 })
	g.server.set(func() { g.server.down = true })
	asked := g.server.asked.Load()
	eventually(t, "the token is reviewed again", func() bool { return g.server.asked.Load() > asked+5 })
	s := r.sotw(g.with(nil, "Bearer b")...)
	wantCode(t, s.end(), codes.Unavailable)
	r.put(se("shop", "a", "1"))
	eventually(t, "the client is served", func() bool { return len(f.has()) == 1 })
}

// TestTokensOfOneAddressLeaveReviewsForOthers: however many it sends at once.
func TestTokensOfOneAddressLeaveReviewsForOthers(t *testing.T) {
	g, set := newGate(t, nil)
	r := startRelay(t, true, set)
	g.server.set(func() { g.server.users["good"] = "alice" })
	g.server.hold = make(chan struct{})
	defer close(g.server.hold)
	conn := r.dial(append(g.with(nil, ""), from("127.0.0.2"))...)
	for i := range 4 * tokensAtOnce {
		if _, err := conn.StreamAggregatedResources(withAuthorization(t.Context(), fmt.Sprint("Bearer slow-", i))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "many tokens wait for their review", func() bool { return g.server.asked.Load() >= tokensAtOnce })
	s := r.sotw(g.with(nil, "Bearer good")...)
	s.send(subscribe(seV1))
	s.next()
}

// TestATokenThatCausesAPanicEndsItsStreamOnly: it is judged before the stream is admitted.
func TestATokenThatCausesAPanicEndsItsStreamOnly(t *testing.T) {
	g, set := newGate(t, nil)
	r := startRelay(t, true, set)
	g.server.set(func() { g.server.users = nil })
	g.server.panics.Store(true)
	s := r.sotw(g.with(nil, "Bearer a")...)
	wantCode(t, s.end(), codes.Internal)
	eventually(t, "the stream is not counted any more", func() bool { return r.server.open.Load() == 0 })
}

// TestBadTokensOfAnAddressAreLimited: they do not drive reviews, and who has a certificate is not held up.
func TestBadTokensOfAnAddressAreLimited(t *testing.T) {
	g, set := newGate(t, nil)
	r := startRelay(t, true, set)
	conn := r.dial(g.with(nil, "")...)
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			for n := range 30 {
				ctx := withAuthorization(t.Context(), fmt.Sprint("Bearer made-up-", i, "-", n))
				s, err := conn.StreamAggregatedResources(ctx)
				if err == nil {
					_, err = s.Recv()
				}
				if c := status.Code(err); c != codes.Unauthenticated && c != codes.ResourceExhausted {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := g.server.asked.Load(); got > 250 {
		t.Errorf("300 bad tokens made %d reviews", got)
	}
	if refusals(r, refusal.Rate) == 0 {
		t.Error("none was refused for their number")
	}
	s := r.sotw(g.with(g.client(g.ca, "good.example"), "")...)
	s.send(subscribe(seV1))
	s.next()
}

// TestCredentialsRotateUnderLoad: a hundred times each, while resources change. No stream of another client ends, and
// nobody misses a change.
func TestCredentialsRotateUnderLoad(t *testing.T) {
	const rotations = 100
	g, set := newGate(t, nil)
	r := startRelay(t, true, set)
	g.server.set(func() { g.server.users["base"] = "alice" })
	stay := []*keeper{
		r.follow(nil, g.with(g.client(g.ca, "good.example"), "")...),
		r.follow(nil, g.with(nil, "Bearer "+g.token("alice", time.Hour))...),
		r.follow(nil, g.with(nil, "Bearer base")...),
	}
	loaded := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(loaded)
		for n := 0; ctx.Err() == nil; n++ {
			r.store.Put(se("shop", fmt.Sprint("r", n%50), fmt.Sprint(n)))
			if n%7 == 0 {
				r.store.Remove(se("shop", fmt.Sprint("r", (n+3)%50), "").Key())
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
	}()
	// Each kind has one client, which follows the rotations.
	last := map[string]*keeper{}
	var olds []*tls.Certificate
	for n := range rotations {
		name := fmt.Sprint("client-", n)
		ca := authority(t, t.TempDir(), "rotating")
		key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		cert := g.client(g.ca, name)
		g.trusts(g.ca, ca)
		g.revokes(olds...)
		g.keys(map[string]crypto.PublicKey{"base": g.key.Public(), name: key.Public()})
		g.server.set(func() {
			maps.DeleteFunc(g.server.users, func(raw, _ string) bool { return raw != "base" })
			g.server.users[name] = "bob"
		})
		own := certificateOf(t, g.t.TempDir(), "relay.example", g.ca, func(*x509.Certificate) {})
		g.replace("relay.example.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(own.PrivateKey))}))
		g.replace("relay.example.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}))
		for kind, opts := range map[string][]grpc.DialOption{
			"certificate": g.with(cert, ""),
			"CA":          g.with(g.client(ca, name), ""),
			"key":         g.with(nil, "Bearer "+signed(key, name, map[string]any{"iss": "https://issuer.example", "aud": "relay", "sub": "bob", "exp": 1e10})),
			"review":      g.with(nil, "Bearer "+name),
		} {
			var index map[string]string
			if before := last[kind]; before != nil {
				before.wantEnd(t, map[string]string{"certificate": "was revoked at", "CA": "signed by none", "key": "no key with the kid", "review": "does not accept it"}[kind])
				index = before.has()
			}
			eventually(t, kind+" is let in", func() bool { // once the files are read
				f := r.follow(index, opts...)
				last[kind] = f
				return f.in()
			})
		}
		olds = []*tls.Certificate{cert}
		if t.Failed() {
			break
		}
	}
	stop()
	<-loaded
	fresh := r.follow(nil, g.with(nil, "Bearer base")...)
	for n, f := range append(stay, slices.Collect(maps.Values(last))...) {
		eventually(t, fmt.Sprint("client ", n, " has what a fresh one has"), func() bool { has := f.has(); return len(has) > 0 && maps.Equal(has, fresh.has()) })
		select {
		case <-f.ended:
			t.Errorf("the stream of client %d has ended: %v", n, f.err)
		default:
		}
	}
}

// TestTheWorkloadAPIGivesCertificateAndRoots: its news count at once, and while it is away nothing changes.
func TestTheWorkloadAPIGivesCertificateAndRoots(t *testing.T) {
	dir := t.TempDir()
	api := startWorkloadAPI(t)
	east, west := authority(t, dir, "east"), authority(t, dir, "west")
	of := func(ca *tls.Certificate, ids ...string) *tls.Certificate {
		return certificateOf(t, t.TempDir(), "x", ca, func(c *x509.Certificate) {
			c.URIs, c.DNSNames = nil, []string{"relay.example"}
			for _, id := range ids {
				c.URIs = append(c.URIs, must(url.Parse(id)))
			}
			c.KeyUsage, c.BasicConstraintsValid = x509.KeyUsageDigitalSignature, false
		})
	}
	const eastID, westID = "spiffe://east.example/ns/a/sa/b", "spiffe://west.example/ns/a/sa/b"
	g := &gate{t: t, dir: dir, roots: x509.NewCertPool()}
	g.roots.AddCert(leafOf(east))
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Listeners[0].TLS = &TLS{WorkloadAPI: "unix://" + api.path, Refresh: 10 * time.Millisecond}
	})
	_, err := openStream(t, r, g.with(of(east, eastID), "")...)
	if err == nil {
		t.Error("a client is let in before there is a certificate")
	}
	api.tell(of(east, "spiffe://east.example/ns/relay/sa/relay"), "spiffe://east.example/ns/relay/sa/relay", east, map[string]*tls.Certificate{"spiffe://west.example": west})
	eventually(t, "the relay has a certificate", func() bool { return r.server.Certificate(0) != nil })
	a, b := r.follow(nil, g.with(of(east, eastID), "")...), r.follow(nil, g.with(of(west, westID), "")...)
	r.put(se("shop", "a", "1"))
	for _, f := range []*keeper{a, b} {
		eventually(t, "the clients are served", func() bool { return len(f.has()) == 1 })
	}
	for name, cert := range map[string]*tls.Certificate{
		"a trust domain by the roots of another": of(west, eastID), "a trust domain without roots": of(east, "spiffe://north.example/x"), "a name": of(east), "two URIs": of(east, eastID, westID),
	} {
		if f := r.follow(nil, g.with(cert, "")...); f.in() || status.Code(f.err) != codes.Unavailable {
			t.Errorf("%s: %v", name, f.err)
		}
	}
	before := r.server.Certificate(0)
	api.tell(of(east, "spiffe://east.example/ns/relay/sa/relay"), "spiffe://east.example/ns/relay/sa/relay", east, nil)
	b.wantEnd(t, "signed by none of the certificates")
	if r.server.Certificate(0).Equal(before) {
		t.Error("the certificate of the relay has not rotated")
	}
	api.stop()
	eventually(t, "the absence is counted", func() bool {
		return testutil.ToFloat64(r.server.metrics.credentials.WithLabelValues(badWorkloadAPI)) > 0
	})
	late := r.follow(nil, g.with(of(east, eastID), "")...)
	r.put(se("shop", "b", "1"))
	for _, f := range []*keeper{a, late} {
		eventually(t, "the clients are served", func() bool { return len(f.has()) == 2 })
	}
}
