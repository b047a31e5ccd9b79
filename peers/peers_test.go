package peers

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/test/bufconn"

	"meshrelay/internal/testing/testca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const own = "spiffe://cluster.local/ns/istio-system/sa/relay"

// replica is one replica of several in this process.
type replica struct {
	*Set
	at    netip.AddrPort
	creds *Credentials
	files testca.Files
}

// group are addresses that a service has.
type group struct {
	t  *testing.T
	mu sync.Mutex
	at []netip.AddrPort
}

func (g *group) lookup(context.Context) ([]netip.AddrPort, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.at), nil
}

func (g *group) add(at netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = append(g.at, at)
}

func echo(_ context.Context, q url.Values, w io.Writer) error {
	_, err := fmt.Fprintf(w, "hello %s", q.Get("name"))
	return err
}

// start starts a replica with a certificate. Its documents are echo and others.
func (g *group) start(files testca.Files, others map[string]Document, identities ...string) *replica {
	g.t.Helper()
	creds, err := NewCredentials(files.Cert, files.Key, files.Roots, identities)
	if err != nil {
		g.t.Fatal(err)
	}
	r := &replica{Set: NewSet("relay-peers:15016", g.lookup, creds), creds: creds, files: files}
	documents := map[string]Document{"echo": echo}
	for name, d := range others {
		documents[name] = d
	}
	r.at = serve(g.t, func(ctx context.Context, lis net.Listener) error {
		return NewServer("", creds, r.Process, documents, slog.New(slog.DiscardHandler)).Serve(ctx, lis)
	})
	g.add(r.at)
	return r
}

// serve runs a server on loopback until the test ends.
func serve(t *testing.T, run func(context.Context, net.Listener) error) netip.AddrPort {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return lis.Addr().(*net.TCPAddr).AddrPort()
}

// answers asks all others for a document.
func (r *replica) answers(t *testing.T, path string) (texts []string, failures []Failure) {
	t.Helper()
	var mu sync.Mutex
	failures = r.Each(t.Context(), path, 1000, func(_ string, body io.Reader) error {
		b, err := io.ReadAll(body)
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			texts = append(texts, string(b))
		}
		return err
	})
	return texts, failures
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

func TestAReplicaAsksAllOthersAndNotItself(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	var all []*replica
	for range 3 {
		all = append(all, g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil))
	}
	g.add(all[1].at) // the same address twice
	for _, r := range all {
		texts, failures := r.answers(t, "echo?name=you")
		if len(texts) != 2 || texts[0] != "hello you" || len(failures) != 0 {
			t.Errorf("%q, %v", texts, failures)
		}
	}
	if err := all[0].One(t.Context(), all[1].at.String(), "nothing", 10, nil); !errors.Is(err, ErrNone) {
		t.Errorf("a document that does not exist: %v", err)
	}
}

func TestBothSidesRefuseWhoIsNoReplica(t *testing.T) {
	ca, other := testca.New(t), testca.New(t)
	good := func(t *testing.T) testca.Files { return ca.Issue(t, t.TempDir(), own, in(time.Hour)) }
	for name, bad := range map[string]struct {
		files func(t *testing.T) testca.Files
		err   string
	}{
		"another CA": {func(t *testing.T) testca.Files {
			f := other.Issue(t, t.TempDir(), own, in(time.Hour))
			f.Roots = good(t).Roots // it would take ours
			return f
		}, "unknown authority"},
		"another identity": {func(t *testing.T) testca.Files {
			return ca.Issue(t, t.TempDir(), "spiffe://cluster.local/ns/shop/sa/cart", in(time.Hour))
		}, "replicas.peers.identities"},
		"expired": {func(t *testing.T) testca.Files { return ca.Issue(t, t.TempDir(), own, in(-time.Minute)) }, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &group{t: t}
			one := g.start(good(t), nil)
			intruder := g.start(bad.files(t), nil, "spiffe://*/**")
			texts, failures := one.answers(t, "echo")
			if len(texts) != 0 || len(failures) != 1 || failures[0].Peer != intruder.at.String() || !strings.Contains(failures[0].Err.Error(), bad.err) {
				t.Errorf("as a server it gives %q, %v", texts, failures)
			}
			if texts, failures := intruder.answers(t, "echo"); len(texts) != 0 || !slices.ContainsFunc(failures, func(f Failure) bool { return f.Peer == one.at.String() }) {
				t.Errorf("as a client it gets %q, %v", texts, failures)
			}
		})
	}
	t.Run("no certificate, or TLS 1.2", func(t *testing.T) {
		g := &group{t: t}
		one := g.start(good(t), nil)
		for _, cfg := range []*tls.Config{{InsecureSkipVerify: true}, {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{one.creds.own.Get()}}} {
			client := http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
			if response, err := client.Get("https://" + one.at.String() + "/echo"); err == nil {
				response.Body.Close()
				t.Errorf("it gets %s", response.Status)
			}
		}
	})
}

