// Package loopback tells connections within this host from others. It must not know their rights.
package loopback

import (
	"net"
	"net/netip"
	"strings"
)

// Is reports whether an address of a connection is of this host. 127.0.0.6, the passthrough of an
// Istio sidecar, is not: everybody who reaches the pod comes from there.
func Is(addr net.Addr) bool {
	if addr == nil {
		return false
	}
	return Text(addr.String())
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

// passthrough is InboundPassthroughBindIpv4 of istio. Its counterpart of IPv6, ::6, is no loopback
// address.
var passthrough = netip.AddrFrom4([4]byte{127, 0, 0, 6})
