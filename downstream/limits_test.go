package downstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
)

// many returns n ServiceEntries, named by format.
func many(n int, format string, host func(i int) string) (out []*mirror.Resource) {
	for i := range n {
		out = append(out, se("shop", fmt.Sprintf(format, i), host(i)))
	}
	return out
}

// stalled opens a SotW stream that reads nothing until the returned function is
// called.
func (r *relay) stalled(typeURL string) discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(cancel)
	s, err := r.dial(grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10)).StreamAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.Send(subscribe(typeURL)); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// stalledDelta is stalled for a delta stream.
func (r *relay) stalledDelta(typeURL string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(cancel)
	s, err := r.dial(grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10)).DeltaAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.Send(subscribeDelta(typeURL)); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// TestMostClientsMayBeSlowAndDelayNobody: no push waits for a client that does not read.
func TestMostClientsMayBeSlowAndDelayNobody(t *testing.T) {
	r := startRelayOn(t, nil, 10*time.Minute, true)
	filler := strings.Repeat("x", 1000)
	r.put(many(1000, "s-%03d", func(int) string { return filler })...)
	for range 3 {
		r.stalled(seV1)
	}
	fast := r.deltaBy("fast", seV1)
	fast.next()
	r.eventually(t, "all are being sent the first response", func() bool {
		clients := r.server.Clients()
		return len(clients) == 4 && !slices.ContainsFunc(clients, func(c ClientStatus) bool { return len(c.Types) == 0 || c.Types[0].Pushes == 0 })
	})
	for i := range 50 {
		r.put(se("shop", "s-000", fmt.Sprintf("h%d.example", i)))
		fast.next()
	}
	r.eventually(t, "the others do not take what they are sent", func() bool {
		blocked := 0
		for _, c := range r.server.connections() {
			if c.sending.Load() {
				blocked++
			}
		}
		return blocked == 3
	})
}

func TestSlowClientSkipsToTheNewestAndDelaysNobody_S25(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true)
		filler := strings.Repeat("x", 1000)
		r.put(many(1000, "s-%03d", func(i int) string { return filler })...) // 1 MB: more than any buffer between us and the client
		slow := r.stalled(seV1)
		fast := r.sotw()
		fast.send(subscribe(seV1))
		for len(fast.next().Resources) < 1000 {
		}
		const changes = 50
		for i := range changes {
			r.put(se("shop", "s-000", fmt.Sprintf("h%d.example", i)))
		}
		last := fmt.Sprintf("h%d.example", changes-1)
		has := func(resp *discoveryv3.DiscoveryResponse) bool {
			return strings.Contains(string(decode(t, resp.Resources[0]).Body.Value), last)
		}
		for !has(fast.next()) {
		}
		got := 0
		for {
			resp, err := slow.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got++; has(resp) {
				break
			}
		}
		// One response was on its way, another may have waited for the window; the rest were
		// never made.
		if got > 4 {
			t.Errorf("the slow client was sent %d responses for %d changes", got, changes)
		}
	})
}

func TestClientThatNeverReadsIsSentAway_S25(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.timeouts.unread = 100 * time.Millisecond })
		r.put(many(1000, "s-%03d", func(i int) string { return strings.Repeat("x", 1000) })...)
		slow := r.stalled(seV1)
		r.eventually(t, "the first response is on its way", func() bool {
			c := r.server.Clients()
			return len(c) == 1 && len(c[0].Types) == 1 && c[0].Types[0].Pushes == 1
		})
		// The transport takes one response more than it can send; the next one waits.
		r.put(se("shop", "s-000", "new.example"))
		r.eventually(t, "it was connected and is gone", func() bool {
			return testutil.ToFloat64(r.server.metrics.refused.WithLabelValues(codes.DeadlineExceeded.String())) == 1
		})
		for {
			if _, err := slow.Recv(); err != nil {
				wantCode(t, err, codes.DeadlineExceeded)
				return
			}
		}
	})
}

