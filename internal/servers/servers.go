// Package servers decides which servers may be connected to: by names before they are resolved, and by addresses
// after that.
//
// The package has no I/O and must not know who connects.
package servers

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"meshrelay/internal/glob"
)

// Rules are the servers that are allowed. The zero value allows every server but those at special addresses.
type Rules struct {
	given    bool
	networks []netip.Prefix
	names    []string // patterns, folded
}

// special are loopback, link-local and unspecified addresses. A network allows them only where it is within one of
// these: 0.0.0.0/0 does not.
var special = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("::/128"),
}

var (
	nameShape    = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)
	patternShape = regexp.MustCompile(`^(\*|[0-9_.*?-]*[A-Za-z][A-Za-z0-9_.*?-]*)$`)
)

// IsHost reports whether a text is a DNS name or an IP address. An IPv6 address may have a zone.
func IsHost(text string) bool {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Zone() == "" || nameShape.MatchString(addr.Zone())
	}
	return len(text) < 255 && nameShape.MatchString(text)
}

// Parse returns the rules of IP addresses, networks and patterns of DNS names. An element with a mistake allows
// nothing.
func Parse(elements []string) (r Rules, err error) {
	r.given = len(elements) > 0
	for _, one := range elements {
		network, other := netip.ParsePrefix(one)
		if addr, err := netip.ParseAddr(one); err == nil && addr.Zone() == "" {
			network, other = netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()), nil
		}
		switch {
		case other == nil && network != network.Masked():
			err = errors.Join(err, fmt.Errorf("%q has bits after the network: write %s", one, network.Masked()))
		case other == nil && !network.Addr().Is4In6():
			r.networks = append(r.networks, network)
		case other != nil && patternShape.MatchString(one):
			r.names = append(r.names, fold(one))
		default:
			err = errors.Join(err, fmt.Errorf("%q is neither an IP address, nor a network such as 10.0.0.0/8, nor a pattern of DNS names such as *.example.com", one))
		}
	}
	return r, err
}

// fold returns a name in lower case and without the dot of the root.
func fold(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// Host returns why a connection to a host is refused before its name is resolved, nil if it is not. proxied tells
// that a proxy resolves the name, so that nobody calls Address.
func (r Rules) Host(host string, proxied bool) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return r.Address(host, addr)
	}
	if !r.given || r.matches(host) || !proxied && len(r.networks) > 0 {
		return nil
	}
	return fmt.Errorf("no pattern in clusters[].allowServers matches the server %q: add one, if you trust that server", host)
}

// Address returns why a connection to an address of a host is refused, nil if it is allowed.
func (r Rules) Address(host string, addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	least := 0 // bits of a network that allows the address
	for _, s := range special {
		if s.Contains(addr) {
			least = s.Bits()
		}
	}
	switch {
	case slices.ContainsFunc(r.networks, func(n netip.Prefix) bool { return n.Contains(addr) && n.Bits() >= least }):
		return nil
	case least > 0:
		return fmt.Errorf("%s is a loopback, link-local or unspecified address: add it to clusters[].allowServers, if you trust who listens there", addr)
	case !r.given || r.matches(host):
		return nil
	}
	return fmt.Errorf("no element of clusters[].allowServers has %s, the address of %q: add it, if you trust who listens there", addr, host)
}

// matches reports whether a pattern matches a DNS name. No pattern matches an address.
func (r Rules) matches(host string) bool {
	_, err := netip.ParseAddr(host)
	return err != nil && slices.ContainsFunc(r.names, func(pattern string) bool { return glob.Match(pattern, fold(host)) })
}
