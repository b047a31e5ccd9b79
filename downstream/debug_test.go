package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// TestDebugIsForWhomTheListenerAllows_D3: by default that is nobody.
func TestDebugIsForWhomTheListenerAllows_D3(t *testing.T) {
	addr := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	from := func(remote, local string) *peer.Peer { return &peer.Peer{Addr: addr(remote), LocalAddr: addr(local)} }
	verified := credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}}
	for name, tc := range map[string]struct {
		debug, view string
		peer        *peer.Peer
		limited     bool
		want        bool
	}{
		"loopback":                         {DebugLoopback, "", from("127.0.0.1", "127.0.0.1"), false, true},
		"loopback of IPv6":                 {DebugLoopback, "", from("::1", "::1"), false, true},
		"loopback, and limited by a view":  {DebugLoopback, "", from("127.0.0.1", "127.0.0.1"), true, false},
		"loopback, and a view is named":    {DebugLoopback, "a", from("127.0.0.1", "127.0.0.1"), false, false},
		"loopback at one end":              {DebugLoopback, "", from("127.0.0.1", "10.0.0.1"), false, false},
		"loopback at the other end":        {DebugLoopback, "", from("10.0.0.1", "127.0.0.1"), false, false},
		"through a sidecar":                {DebugLoopback, "", from("127.0.0.6", "127.0.0.1"), false, false},
		"loopback, but verified is wanted": {DebugVerified, "", from("127.0.0.1", "127.0.0.1"), false, false},
		"loopback, but debug is off":       {DebugOff, "", from("127.0.0.1", "127.0.0.1"), false, false},
		"loopback, and nothing is wanted":  {"", "", from("127.0.0.1", "127.0.0.1"), false, false},
		"plaintext":                        {DebugVerified, "", from("10.0.0.1", "10.0.0.2"), false, false},
		"without certificate":              {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: credentials.TLSInfo{}}, false, false},
		"with certificate":                 {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, false, true},
		"with certificate, limited":        {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, true, false},
		"with certificate, debug is off":   {DebugOff, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, false, false},
		"no address":                       {DebugLoopback, "", &peer.Peer{}, false, false},
	} {
		if got := mayDebug(&Listener{Debug: tc.debug, View: tc.view}, tc.peer, tc.limited); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAViewHidesDebug_D3: a client on the relay's host that is limited to a view does not see who else is there.
func TestAViewHidesDebug_D3(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Listeners = []Listener{
			{Address: "127.0.0.1:0", View: "tenant", Debug: DebugLoopback},
			{Address: "127.0.0.1:0", Debug: DebugLoopback},
		}
		c.Views = []views.View{
			{Name: "tenant", Accepts: func(*mirror.Resource) bool { return false }},
			{Name: "all", Default: true},
		}
	})
	addrs := must(r.server.Addrs(t.Context()))
	r.addr = addrs[0].String()
	s := r.sotw()
	s.send(subscribe(statusType))
	wantCode(t, s.end(), codes.PermissionDenied)
	wantRefused(t, r, refusal.Debug, 1)
	r.addr = addrs[1].String()
	s = r.sotw()
	s.send(subscribe(statusType))
	if got := s.next().Resources; len(got) != 1 {
		t.Errorf("%v, want itself", got)
	}
}

// TestStatusIsAskedForByFew: until their streams end.
func TestStatusIsAskedForByFew(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Listeners[0].Debug = DebugLoopback })
	var all []*sotwStream
	for range maxStatusStreams {
		s := r.sotw()
		for range 2 {
			s.send(subscribe(statusType))
			s.next()
		}
		all = append(all, s)
	}
	s := r.delta()
	s.send(subscribeDelta(statusType))
	wantCode(t, s.end(), codes.ResourceExhausted)
	wantRefused(t, r, refusal.Debug, 1)
	all[0].cancel()
	r.eventually(t, "a stream has left", func() bool { return len(r.server.connections()) == maxStatusStreams-1 })
	s = r.delta()
	s.send(subscribeDelta(statusType))
	if got := s.next(); len(got.Resources) != maxStatusStreams {
		t.Errorf("%v", got)
	}
}

// TestAStreamThatAskedForStatusEnds: in a while, as nobody tells whether the answer was read.
func TestAStreamThatAskedForStatusEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) {
			c.Listeners[0].Debug, c.timeouts.status = DebugLoopback, 50*time.Millisecond
		})
		s := r.sotw()
		s.send(subscribe(statusType))
		s.next()
		wantCode(t, s.end(), codes.DeadlineExceeded)
		r.eventually(t, "its place is free", func() bool { return r.server.statusStreams.TryAcquire(maxStatusStreams) })
	})
}

// TestStatusIsNotSentAfterTheReloadThatForbidsIt: it was asked for before.
func TestStatusIsNotSentAfterTheReloadThatForbidsIt(t *testing.T) {
	c := &conn{server: &Server{}, asksStatus: true, view: &view{}, rule: &views.Rule{View: views.View{Accepts: func(*mirror.Resource) bool { return true }}}}
	if err := c.sendStatus(); !errors.Is(err, errOutdated) {
		t.Error(err)
	}
}

// TestOtherDebugTypesHaveNoResources_D2: the relay has no Envoy.
func TestOtherDebugTypesHaveNoResources_D2(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Listeners[0].Debug = DebugLoopback })
	r.put(se("shop", "a", "a"))
	for _, typeURL := range []string{"istio.io/debug", "istio.io/debug/config_dump"} {
		s := r.sotw()
		req := subscribe(typeURL)
		req.ResourceNames = []string{"configz"}
		s.send(req)
		if got := s.next(); len(got.Resources) > 0 {
			t.Errorf("%s: %v", typeURL, got)
		}
	}
}

func TestStatusTellsWhatAClientHas_D1_S6(t *testing.T) {
	sent := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := syncStatus(ClientStatus{NodeID: "istiod", ClusterID: "c1", Namespace: "istio-system", Types: []TypeStatus{
		{TypeURL: meshURL, SentNonce: "n0", SentVersion: "v0", SentAt: sent, Synced: true},
		{TypeURL: drV1, SentNonce: "n2", AckedNonce: "n1", SentVersion: "v2", SentAt: sent},
		{TypeURL: vsV1},
		{TypeURL: seV1, SentNonce: "n4", SentVersion: "v4", SentAt: sent, LastNACK: "no such\xff host"},
	}})
	want := &statusv3.ClientConfig{}
	if err := protojson.Unmarshal([]byte(`{"node": {"id": "istiod", "metadata": {"CLUSTER_ID": "c1", "NAMESPACE": "istio-system"}}, "genericXdsConfigs": [
		{"typeUrl": "core/v1alpha1/MeshConfig", "versionInfo": "v0", "lastUpdated": "2026-01-02T03:04:05Z", "configStatus": "SYNCED"},
		{"typeUrl": "networking.istio.io/v1/DestinationRule", "versionInfo": "v2", "lastUpdated": "2026-01-02T03:04:05Z", "configStatus": "STALE"},
		{"typeUrl": "networking.istio.io/v1/VirtualService", "configStatus": "NOT_SENT"},
		{"typeUrl": "networking.istio.io/v1/ServiceEntry", "versionInfo": "v4", "lastUpdated": "2026-01-02T03:04:05Z", "configStatus": "ERROR", "errorState": {"details": "no such� host"}}
	]}`), want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}
