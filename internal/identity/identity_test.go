package identity

import (
	"crypto/x509"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestPatternsMatchSegmentBySegment(t *testing.T) {
	for _, tc := range []struct {
		pattern, identity string
		want              bool
	}{
		{"spiffe://a.example/ns/x/sa/y", "spiffe://a.example/ns/x/sa/y", true},
		{"spiffe://a.example/ns/x/sa/y", "spiffe://a.example/ns/x/sa/z", false},
		{"spiffe://a.example/ns/x/sa/*", "spiffe://a.example/ns/x/sa/y", true},
		{"spiffe://a.example/ns/x/*", "spiffe://a.example/ns/x/sa/y", false},
		{"spiffe://a.example/ns/*/sa/y", "spiffe://a.example/ns/x/sa/b/sa/y", false},
		{"spiffe://a.example/ns/x/**", "spiffe://a.example/ns/x/sa/y", true},
		{"spiffe://a.example/ns/x/**", "spiffe://a.example/ns/x/sa", true},
		{"spiffe://a.example/ns/x/**", "spiffe://a.example/ns/x", false},
		{"spiffe://a.example/ns/x/**", "spiffe://a.example/ns/xy/sa", false},
		{"spiffe://a.example/**", "spiffe://a.example/ns/x/sa/y", true},
		{"spiffe://a.example/**", "spiffe://b.example/ns/x/sa/y", false},
		{"spiffe://a.example/**", "spiffe://a.example", false},
		{"spiffe://*/**", "spiffe://b.example/x", true},
		{"spiffe://*.example/ns/?/sa-*", "spiffe://b.example/ns/x/sa-1", true},
		{"spiffe://*.example/ns/?/sa-*", "spiffe://b.example/ns/xx/sa-1", false},
		{"spiffe://*/**", "dns:b.example", false},
		{"dns:relay.example", "dns:relay.example", true},
		{"dns:Relay.example", "dns:relay.example", true},
		{"dns:*.example", "dns:relay.example", true},
		{"dns:*.example", "dns:a.relay.example", false},
		{"dns:relay.example", "spiffe://relay.example/x", false},
		{"dns:*", "dns:localhost", true},
	} {
		p, err := Parse(tc.pattern)
		if err != nil {
			t.Errorf("%s: %v", tc.pattern, err)
		} else if got := p.Matches(tc.identity); got != tc.want {
			t.Errorf("%s matches %s: %t", tc.pattern, tc.identity, got)
		}
	}
}

// TestAPatternThatMatchesNothingIsAnError: it names what to write instead.
func TestAPatternThatMatchesNothingIsAnError(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                                       `empty: write a SPIFFE ID such as`,
		"relay.example":                          `write "dns:relay.example"`,
		"*.example.":                             `write "dns:*.example"`,
		"*":                                      `write "spiffe://*/**" for every SPIFFE ID`,
		"cluster.local/ns/x":                     `write "spiffe://cluster.local/ns/x"`,
		"SPIFFE://a/b":                           `write "spiffe://a/b"`,
		"https://a/b":                            `identities are SPIFFE IDs`,
		"spiffe://a":                             `write "spiffe://a/**"`,
		"spiffe://*":                             `write "spiffe://*/**"`,
		"spiffe://a/":                            `write "spiffe://a/**"`,
		"spiffe:///b":                            `write "spiffe://*/b"`,
		"spiffe://**/b":                          `write "spiffe://*/b"`,
		"spiffe://A.example/b":                   `write "spiffe://a.example/b"`,
		"spiffe://a/b/":                          `a SPIFFE ID can not have the segment ""`,
		"spiffe://a//b":                          `a SPIFFE ID can not have the segment ""`,
		"spiffe://a/b/../c":                      `a SPIFFE ID can not have the segment ".."`,
		"spiffe://a/**/c":                        `** must be a whole segment, and the last one`,
		"spiffe://a/b**":                         `** must be a whole segment, and the last one`,
		"spiffe://a/b?x=1":                       `characters that a SPIFFE ID can not have`,
		"spiffe://a:80/b":                        `characters that a SPIFFE ID can not have`,
		"spiffe://a/ü":                           `characters that a SPIFFE ID can not have`,
		"dns:":                                   `is not a label of a DNS name`,
		"dns:a..b":                               `is not a label of a DNS name`,
		"dns:a.b.":                               `is not a label of a DNS name`,
		"dns:a/b":                                `is not a label of a DNS name`,
		"dns:**.example":                         `** is only for SPIFFE IDs`,
		"DNS:a.b":                                `write "dns:a.b"`,
		"dns:" + strings.Repeat("a.", 150) + "b": `more than the 253 bytes`,
		"spiffe://a/" + strings.Repeat("a/", 1100):  `more than the 2048 bytes`,
		"dns:" + strings.Repeat("a", 64) + ".local": `is not a label of a DNS name`,
	} {
		if _, err := Parse(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", pattern, err, want)
		}
	}
}