func TestAHostThatHoldsConnectionsDoesNotKeepReplicasOut(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	other := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	intruder := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 2 * maxConnections {
		c, err := intruder.Dial("tcp", other.at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // it never begins a handshake
	}
	if texts, failures := one.answers(t, "echo"); len(texts) != 1 || len(failures) != 0 {
		t.Errorf("%q, %v", texts, failures)
	}
}

func TestReplicasHaveOneOfTheIdentitiesInTheConfig(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil, "spiffe://*/ns/*/sa/relay", "dns:relay.example")
	g.start(ca.Issue(t, t.TempDir(), "relay.example", in(time.Hour)), nil, own)
	if texts, failures := one.answers(t, "echo"); len(texts) != 1 || len(failures) != 0 {
		t.Errorf("%q, %v", texts, failures)
	}
	nameless := ca.Issue(t, t.TempDir(), "", in(time.Hour))
	if _, err := NewCredentials(nameless.Cert, nameless.Key, nameless.Roots, nil); err == nil || !strings.Contains(err.Error(), "neither a SPIFFE ID") {
		t.Errorf("a certificate without an identity: %v", err)
	}
}

func TestRenewedCertificatesAndRootsAreUsedWithoutARestart(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	a, b := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil), g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	next := testca.New(t)
	for _, r := range []*replica{a, b} {
		next.Issue(t, strings.TrimSuffix(r.files.Cert, "tls.crt"), own, in(time.Hour))
	}
	if err := a.creds.Read(); err != nil {
		t.Fatal(err)
	}
	if texts, failures := a.answers(t, "echo"); len(texts) != 0 || len(failures) != 1 {
		t.Errorf("only one has read the new files, and it gets %q, %v", texts, failures)
	}
	if err := b.creds.Read(); err != nil {
		t.Fatal(err)
	}
	if texts, failures := a.answers(t, "echo"); len(texts) != 1 {
		t.Errorf("with the new files: %q, %v", texts, failures)
	}
	if err := os.WriteFile(a.files.Cert, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.creds.Read(); err == nil {
		t.Error("a bad file is no error")
	}
	if texts, failures := a.answers(t, "echo"); len(texts) != 1 {
		t.Errorf("with the last good files: %q, %v", texts, failures)
	}
}

// endless writes until the client goes.
func endless(ctx context.Context, _ url.Values, w io.Writer) error {
	part := bytes.Repeat([]byte("x"), 1<<16)
	for ctx.Err() == nil {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func TestAnEndlessAnswerIsReadUpToTheBound(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), map[string]Document{"echo": endless})
	read := 0
	failures := one.Each(t.Context(), "echo", 1<<20, func(_ string, body io.Reader) error {
		b, err := io.ReadAll(body)
		read = len(b)
		return err
	})
	if tooLarge := new(http.MaxBytesError); len(failures) != 1 || !errors.As(failures[0].Err, &tooLarge) || read > 1<<20 {
		t.Errorf("%d bytes, %v", read, failures)
	}
}

func TestASlowReplicaDoesNotDelayTheAnswersOfOthers(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), map[string]Document{"echo": func(ctx context.Context, _ url.Values, w io.Writer) error {
		_, _ = w.Write([]byte("h"))
		w.(*answer).w.(http.Flusher).Flush()
		<-ctx.Done()
		return ctx.Err()
	}})
	silent := serve(t, func(ctx context.Context, lis net.Listener) error { <-ctx.Done(); return lis.Close() })
	g.add(silent) // it accepts connections, and never says anything
	ctx, cancel := context.WithCancel(t.Context())
	var answered atomic.Int64
	failures := one.Each(ctx, "echo", 100, func(_ string, body io.Reader) error {
		_, err := io.ReadAll(body)
		if err == nil {
			answered.Add(1)
			cancel() // the others end with ctx
		}
		return err
	})
	if answered.Load() != 1 || !slices.ContainsFunc(failures, func(f Failure) bool { return f.Peer == silent.String() }) {
		t.Errorf("%d have answered, %v", answered.Load(), failures)
	}
}

