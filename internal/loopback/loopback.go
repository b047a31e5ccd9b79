// Package loopback tells connections within this host from others.
package loopback

import (
	"net"
	"net/netip"
	"strings"
)

// Is reports whether an address of a connection is of this host. That of the passthrough of
// an Istio sidecar, 127.0.0.6, is not: behind it is whoever reaches the pod.
func Is(addr net.Addr) bool {
	if addr == nil {
		return false
	}
	return Text(addr.String())
}

// Text reports the same of an address that is written host:port.
func Text(hostport string) bool {
	a, err := netip.ParseAddrPort(hostport)
	return err == nil && a.Addr().Unmap().IsLoopback() && a.Addr().Unmap() != passthrough
}

// Host reports whether the host of an address that somebody has written is this host:
// localhost, or a loopback address.
func Host(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && a.Unmap().IsLoopback()
}

// passthrough is the source of what a sidecar lets pass (InboundPassthroughBindIpv4 of istio).
// Its counterpart of IPv6, ::6, is no loopback address.
var passthrough = netip.AddrFrom4([4]byte{127, 0, 0, 6})
