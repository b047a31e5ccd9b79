package downstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/refusal"
)

// mutualTLS makes a listener that wants certificates of the authorities "one" and "two". The
// result gives a client a certificate of one of them, for so long.
func mutualTLS(t *testing.T) (dir string, set option, client func(authority string, valid time.Duration) grpc.DialOption) {
	t.Helper()
	dir = t.TempDir()
	cas := map[string]*tls.Certificate{"one": certificate(t, dir, "one", nil), "two": certificate(t, dir, "two", nil)}
	certificate(t, dir, "relay.example", cas["one"])
	trustOnly(t, dir, "one", "two")
	server := x509.NewCertPool()
	server.AddCert(must(x509.ParseCertificate(cas["one"].Certificate[0])))
	set = func(c *Config, _ *Deps) {
		c.Listeners[0].TLS = &TLS{
			CertFile: filepath.Join(dir, "relay.example.crt"), KeyFile: filepath.Join(dir, "relay.example.key"),
			ClientCAs: []ClientCA{{File: filepath.Join(dir, "clients.crt")}}, Refresh: 10 * time.Millisecond,
		}
	}
	client = func(authority string, valid time.Duration) grpc.DialOption {
		ca := cas[authority]
		key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: "client"}, DNSNames: []string{"client"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der := must(x509.CreateCertificate(rand.Reader, template, must(x509.ParseCertificate(ca.Certificate[0])), &key.PublicKey, ca.PrivateKey))
		return grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: server, ServerName: "relay.example", Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		}))
	}
	return dir, set, client
}

// trustOnly writes the file of the authorities that are trusted.
func trustOnly(t *testing.T, dir string, authorities ...string) {
	t.Helper()
	var all []byte
	for _, a := range authorities {
		all = append(all, must(os.ReadFile(filepath.Join(dir, a+".crt")))...)
	}
	next := filepath.Join(dir, "clients.next")
	if err := os.WriteFile(next, all, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "clients.crt")); err != nil {
		t.Fatal(err)
	}
}

// TestStreamEndsWithItsCertificate: and not before.
func TestStreamEndsWithItsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, set, client := mutualTLS(t)
		r := startInMemory(t, true, set)
		long := r.delta(client("one", time.Hour))
		long.send(subscribeDelta(seV1))
		long.next()
		short := client("one", 3*time.Second)
		d, s := r.delta(short), r.sotw(short)
		d.send(subscribeDelta(seV1))
		s.send(subscribe(seV1))
		d.next()
		s.next()
		for _, end := range []error{d.end(), s.end()} {
			wantCode(t, end, codes.Unauthenticated)
			if !strings.Contains(end.Error(), "has expired at") {
				t.Errorf("the client is told %q", end)
			}
		}
		wantRefused(t, r, refusal.Certificate, 2)
		r.put(se("shop", "a", "a"))
		long.next()
	})
}

