package ui

import (
	"cmp"
	"net"
	"net/netip"
	"strings"
)

// The addresses that commands use by default.
const (
	usualAdmin = "127.0.0.1:15014"
	usualXDS   = "127.0.0.1:15010"
)

// here returns a command with the address of this relay, unless it is the default or the command has it already.
func (p *Pages) here(command string) string {
	words := strings.Fields(command)
	if len(words) < 2 || words[0] != "relay" {
		return command
	}
	flag, address := " --admin ", reach(p.data.Admin, usualAdmin)
	if words[1] == "get" {
		flag, address = " --server ", reach(p.data.XDS, usualXDS)
	}
	if address == "" || strings.Contains(command, flag) {
		return command
	}
	return command + flag + word(address)
}

// reach returns the address by which a listen address is reached from the relay's host. It is empty for the usual
// address and for an invalid one.
func reach(address, usual string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "0" {
		return ""
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() || host == "localhost" {
		host = ""
	}
	if at := net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port); at != usual {
		return at
	}
	return ""
}
