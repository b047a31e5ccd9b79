package downstream

import (
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
)

// TestOnePeerLeavesStreamsForOthers: three quarters of them are its own.
func TestOnePeerLeavesStreamsForOthers(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxStreams = 4 })
	var held []*deltaStream
	for range 3 {
		d := r.delta()
		d.send(subscribeDelta(seV1))
		d.next()
		held = append(held, d)
	}
	end := r.delta().end()
	wantCode(t, end, codes.ResourceExhausted)
	if !strings.Contains(end.Error(), "no more of one peer") {
		t.Errorf("the client is told %q", end)
	}
	wantRefused(t, r, refusal.Peer, 1)
	other := r.delta(r.from("127.0.0.2"))
	other.send(subscribeDelta(seV1))
	other.next()
	held[0].cancel()
	r.eventually(t, "one has left", func() bool { return r.streams() == 3 })
	again := r.delta()
	again.send(subscribeDelta(seV1))
	again.next()
}

// TestOneAddressLeavesConnectionsForOthers: three quarters of them are its own.
func TestOneAddressLeavesConnectionsForOthers(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxConnections = 4 })
	dial := func() net.Conn { return r.raw("127.0.0.1") }
	held := []net.Conn{dial(), dial(), dial()}
	r.eventually(t, "they are in", func() bool { return r.connections() == 3 })
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d from a connection over the limit", n)
	}
	wantRefused(t, r, refusal.Peer, 1)
	other := r.delta(r.from("127.0.0.2"))
	other.send(subscribeDelta(seV1))
	other.next()
	other.cancel()
	held[0].Close()
	r.eventually(t, "one has left", func() bool { return r.connections() == 3 })
	again := r.delta()
	again.send(subscribeDelta(seV1))
	again.next()
	r.eventually(t, "as many are counted as are in", func() bool {
		byPeer := map[string]int{}
		for _, p := range r.server.Peers() {
			byPeer[p.Peer] = p.Connections
		}
		return byPeer["127.0.0.1"] == 3 && byPeer["127.0.0.2"] == 1
	})
}

// TestOnePeersStreamsDoNotDelayThoseOfOthers: it waits for its own share.
func TestOnePeersStreamsDoNotDelayThoseOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.NewStreamsPerSecond = 8 })
		for range 40 {
			r.delta().send(subscribeDelta(seV1))
		}
		r.eventually(t, "some are refused", func() bool { return refusals(r, refusal.Rate) > 0 })
		other := r.delta(r.from("127.0.0.2"))
		other.send(subscribeDelta(seV1))
		other.next()
	})
}

// TestPeerIsTheIdentityOrElseTheAddress: of IPv6, the network that one host may have to itself.
func TestPeerIsTheIdentityOrElseTheAddress(t *testing.T) {
	tcp := func(ip string) *net.TCPAddr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1234} }
	leaf := &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "td", Path: "/a"}}}
	verified := credentials.TLSInfo{}
	verified.State.VerifiedChains = [][]*x509.Certificate{{leaf}}
	for want, p := range map[string]*peer.Peer{
		"10.0.0.1":             {Addr: tcp("10.0.0.1")},
		"10.0.0.2":             {Addr: tcp("::ffff:10.0.0.2")},
		"2001:db8:1:2::/64":    {Addr: tcp("2001:db8:1:2:3:4:5:6")},
		"::1":                  {Addr: tcp("::1")},
		"spiffe://td/a":        {Addr: tcp("10.0.0.1"), AuthInfo: verified},
		"10.0.0.3":             {Addr: tcp("10.0.0.3"), AuthInfo: credentials.TLSInfo{}},
		"/run/relay/some.sock": {Addr: &net.UnixAddr{Name: "/run/relay/some.sock"}},
	} {
		if got := peerKey((*TLS)(nil).identify(p), p.Addr); got != want {
			t.Errorf("%v is the peer %q, want %q", p.Addr, got, want)
		}
	}
}

// TestOnePeerLeavesViewsForOthers: the views that its streams have are counted for it, however
// many streams share one; other peers, and clients of a view that it has, are served.
func TestOnePeerLeavesViewsForOthers(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxViewsPerPeer = 2 })
	r.put(east(se("shop", "a", "a")), west(se("shop", "b", "b")), copyOf(se("shop", "c", "c"), "west", "north"))
	as := func(cluster string, opts ...grpc.DialOption) *deltaStream {
		d := r.delta(opts...)
		d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node("CLUSTER_ID", cluster), TypeUrl: seV1})
		return d
	}
	served := func(d *deltaStream) *deltaStream {
		t.Helper()
		d.next()
		return d
	}
	first, second := served(as("east")), served(as("east"))
	served(as("west"))
	end := as("north").end()
	wantCode(t, end, codes.ResourceExhausted)
	if !strings.Contains(end.Error(), "no more of one peer") {
		t.Errorf("the client is told %q", end)
	}
	if made := as("made-up").end(); made == nil || made.Error() != end.Error() {
		t.Errorf("of a cluster that there is not, the client is told %q", made)
	}
	wantRefused(t, r, refusal.Views, 2)
	served(r.deltaAs(seV1)) // of the view of everything
	served(as("west"))
	served(as("north", r.from("127.0.0.2")))
	counted := func() (n int) {
		r.server.views.mu.Lock()
		defer r.server.views.mu.Unlock()
		r.server.admission.Each(func(p *admit.Peer, _, _, _ int) {
			if p.Name == "127.0.0.1" {
				n = p.Views
			}
		})
		return n
	}
	first.cancel()
	r.eventually(t, "a stream of the view has left", func() bool { return r.streams() == 5 })
	if n := counted(); n != 2 {
		t.Errorf("%d views are counted", n)
	}
	second.cancel()
	r.eventually(t, "the view has left", func() bool { return counted() == 1 })
	served(as("north"))
	// Whom a reload moves keeps being counted, for what is shown to it now.
	if err := r.server.Reload(t.Context(), []views.View{{Name: "all", Default: true}}, Limits{MaxViewsPerPeer: 1}, nil); err != nil {
		t.Fatal(err)
	}
	if n := counted(); n != 2 {
		t.Errorf("%d views are counted after the reload", n)
	}
	r.stop()
	r.server.admission.Each(func(p *admit.Peer, connections, streams, bytes int) {
		if p.Views != 0 || connections != 0 || streams != 0 || bytes != 0 {
			t.Errorf("%s has %d views, %d connections and %d streams at the end", p.Name, p.Views, connections, streams)
		}
	})
}

// TestStreamWithoutARequestEnds: it holds a place that others need.
func TestStreamWithoutARequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.timeouts.first = time.Second })
		good := r.delta()
		good.send(subscribeDelta(seV1))
		good.next()
		health := r.delta()
		health.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: healthType})
		for _, d := range []*deltaStream{r.delta(), health} {
			end := d.end()
			wantCode(t, end, codes.DeadlineExceeded)
			if !strings.Contains(end.Error(), "no request") {
				t.Errorf("the client is told %q", end)
			}
		}
		wantRefused(t, r, refusal.Silent, 2)
		r.put(se("shop", "a", "a"))
		good.next()
	})
}

// TestConnectionWithoutAStreamEnds: and one with a stream does not.
func TestConnectionWithoutAStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.timeouts.idle = 500 * time.Millisecond })
		good := r.delta()
		good.send(subscribeDelta(seV1))
		good.next()
		idle := r.delta()
		idle.send(subscribeDelta(seV1))
		idle.next()
		idle.cancel()
		r.eventually(t, "one is left", func() bool { return r.connections() == 1 })
		r.put(se("shop", "a", "a"))
		good.next()
	})
}