func TestIdentitiesAreSPIFFEIDsAsGoSPIFFEParsesThem(t *testing.T) {
	for name, tc := range map[string]struct {
		uris, dns []string
		want      string // the identities; an error if it begins with !
	}{
		"a SPIFFE ID":                {[]string{"spiffe://a.example/ns/x/sa/y"}, nil, "spiffe://a.example/ns/x/sa/y"},
		"a SPIFFE ID and names":      {[]string{"spiffe://a.example/x"}, []string{"Relay.Example", "*.example"}, "spiffe://a.example/x dns:relay.example"},
		"a name":                     {nil, []string{"relay.example"}, "dns:relay.example"},
		"another URI":                {[]string{"https://a.example/x"}, []string{"relay.example"}, "dns:relay.example"},
		"two SPIFFE IDs":             {[]string{"spiffe://a.example/x", "spiffe://b.example/y"}, nil, "!must be the only URI"},
		"a SPIFFE ID and a URI":      {[]string{"https://a.example/x", "spiffe://b.example/y"}, nil, "!must be the only URI"},
		"segments that lead up":      {[]string{"spiffe://a.example/ns/tenant/sa/x/../../ns/evil"}, nil, "!not a SPIFFE ID"},
		"escapes":                    {[]string{"spiffe://a.example/ns/%2e%2e/x"}, nil, "!not a SPIFFE ID"},
		"a trust domain in capitals": {[]string{"spiffe://A.example/x"}, nil, "!not a SPIFFE ID"},
		"no path":                    {[]string{"spiffe://a.example"}, nil, "!has no path"},
		"a port":                     {[]string{"spiffe://a.example:80/x"}, nil, "!not a SPIFFE ID"},
		"another case":               {[]string{"SPIFFE://a.example/x", "https://b"}, nil, "!must be the only URI"},
		"nothing":                    {nil, nil, ""},
	} {
		cert := &x509.Certificate{DNSNames: tc.dns}
		for _, text := range tc.uris {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			cert.URIs = append(cert.URIs, u)
		}
		id, names, err := Of(cert)
		if !id.IsZero() {
			names = slices.Insert(names, 0, id.String())
		}
		if problem, bad := strings.CutPrefix(tc.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), problem) || len(names) > 0 {
				t.Errorf("%s: %v %v", name, names, err)
			}
		} else if got := strings.Join(names, " "); err != nil || got != tc.want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

// FuzzPattern: what Parse takes matches something, and nothing that is no identity.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{"spiffe://a/b", "spiffe://*/**", "dns:*.a", "a.b", "spiffe://a/*b?"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		sample := strings.NewReplacer("**", "x/y", "*", "x", "?", "x").Replace(text)
		if p.IsDNS() {
			sample = dns + strings.ToLower(strings.TrimPrefix(sample, dns))
		}
		if !p.Matches(sample) {
			t.Errorf("%q does not match %q", text, sample)
		}
		if p.Matches("") || p.Matches("x") || p.Matches("spiffe://x") {
			t.Errorf("%q matches what is no identity", text)
		}
	})
}
