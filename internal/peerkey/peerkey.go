// Package peerkey names the hosts of connections, to count what each takes up. It must not know what is counted.
package peerkey

import "net"

// Of returns the IP address of a host. For IPv6 it is the network of 64 bits.
func Of(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return addr.String()
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() && !ip.IsLoopback() {
		if network, err := ip.Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}