func TestNewStreamsAreLimited_S25(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.NewStreamsPerSecond = 1 })
		first := r.sotw()
		first.send(subscribe(seV1))
		first.next()
		refused := 0
		var streams []*sotwStream
		for range 4 {
			streams = append(streams, r.sotw())
		}
		for _, s := range streams {
			s.send(subscribe(seV1))
			if m := <-s.recvd; m.err != nil {
				wantCode(t, m.err, codes.ResourceExhausted)
				refused++
			}
		}
		if refused == 0 {
			t.Error("nobody was refused")
		}
		wantRefused(t, r, refusal.Rate, refused)
		if st := r.server.Clients(); len(st) == 0 {
			t.Error("the first client was hurt")
		}
	})
}

func TestRequestSizesAreLimited_S25(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxRequestBytes = 64 << 10 })
	s := r.delta()
	req := subscribeDelta(seV1)
	req.InitialResourceVersions = map[string]string{}
	for i := range 5000 {
		req.InitialResourceVersions[fmt.Sprintf("shop/service-entry-%d", i)] = "AAAAAAAAAAAAAAAAAAAAAA"
	}
	s.send(req)
	wantCode(t, s.end(), codes.ResourceExhausted)
	// A reload does not change it: gRPC keeps the one that it was started with.
	if err := r.server.Reload(t.Context(), nil, Limits{Limits: admit.Limits{MaxRequestBytes: 8 << 20}}, nil); err != nil {
		t.Fatal(err)
	}
	if got := r.server.limits.Load().MaxRequestBytes; got != 64<<10 {
		t.Errorf("after a reload it is %d bytes", got)
	}
}

func TestLargeResumeIsTaken_S18(t *testing.T) {
	_, set, client := mutualTLS(t)
	r := startRelay(t, true, set)
	a := se("shop", "a", "a.example")
	r.put(a)
	s := r.delta(client("one", time.Hour))
	s.send(subscribeDelta(meshURL)) // of the first request, relays hold nothing
	s.next()
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1}
	req.InitialResourceVersions = map[string]string{a.FullName(): a.Version()}
	for i := range 100000 {
		req.InitialResourceVersions[fmt.Sprintf("shop/vanished-%d", i)] = "AAAAAAAAAAAAAAAAAAAAAA"
	}
	if size := proto.Size(req); size < 4<<20 {
		t.Fatalf("the request has %d bytes, less than gRPC's default limit", size)
	}
	s.send(req)
	gone := map[string]bool{}
	for len(gone) < 100000 {
		resp := s.next()
		for _, name := range resp.RemovedResources {
			gone[name] = true
		}
		if n := len(resp.RemovedResources); n > maxRemoved {
			t.Errorf("%d names are removed at once", n)
		}
	}
	if gone[a.FullName()] {
		t.Error("a present resource is removed")
	}
	r.eventually(t, "the map is not kept after it was compared", func() bool {
		r.server.usage.mu.Lock()
		defer r.server.usage.mu.Unlock()
		return r.server.usage.kept.Versions == 0
	})
}

func TestClientsWithTheUsualLimitAreSentWhatFits_S21(t *testing.T) {
	r := startRelay(t, true)
	r.put(many(3000, "s-%04d", func(i int) string { return strings.Repeat("x", 1000) })...)
	// 3 MB pass a client that kept gRPC's limit of 4 MiB.
	s := r.sotw(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4 << 20)))
	s.send(subscribe(seV1))
	for len(s.next().Resources) < 3000 {
	}
	// 25 MB pass a client that, as istiod, has no limit.
	r.put(many(22000, "t-%05d", func(i int) string { return strings.Repeat("x", 1000) })...)
	big := r.sotw()
	big.send(subscribe(seV1))
	for len(big.next().Resources) < 25000 {
	}
}

func TestNoTTLsAndNoWrappers_S19(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	s := r.sotw()
	s.send(subscribe(seV1))
	for _, a := range s.next().Resources {
		if strings.HasSuffix(a.TypeUrl, "envoy.service.discovery.v3.Resource") {
			t.Error("an element is wrapped")
		}
	}
	d := r.delta()
	d.send(subscribeDelta(seV1))
	for _, res := range d.next().Resources {
		if res.Ttl != nil || res.CacheControl != nil {
			t.Errorf("%s has a TTL", res.Name)
		}
	}
}

