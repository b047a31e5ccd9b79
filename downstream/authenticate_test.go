package downstream

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/testing/await"
)

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
					r.eventually(t, name+" is connected", func() bool { cs := r.server.connections(); return len(cs) == 1 })
					got = strings.Join(r.server.connections()[0].who.Names, " ")
					if got != want {
						t.Errorf("%s is %q, want %q", name, got, want)
					}
					s.cancel()
					r.eventually(t, name+" is gone", func() bool { return len(r.server.connections()) == 0 })
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
	answer chan struct{}     // closed when the first has come
	ended  chan struct{}
	err    error // set before ended is closed
	cancel context.CancelFunc
}

// follow connects a client that has what index has.
func (r *relay) follow(index map[string]string, opts ...grpc.DialOption) *keeper {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	f := &keeper{index: maps.Clone(index), answer: make(chan struct{}), ended: make(chan struct{}), cancel: cancel}
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
			if !isClosed(f.answer) {
				close(f.answer)
			}
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
	select {
	case <-f.ended:
		return false
	case <-f.answer:
		return true
	}
}

// wantEnd waits until the stream ends with a status.
func (f *keeper) wantEnd(t *testing.T, text string) {
	t.Helper()
	await.Closed(t, "the end of the stream: "+text, f.ended)
	wantCode(t, f.err, codes.Unauthenticated)
	if !strings.Contains(f.err.Error(), text) {
		t.Errorf("the client is told %q, want %s", f.err, text)
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
		t.Run(name, inBubble(func(t *testing.T) {
			g, set := newGate(t, nil)
			r := startInMemory(t, true, set)
			r.put(se("shop", "a", "1"), se("shop", "b", "1"))
			g.server.set(func() { g.server.users["good"] = "alice" })
			stay := []*keeper{
				r.follow(nil, g.with(g.client(g.ca, "good.example"), "")...), r.follow(nil, g.with(nil, "Bearer "+g.token("alice", time.Hour))...), r.follow(nil, g.with(nil, "Bearer good")...),
			}
			opts, takeBack := tc.show(g)
			var leaves *keeper
			r.eventually(t, "the client is let in", func() bool { // once the files are read
				leaves = r.follow(nil, opts...)
				return leaves.in()
			})
			takeBack()
			leaves.wantEnd(t, tc.want)
			await.Pass(time.Second) // a token is good until its last second has passed
			if again := r.follow(nil, opts...); again.in() != (name == "a token that is another user's") {
				t.Error("the client comes back with what it has shown")
			} else {
				again.cancel()
			}
			r.put(se("shop", "a", "2"), se("shop", "c", "1"))
			r.remove(se("shop", "b", "1"))
			back := r.follow(leaves.has(), g.with(nil, "Bearer "+g.token("alice", time.Hour))...)
			for _, f := range append(stay, back) {
				r.eventually(t, "the client has everything", func() bool {
					has := f.has()
					return len(has) == 2 && has["shop/a"] == stay[0].has()["shop/a"] && has["shop/c"] != ""
				})
				select {
				case <-f.ended:
					t.Errorf("the stream of another client has ended: %v", f.err)
				default:
				}
			}
		}))
	}
}

// TestAHeldClientIsJudgedAgainBeforeItsFirstResponse: by the files as they are when the hold ends, not as the relay
// read them last.
func TestAHeldClientIsJudgedAgainBeforeItsFirstResponse(t *testing.T) {
	g, set := newGate(t, func(l *TLS) { l.Refresh = time.Hour })
	r := startRelay(t, false, set)
	bad := g.client(g.ca, "bad.example")
	leaves, stays := r.follow(nil, g.with(bad, "")...), r.follow(nil, g.with(g.client(g.ca, "good.example"), "")...)
	r.eventually(t, "the clients are held", func() bool { return len(r.server.Clients()) == 2 })
	r.store.Put(se("shop", "a", "1"))
	g.revokes(bad)
	r.store.SetSynced()
	leaves.wantEnd(t, "was revoked at")
	if len(leaves.has()) != 0 {
		t.Error("a revoked client has got resources")
	}
	r.eventually(t, "the other client is served", func() bool { return len(stays.has()) == 1 })
}

// TestAStreamIsJudgedBeforeItsNextResponse: after a change of what is trusted, also before the stream's turn has come.
func TestAStreamIsJudgedBeforeItsNextResponse(t *testing.T) {
	g, set := newGate(t, func(l *TLS) { l.Refresh = time.Hour })
	r := startRelay(t, true, set)
	bad := g.client(g.ca, "bad.example")
	f := r.follow(nil, g.with(bad, "")...)
	r.eventually(t, "the client is connected", func() bool { return len(r.server.Clients()) == 1 })
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