// TestStreamEndsWhenItsAuthorityLeavesTheFile: also a stream that opens later, on a connection of
// before. Streams of other authorities stay, and a bad file changes nothing.
func TestStreamEndsWhenItsAuthorityLeavesTheFile(t *testing.T) {
	dir, set, client := mutualTLS(t)
	r := startRelay(t, true, set)
	connect := func(authority string) discoveryv3.AggregatedDiscoveryServiceClient {
		return r.dial(client(authority, time.Hour))
	}
	open := func(c discoveryv3.AggregatedDiscoveryServiceClient) *deltaStream {
		s, err := c.DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d := newStream(t, s, func() {})
		d.send(subscribeDelta(seV1))
		return d
	}
	one, two := connect("one"), connect("two")
	leaves, stays := open(one), open(two)
	leaves.next()
	stays.next()
	if err := os.WriteFile(filepath.Join(dir, "clients.crt"), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	trust := r.server.auth[&r.server.cfg.Listeners[0]].trust
	bad := 0
	read := func() bool { return trust.read(func(string, error) { bad++ }) }
	if read() || bad != 1 {
		t.Error("a bad file has replaced a good one, or is not told")
	}
	trustOnly(t, dir, "two", "one") // as before, in another order
	r.eventually(t, "the file is read", func() bool {
		_, err := trust.vouches(r.server.connections()[0].peer)
		return !read() && err == nil
	})
	r.put(se("shop", "a", "1"))
	leaves.next()
	stays.next()

	trustOnly(t, dir, "two")
	for _, d := range []*deltaStream{leaves, open(one)} {
		end := d.end()
		wantCode(t, end, codes.Unauthenticated)
		if !strings.Contains(end.Error(), "tls.clientCAs") {
			t.Errorf("the client is told %q", end)
		}
	}
	r.put(se("shop", "a", "2"))
	stays.next()
	open(two).next()

	trustOnly(t, dir, "one", "two")
	r.eventually(t, "its clients are let in again", func() bool {
		s, err := connect("one").DeltaAggregatedResources(t.Context())
		if err != nil {
			return false
		}
		if err := s.Send(subscribeDelta(seV1)); err != nil {
			return false
		}
		_, err = s.Recv()
		return err == nil
	})
}

// TestSessionsAreNotResumed: a client that resumes one shows no certificate.
func TestSessionsAreNotResumed(t *testing.T) {
	dir := t.TempDir()
	ca := certificate(t, dir, "ca", nil)
	certificate(t, dir, "relay.example", ca)
	own := certificate(t, dir, "client", ca)
	pool := x509.NewCertPool()
	pool.AddCert(must(x509.ParseCertificate(ca.Certificate[0])))
	file := func(name string) string { return filepath.Join(dir, name) }
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Listeners[0].TLS = &TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key"), ClientCAs: []ClientCA{{File: file("ca.crt")}}}
	})
	sessions := tls.NewLRUClientSessionCache(4)
	for range 3 {
		conn, err := tls.Dial("tcp", r.addr, &tls.Config{
			RootCAs: pool, ServerName: "relay.example", NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*own}, ClientSessionCache: sessions,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil { // tickets come with the first bytes
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("a session was resumed")
		}
		conn.Close()
	}
}

// TestATrustDomainLosesItsStreamsWithItsRoots: those of other trust domains, and of the roots
// for all others, stay.
func TestATrustDomainLosesItsStreamsWithItsRoots(t *testing.T) {
	dir := t.TempDir()
	peerOf := func(ca *tls.Certificate, name, id string) *peer.Peer {
		leaf := certificateOf(t, dir, name, ca, func(c *x509.Certificate) { c.URIs = []*url.URL{must(url.Parse(id))} })
		certs := []*x509.Certificate{must(x509.ParseCertificate(leaf.Certificate[0]))}
		chain := append(slices.Clone(certs), must(x509.ParseCertificate(ca.Certificate[0])))
		return &peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: certs, VerifiedChains: [][]*x509.Certificate{chain}}}}
	}
	a, b, other := certificate(t, dir, "a", nil), certificate(t, dir, "b", nil), certificate(t, dir, "other", nil)
	file := func(name string) string { return filepath.Join(dir, name) }
	trust := must(newTrust(&TLS{
		ClientCAs: []ClientCA{{File: file("other.crt")}, {TrustDomain: "a.example", File: file("a.crt")}, {TrustDomain: "b.example", File: file("b.crt")}},
	}))
	read := func() bool { return trust.read(func(domain string, err error) { t.Error(domain, err) }) }
	peers := map[string]*peer.Peer{
		"a":                       peerOf(a, "1", "spiffe://a.example/x"),
		"b":                       peerOf(b, "2", "spiffe://b.example/x"),
		"other":                   peerOf(other, "3", "spiffe://c.example/x"),
		"a, by the roots of c":    peerOf(other, "4", "spiffe://a.example/x"),
		"a domain without roots":  peerOf(b, "5", "spiffe://c.example/x"),
		"a, after it has changed": peerOf(b, "6", "spiffe://a.example/x"),
	}
	want := func(good ...string) {
		t.Helper()
		for name, p := range peers {
			if _, err := trust.vouches(p); (err == nil) != slices.Contains(good, name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	want("a", "b", "other")
	if read() {
		t.Error("nothing has changed")
	}
	if err := os.WriteFile(file("a.crt"), must(os.ReadFile(file("b.crt"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if !read() {
		t.Error("the roots of a have changed")
	}
	want("b", "other", "a, after it has changed")
}