func TestWhatAnswersWithoutAProcessIsNoReplica(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	g.add(serve(t, func(ctx context.Context, lis net.Listener) error {
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "garbage") }), ReadHeaderTimeout: time.Minute}
		go func() { <-ctx.Done(); server.Close() }()
		if err := server.Serve(tls.NewListener(lis, one.creds.config(x509.ExtKeyUsageClientAuth))); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}))
	g.add(serve(t, func(ctx context.Context, lis net.Listener) error { // no TLS
		go func() { <-ctx.Done(); lis.Close() }()
		for {
			c, err := lis.Accept()
			if err != nil {
				return nil //nolint:nilerr // it is closed
			}
			_, _ = io.WriteString(c, strings.Repeat("garbage", 100))
			c.Close()
		}
	}))
	if texts, failures := one.answers(t, "echo"); len(texts) != 0 || len(failures) != 2 {
		t.Errorf("%q, %v", texts, failures)
	}
}

func TestOfAHundredAddressesSixteenAreAsked(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	var asked atomic.Int64
	for range 100 {
		g.add(serve(t, func(ctx context.Context, lis net.Listener) error {
			go func() { <-ctx.Done(); lis.Close() }()
			for {
				c, err := lis.Accept()
				if err != nil {
					return nil //nolint:nilerr // it is closed
				}
				asked.Add(1)
				c.Close()
			}
		}))
	}
	_, failures := one.answers(t, "echo")
	more := slices.IndexFunc(failures, func(f Failure) bool { return strings.Contains(f.Err.Error(), "85 more addresses") })
	if asked.Load() > maxPeers || len(failures) > maxPeers+1 || more < 0 {
		t.Errorf("%d connections, %d failures: %v", asked.Load(), len(failures), failures)
	}
}

func TestADocumentThatBreaksOffIsNoAnswer(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), map[string]Document{
		"half": func(_ context.Context, _ url.Values, w io.Writer) error {
			_, _ = io.WriteString(w, "the first half")
			return errors.New("the disk is full")
		},
		"none":  func(context.Context, url.Values, io.Writer) error { return ErrNone },
		"wrong": func(context.Context, url.Values, io.Writer) error { return errors.New("the disk is full") },
	})
	for path, want := range map[string]string{"half": "EOF", "none": ErrNone.Error(), "wrong": "500 Internal Server Error: \"the disk is full"} {
		texts, failures := one.answers(t, path)
		if len(texts) != 0 || len(failures) != 1 || !strings.Contains(failures[0].Err.Error(), want) {
			t.Errorf("%s: %q, %v", path, texts, failures)
		}
	}
}

func TestDocumentsAreReadOnly(t *testing.T) {
	g, ca := &group{t: t}, testca.New(t)
	one, other := g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil), g.start(ca.Issue(t, t.TempDir(), own, in(time.Hour)), nil)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodConnect} {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+other.at.String()+"/echo", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := one.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, response.Status)
		}
	}
}

func TestRequestsToAnAddressAreBoundedAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := testca.New(t).Issue(t, t.TempDir(), own, in(time.Hour))
		creds, err := NewCredentials(files.Cert, files.Key, files.Roots, nil)
		if err != nil {
			t.Fatal(err)
		}
		open := make(chan struct{})
		var entered atomic.Int32
		server := NewServer("", creds, "other", map[string]Document{"echo": func(ctx context.Context, q url.Values, w io.Writer) error {
			entered.Add(1)
			<-open
			return echo(ctx, q, w)
		}}, slog.New(slog.DiscardHandler))
		lis, one := bufconn.Listen(1<<16), NewSet("", nil, creds)
		one.DialWith(func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(ctx, lis) }()
		var all sync.WaitGroup
		for range maxRequests + 1 {
			all.Go(func() {
				if err := one.One(ctx, "10.0.0.1:15016", "echo", 100, func(body io.Reader) error { _, err := io.ReadAll(body); return err }); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := entered.Load(); n != maxRequests {
			t.Errorf("%d are answered at a time", n)
		}
		close(open)
		all.Wait()
		if n := entered.Load(); n != maxRequests+1 {
			t.Errorf("with room again, %d are answered", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