// TestPingsOfIstiodAreAllowed_S22: grpc-go's own policy would end the connection after
// two pings that come sooner than every five minutes.
func TestPingsOfIstiodAreAllowed_S22(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true)
		// 10 s is the least that a client can be set to, and more often than istiod pings.
		s := r.sotw(grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
		s.send(subscribe(seV1))
		s.next()
		await.Settle(10 * time.Minute)
		if len(s.recvd) > 0 {
			t.Fatalf("an idle client was told %v", <-s.recvd)
		}
		r.put(se("shop", "a", "a.example"))
		s.next()
	})
}

func TestMaxConnectionAge_S23(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) {
			c.timeouts.age = time.Minute
		})
		began := time.Now()
		s := r.sotw()
		s.send(subscribe(seV1))
		s.next()
		wantCode(t, s.end(), codes.Unavailable)
		if age := time.Since(began); age < 54*time.Second || age > 77*time.Second {
			t.Errorf("it ended at the age of %v", age)
		}
	})
}

func TestDrainSendsClientsAwayInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true)
		s, d := r.sotw(), r.delta()
		s.send(subscribe(seV1))
		s.next()
		d.send(subscribeDelta(seV1))
		d.next()
		began := time.Now()
		r.stop()
		wantCode(t, s.end(), codes.Unavailable)
		wantCode(t, d.end(), codes.Unavailable)
		if took := time.Since(began); took > r.server.cfg.DrainTimeout {
			t.Errorf("the drain took %v", took)
		}
	})
}

// onConnected calls a function when a client has connected, in the goroutine that serves its stream.
type onConnected struct {
	slog.Handler
	do func()
}

func (h onConnected) Enabled(context.Context, slog.Level) bool { return true }

func (h onConnected) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h onConnected) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "client connected" {
		h.do()
	}
	return nil
}

func TestPanicEndsOneStreamOnly(t *testing.T) {
	var breaks atomic.Bool
	r := startRelay(t, true, func(_ *Config, d *Deps) {
		d.Logger = slog.New(onConnected{slog.DiscardHandler, func() {
			if breaks.Load() {
				panic("broken")
			}
		}})
	})
	other := r.sotw()
	other.send(subscribe(seV1))
	other.next()
	breaks.Store(true)
	s := r.sotw()
	s.send(subscribe(seV1))
	wantCode(t, s.end(), codes.Internal)
	if n := testutil.ToFloat64(r.server.metrics.panics); n != 1 {
		t.Errorf("%v panics counted", n)
	}
	r.put(se("shop", "a", "a.example"))
	if got := names(t, other.next()); got != "shop/a" {
		t.Errorf("the other client got %q", got)
	}
}

func TestViewsAreBounded(t *testing.T) {
	vs := newViews(mirror.NewAggregate())
	var last error
	for i := range maxViews + 1 {
		_, last = acquire(vs, views.Selection{Revision: fmt.Sprint(i)}, protocolDelta)
	}
	wantCode(t, last, codes.ResourceExhausted)
	if v, err := acquire(vs, views.Selection{Revision: "0"}, protocolDelta); err != nil {
		t.Error(err)
	} else {
		vs.release(v, viewer{delta: true})
		vs.release(v, viewer{delta: true})
	}
	if _, there := vs.derived[views.Selection{Revision: "0"}]; there {
		t.Error("a view without clients is kept")
	}
}

// serials is the last serial number of a certificate.
var serials atomic.Int64

// certificate writes a certificate and its key, signed by parent or by itself.
func certificate(t *testing.T, dir, name string, parent *tls.Certificate) *tls.Certificate {
	t.Helper()
	return certificateOf(t, dir, name, parent, func(*x509.Certificate) {})
}

