package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

func TestDebugNeedsLoopbackOrACertificate_D4(t *testing.T) {
	addr := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	verified := credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}}
	for name, tc := range map[string]struct {
		peer    *peer.Peer
		limited bool
		want    bool
	}{
		"loopback":                       {&peer.Peer{Addr: addr("127.0.0.1")}, true, true},
		"loopback of IPv6":               {&peer.Peer{Addr: addr("::1")}, false, true},
		"elsewhere, plaintext":           {&peer.Peer{Addr: addr("10.0.0.1")}, false, false},
		"elsewhere, without certificate": {&peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: credentials.TLSInfo{}}, false, false},
		"elsewhere, with certificate":    {&peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, false, true},
		"elsewhere, limited to a view":   {&peer.Peer{Addr: addr("10.0.0.1"), AuthInfo: verified}, true, false},
		"no address":                     {&peer.Peer{}, false, false},
	} {
		if got := mayDebug(tc.peer, tc.limited); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
