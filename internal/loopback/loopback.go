// Package loopback recognizes connections from this host. It must not decide their rights.
package loopback

import (
	"net"
	"net/netip"
	"strings"
)

// Is reports whether a connection's address is on this host. 127.0.0.6, the passthrough address of an
// Istio sidecar, does not count: connections from other hosts have it too.
func Is(addr net.Addr) bool {
	return addr != nil && Text(addr.String())
}

// Text is Is for an address host:port.
func Text(hostport string) bool {
	a, err := netip.ParseAddrPort(hostport)
	return err == nil && a.Addr().Unmap().IsLoopback() && a.Addr().Unmap() != passthrough
}

// Host reports whether a host is localhost or a loopback address.
func Host(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && a.Unmap().IsLoopback()
}

// passthrough is InboundPassthroughBindIpv4 of istio. Its IPv6 counterpart, ::6, is not a loopback
// address.
var passthrough = netip.AddrFrom4([4]byte{127, 0, 0, 6})
