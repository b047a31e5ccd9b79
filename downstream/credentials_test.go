package downstream

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/testing/await"
)

// TestABadFileKeepsWhatIsTrusted: it is counted, and logged once when it begins. A list that is out of date counts.
func TestABadFileKeepsWhatIsTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, set := newGate(t, nil)
		log := &lockedLog{}
		r := startInMemory(t, true, set, logTo(log))
		bad := g.client(g.ca, "bad.example")
		g.revokesUntil(time.Now().Add(-time.Minute), g.ca, bad)
		counted := func(what string) bool {
			return testutil.ToFloat64(r.server.metrics.credentials.WithLabelValues(what)) > 3
		}
		r.eventually(t, "the old list is counted", func() bool { return counted(badCRL) })
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
			r.eventually(t, name+" is counted", func() bool { return counted(what) })
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
			r.eventually(t, what+" is logged", func() bool { return logged() >= times })
			if got := logged(); got != times {
				t.Errorf("%s is logged %d times, want %d", what, got, times)
			}
		}
	})
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
	r.eventually(t, "the client is connected", func() bool { return len(r.server.Clients()) == 1 })
	g.server.set(func() { g.server.down = true })
	asked := g.server.asked.Load()
	r.eventually(t, "the token is reviewed again", func() bool { return g.server.asked.Load() > asked+5 })
	s := r.sotw(g.with(nil, "Bearer b")...)
	wantCode(t, s.end(), codes.Unavailable)
	r.put(se("shop", "a", "1"))
	r.eventually(t, "the client is served", func() bool { return len(f.has()) == 1 })
}

// TestTokensOfOneAddressLeaveReviewsForOthers: however many it sends at once.
func TestTokensOfOneAddressLeaveReviewsForOthers(t *testing.T) {
	g, set := newGate(t, nil)
	r := startRelay(t, true, set)
	g.server.set(func() { g.server.users["good"] = "alice" })
	g.server.hold = make(chan struct{})
	defer close(g.server.hold)
	conn := r.dial(append(g.with(nil, ""), r.from("127.0.0.2"))...)
	for i := range 4 * tokensAtOnce {
		if _, err := conn.StreamAggregatedResources(withAuthorization(t.Context(), fmt.Sprint("Bearer slow-", i))); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually(t, "many tokens wait for their review", func() bool { return g.server.asked.Load() >= tokensAtOnce })
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
	r.eventually(t, "the stream is not counted any more", func() bool { return r.server.open.Load() == 0 })
}

// TestBadTokensOfAnAddressAreLimited: they do not drive reviews, and who has a certificate is not held up.
func TestBadTokensOfAnAddressAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, set := newGate(t, nil)
		r := startInMemory(t, true, set)
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
	})
}

// TestCredentialsRotateUnderLoad: many times, while resources change. No stream of another client ends, and
// nobody misses a change.
func TestCredentialsRotateUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rotations = 25
		g, set := newGate(t, nil)
		r := startInMemory(t, true, set)
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
				await.Pass(time.Millisecond)
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
				r.eventually(t, kind+" is let in", func() bool { // once the files are read
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
			r.eventually(t, fmt.Sprint("client ", n, " has what a fresh one has"), func() bool { has := f.has(); return len(has) > 0 && maps.Equal(has, fresh.has()) })
			select {
			case <-f.ended:
				t.Errorf("the stream of client %d has ended: %v", n, f.err)
			default:
			}
		}
	})
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
	r.eventually(t, "the relay has a certificate", func() bool { return r.server.Certificate(0) != nil })
	a, b := r.follow(nil, g.with(of(east, eastID), "")...), r.follow(nil, g.with(of(west, westID), "")...)
	r.put(se("shop", "a", "1"))
	for _, f := range []*keeper{a, b} {
		r.eventually(t, "the clients are served", func() bool { return len(f.has()) == 1 })
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
	r.eventually(t, "the absence is counted", func() bool {
		return testutil.ToFloat64(r.server.metrics.credentials.WithLabelValues(badWorkloadAPI)) > 0
	})
	late := r.follow(nil, g.with(of(east, eastID), "")...)
	r.put(se("shop", "b", "1"))
	for _, f := range []*keeper{a, late} {
		r.eventually(t, "the clients are served", func() bool { return len(f.has()) == 2 })
	}
}
