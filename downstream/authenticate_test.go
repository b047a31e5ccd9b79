package downstream

import (
	"context"
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

	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
)

// TestAClientIsItsCertificateElseNobody: a certificate that is shown and bad is refused also where nobody need show one.
func TestAClientIsItsCertificateElseNobody(t *testing.T) {
	for _, anonymous := range []bool{false, true} {
		t.Run(fmt.Sprintf("anonymous=%t", anonymous), func(t *testing.T) {
			g, set := newGate(t, func(l *TLS) { l.AllowAnonymous = anonymous })
			r := startRelay(t, true, set)
			for name, tc := range map[string]struct {
				opt grpc.DialOption
				in  bool
				who string
			}{
				"a certificate":           {g.with(g.client(g.ca, "client.example")), true, "dns:client.example"},
				"a certificate of nobody": {g.with(g.client(authority(t, t.TempDir(), "evil"), "client.example")), false, ""},
				"nothing":                 {g.with(nil), anonymous, ""},
			} {
				s, err := openStream(t, r, tc.opt)
				if !tc.in {
					if err == nil {
						err = s.end()
					}
					if status.Code(err) != codes.Unavailable { // the handshake fails
						t.Errorf("%s: %v", name, err)
					}
					continue
				}
				s.next()
				r.eventually(t, name+" is connected", func() bool { return len(r.server.connections()) == 1 })
				if got := strings.Join(r.server.connections()[0].who.Names, " "); got != tc.who {
					t.Errorf("%s is %q, want %q", name, got, tc.who)
				}
				s.cancel()
				r.eventually(t, name+" is gone", func() bool { return len(r.server.connections()) == 0 })
			}
		})
	}
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
			if !mirror.IsClosed(f.answer) {
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

// TestAHeldClientIsJudgedAgainBeforeItsFirstResponse: by the files as they are when the hold ends, not as the relay
// read them last.
func TestAHeldClientIsJudgedAgainBeforeItsFirstResponse(t *testing.T) {
	g, set := newGate(t, func(l *TLS) { l.Refresh = time.Hour })
	other := authority(t, t.TempDir(), "other")
	g.trusts(g.ca, other)
	r := startRelay(t, false, set)
	leaves, stays := r.follow(nil, g.with(g.client(other, "bad.example"))), r.follow(nil, g.with(g.client(g.ca, "good.example")))
	r.eventually(t, "the clients are held", func() bool { return len(r.server.Clients()) == 2 })
	r.store.Put(se("shop", "a", "1"))
	g.trusts(g.ca)
	r.store.SetSynced()
	leaves.wantEnd(t, "signed by none of the certificates")
	if len(leaves.has()) != 0 {
		t.Error("a client that is not trusted any more has got resources")
	}
	r.eventually(t, "the other client is served", func() bool { return len(stays.has()) == 1 })
}

// TestAStreamIsJudgedBeforeItsNextResponse: after a change of what is trusted, also before the stream's turn has come.
func TestAStreamIsJudgedBeforeItsNextResponse(t *testing.T) {
	g, set := newGate(t, func(l *TLS) { l.Refresh = time.Hour })
	r := startRelay(t, true, set)
	f := r.follow(nil, g.with(g.client(g.ca, "bad.example")))
	r.eventually(t, "the client is connected", func() bool { return len(r.server.Clients()) == 1 })
	a := r.server.auth[&r.server.cfg.Listeners[0]]
	g.trusts(authority(t, t.TempDir(), "other"))
	if !a.trust.read(func(domain string, err error) { t.Error(domain, err) }) {
		t.Fatal("the roots have not changed")
	}
	a.changes.Add(1) // as check does, which then judges the streams one by one
	r.put(se("shop", "a", "1"))
	f.wantEnd(t, "signed by none of the certificates")
	if len(f.has()) != 0 {
		t.Error("a client that is not trusted any more has got resources")
	}
}