// certificateOf is certificate with something else in it.
func certificateOf(t *testing.T, dir, name string, parent *tls.Certificate, edit func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		URIs:      []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/istio-system/sa/" + name}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	edit(tmpl)
	signer, signKey := tmpl, any(key)
	if parent != nil {
		signer, signKey = must(x509.ParseCertificate(parent.Certificate[0])), parent.PrivateKey
	}
	der := must(x509.CreateCertificate(rand.Reader, tmpl, signer, &key.PublicKey, signKey))
	keyDER := must(x509.MarshalPKCS8PrivateKey(key))
	write := func(suffix, kind string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(".crt", "CERTIFICATE", der)
	write(".key", "PRIVATE KEY", keyDER)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestTLSListener_S24(t *testing.T) {
	dir := t.TempDir()
	ca := certificate(t, dir, "ca", nil)
	certificate(t, dir, "relay.example", ca)
	clientCert := certificate(t, dir, "client", ca)
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(ca.Certificate[0])))
	file := func(name string) string { return filepath.Join(dir, name) }
	simple := credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "relay.example"})
	mutual := credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "relay.example", Certificates: []tls.Certificate{*clientCert}})
	for _, tc := range []struct {
		name   string
		tls    TLS
		client credentials.TransportCredentials
		served bool
	}{
		{"SIMPLE", TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key")}, simple, true},
		{"plaintext to TLS", TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key")}, insecure.NewCredentials(), false},
		{"client certificate", TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key"), ClientCAs: []ClientCA{{File: file("ca.crt")}}}, mutual, true},
		{"no client certificate", TLS{CertFile: file("relay.example.crt"), KeyFile: file("relay.example.key"), ClientCAs: []ClientCA{{File: file("ca.crt")}}}, simple, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startRelay(t, true, func(c *Config, _ *Deps) { c.Listeners[0].TLS = &tc.tls })
			r.put(se("shop", "a", "a.example"))
			s, err := r.dial(grpc.WithTransportCredentials(tc.client)).StreamAggregatedResources(await.Context(t))
			if err == nil {
				if err = s.Send(subscribe(seV1)); err == nil {
					_, err = s.Recv()
				}
			}
			if (err == nil) != tc.served {
				t.Errorf("ended with %v, want served %v", err, tc.served)
			}
		})
	}
}

func TestCertificateFilesAreReadAgainAndBadOnesDoNotReplaceGoodOnes_S24(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := certificate(t, dir, "ca", nil)
		certificate(t, dir, "relay.example", ca)
		roots := x509.NewCertPool()
		roots.AddCert(must(x509.ParseCertificate(ca.Certificate[0])))
		crt, key := filepath.Join(dir, "relay.example.crt"), filepath.Join(dir, "relay.example.key")
		r := startInMemory(t, true, func(c *Config, _ *Deps) {
			c.Listeners[0].TLS = &TLS{CertFile: crt, KeyFile: key, Refresh: 5 * time.Millisecond}
		})
		serial := func() string {
			conn := tls.Client(r.raw("127.0.0.1"), &tls.Config{RootCAs: roots, ServerName: "relay.example", NextProtos: []string{"h2"}})
			defer conn.Close()
			if err := conn.Handshake(); err != nil {
				t.Fatal(err)
			}
			return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
		}
		first := serial()
		certificate(t, dir, "relay.example", ca)
		r.eventually(t, "the new certificate is shown", func() bool { return serial() != first })
		second := serial()
		if err := os.WriteFile(crt, []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
		await.Settle(time.Second) // the files are read many times
		if got := serial(); got != second {
			t.Fatalf("a bad file has replaced certificate %s by %s", second, got)
		}
	})
}

func TestBadCertificatesAreErrorsAtStart_S24(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.pem")
	if err := os.WriteFile(bad, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := certificate(t, dir, "ca", nil)
	certificate(t, dir, "relay", ca)
	good := func(suffix string) string { return filepath.Join(dir, "relay"+suffix) }
	for _, tlsFiles := range []TLS{
		{CertFile: bad, KeyFile: good(".key")},
		{CertFile: filepath.Join(dir, "none.crt"), KeyFile: good(".key")},
		{CertFile: good(".crt"), KeyFile: good(".key"), ClientCAs: []ClientCA{{File: bad}}},
	} {
		if _, err := newAuthenticator(&tlsFiles); err == nil {
			t.Errorf("%+v is no error", tlsFiles)
		} else if !strings.Contains(err.Error(), dir) {
			t.Errorf("the error does not name the file: %v", err)
		}
	}
}
