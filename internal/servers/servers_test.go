package servers

import (
	"net/netip"
	"strings"
	"testing"
)

func rules(t *testing.T, elements ...string) Rules {
	t.Helper()
	r, err := Parse(elements)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSpecialAddressesNeedANetworkOfTheirOwn(t *testing.T) {
	for addr, own := range map[string]string{
		"127.0.0.1": "127.0.0.0/8", "127.9.9.9": "127.9.0.0/16", "::1": "::1", "::ffff:127.0.0.1": "127.0.0.1",
		"169.254.169.254": "169.254.169.254/32", "::ffff:169.254.169.254": "169.254.0.0/16", "fe80::1": "fe80::/10", "fe80::1%eth0": "fe80::1",
		"0.0.0.0": "0.0.0.0", "::": "::", "::ffff:0.0.0.0": "0.0.0.0/8",
	} {
		a := netip.MustParseAddr(addr)
		for name, r := range map[string]Rules{
			"no rules": {}, "all networks": rules(t, "0.0.0.0/0", "::/0"), "every name": rules(t, "*"), "another network": rules(t, "10.0.0.0/8"),
		} {
			for _, host := range []string{addr, "api.example"} { // written so, or resolved to it
				if err := r.Address(host, a); err == nil || !strings.Contains(err.Error(), "allowServers") {
					t.Errorf("%s allows %s as %s: %v", name, host, addr, err)
				}
			}
			if err := r.Host(addr, true); err == nil {
				t.Errorf("%s allows %s behind a proxy", name, addr)
			}
		}
		r := rules(t, own)
		if err := r.Address("api.example", a); err != nil {
			t.Errorf("%s: %v", own, err)
		}
		if err := r.Host(addr, false); err != nil {
			t.Errorf("%s: %v", own, err)
		}
	}
}

func TestAServerNeedsARuleForItsNameOrForItsAddress(t *testing.T) {
	public := netip.MustParseAddr("203.0.113.1")
	for _, tc := range []struct {
		elements      []string
		host          string
		addr          string
		name, proxied bool // whether the name is allowed, alone and behind a proxy
		dialled       bool
	}{
		{nil, "api.example", "10.0.0.1", true, true, true},
		{nil, "203.0.113.1", "203.0.113.1", true, true, true},
		{[]string{"*.example"}, "api.example", "10.0.0.1", true, true, true},
		{[]string{"*.Example"}, "API.example.", "10.0.0.1", true, true, true},
		{[]string{"*.example"}, "api.example.evil", "10.0.0.1", false, false, false},
		{[]string{"*"}, "203.0.113.1", "203.0.113.1", false, false, false},
		{[]string{"10.0.0.0/8"}, "api.example", "10.0.0.1", true, false, true},
		{[]string{"10.0.0.0/8"}, "api.example", "11.0.0.1", true, false, false},
		{[]string{"10.0.0.0/8"}, "10.0.0.1", "10.0.0.1", true, true, true},
		{[]string{"10.0.0.0/8"}, "::ffff:10.0.0.1", "::ffff:10.0.0.1", true, true, true},
		{[]string{"10.0.0.0/8", "*.example"}, "api.example", "11.0.0.1", true, true, true},
		{[]string{"2001:db8::/32"}, "2001:db8::1", "2001:db8::1", true, true, true},
	} {
		r := rules(t, tc.elements...)
		if got := r.Host(tc.host, false) == nil; got != tc.name {
			t.Errorf("%q, %s: %v", tc.elements, tc.host, got)
		}
		if got := r.Host(tc.host, true) == nil; got != tc.proxied {
			t.Errorf("%q, %s behind a proxy: %v", tc.elements, tc.host, got)
		}
		if got := r.Address(tc.host, netip.MustParseAddr(tc.addr)) == nil; got != tc.dialled {
			t.Errorf("%q, %s at %s: %v", tc.elements, tc.host, tc.addr, got)
		}
	}
	if err := rules(t, "a.example").Address("b.example", public); err == nil || !strings.Contains(err.Error(), "allowServers") {
		t.Error(err)
	}
}

func TestElementsThatAreNeitherNetworkNorPatternAreRefused(t *testing.T) {
	for _, text := range []string{"", "10.0.0.1/8", "10.0.0.0/33", "::ffff:10.0.0.0/104", "10.*", "10.0.0.256", "a/b", "https://a", "a:443", "fe80::1%eth0", "a\nb", "ä", "?", "10.0.0.*"} {
		r, err := Parse([]string{text})
		if err == nil {
			t.Errorf("%q is accepted", text)
		}
		if r.Address("a", netip.MustParseAddr("203.0.113.1")) == nil {
			t.Errorf("%q allows a server", text)
		}
	}
}

func TestAHostIsADNSNameOrAnAddress(t *testing.T) {
	for text, want := range map[string]bool{
		"a": true, "a.example.": true, "A_b-1.example": true, "127.0.0.1": true, "::1": true, "fe80::1%eth0": true,
		"": false, "a b": false, "a\r\nQUIT": false, "a..b": false, ".a": false, "a/b": false, `a"b`: false, "[::1]": false, "a:1": false, "ä": false, "fe80::1%a\nb": false,
		strings.Repeat("a", 255): false,
	} {
		if got := IsHost(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
