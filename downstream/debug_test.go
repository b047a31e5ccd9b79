package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"meshrelay/downstream/views"
	"meshrelay/internal/identity"
	"meshrelay/mirror"
)

// TestDebugIsForWhomTheListenerAllows_D4: by default that is nobody.
func TestDebugIsForWhomTheListenerAllows_D4(t *testing.T) {
	addr := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	from := func(remote, local string) *peer.Peer { return &peer.Peer{Addr: addr(remote), LocalAddr: addr(local)} }
	verified := credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}}
	for name, tc := range map[string]struct {
		debug, view string
		peer        *peer.Peer
		limited     bool
		want        bool
		names       []string
	}{
		"loopback":                         {DebugLoopback, "", from("127.0.0.1", "127.0.0.1"), false, true, nil},
		"loopback of IPv6":                 {DebugLoopback, "", from("::1", "::1"), false, true, nil},
		"loopback, and limited by a view":  {DebugLoopback, "", from("127.0.0.1", "127.0.0.1"), true, false, nil},
		"loopback, and a view is named":    {DebugLoopback, "a", from("127.0.0.1", "127.0.0.1"), false, false, nil},
		"loopback at one end":              {DebugLoopback, "", from("127.0.0.1", "10.0.0.1"), false, false, nil},
		"loopback at the other end":        {DebugLoopback, "", from("10.0.0.1", "127.0.0.1"), false, false, nil},
		"through a sidecar":                {DebugLoopback, "", from("127.0.0.6", "127.0.0.1"), false, false, nil},
		"loopback, but verified is wanted": {DebugVerified, "", from("127.0.0.1", "127.0.0.1"), false, false, nil},
		"loopback, but debug is off":       {DebugOff, "", from("127.0.0.1", "127.0.0.1"), false, false, nil},
		"loopback, and nothing is wanted":  {"", "", from("127.0.0.1", "127.0.0.1"), false, false, nil},
		"plaintext":                        {DebugVerified, "", from("10.0.0.1", "10.0.0.2"), false, false, nil},
		"without certificate":              {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: credentials.TLSInfo{}}, false, false, nil},
		"with certificate":                 {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, false, true, nil},
		"with a token":                     {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: credentials.TLSInfo{}}, false, true, []string{"jwt:corp/ann"}},
		"with a token, limited":            {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: credentials.TLSInfo{}}, true, false, []string{"jwt:corp/ann"}},
		"with certificate, limited":        {DebugVerified, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, true, false, nil},
		"with certificate, debug is off":   {DebugOff, "", &peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, false, false, nil},
		"no address":                       {DebugLoopback, "", &peer.Peer{}, false, false, nil},
	} {
		if got := mayDebug(&Listener{Debug: tc.debug, View: tc.view}, tc.peer, identity.Identity{Names: tc.names}, tc.limited); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// everything is a Debugger that shows what must not be shown.
type everything struct{}

func (everything) Handle(string) ([]byte, error)        { return []byte("bank/secret"), nil }
func (everything) SyncStatus() []*statusv3.ClientConfig { return nil }
func (everything) Begin() (func(), error)               { return func() {}, nil }

// TestAViewOnLoopbackHidesDebug_D4: a client on the relay's host that is limited to a view sees
// no more by the debug types.
func TestAViewOnLoopbackHidesDebug_D4(t *testing.T) {
	r := startRelay(t, true, func(c *Config, d *Deps) {
		d.Debug = everything{}
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
	for i, want := range []string{debugNotAllowed, "bank/secret"} {
		r.addr = addrs[i].String()
		s := r.sotw()
		s.send(&discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: debugType, ResourceNames: []string{"configz"}})
		if got := string(s.next().Resources[0].Value); got != want {
			t.Errorf("listener %d answers %s, want %s", i, got, want)
		}
	}
}
