package identity

import (
	"fmt"
	"regexp"
	"strings"

	"meshrelay/internal/glob"
)

const (
	maxID    = 2048 // bytes of a SPIFFE ID
	maxName  = 253  // bytes of a DNS name
	maxLabel = 63
	maxTrust = 255 // bytes of a trust domain
)

var (
	segments = regexp.MustCompile(`^[-A-Za-z0-9._*?]+$`)
	labels   = regexp.MustCompile(`^[-A-Za-z0-9_*?]+$`)
)

// Pattern matches identities part by part. Parts are the trust domain and segments of a SPIFFE ID, or the labels
// of a DNS name. In a part, * stands for any text and ? for one character. A last segment ** stands for one or
// more segments.
type Pattern struct {
	scheme string // spiffe or dns
	parts  []string
	rest   bool // the last segment is **
}

// Parse parses a pattern. For a pattern that no identity can match, the error has the right spelling.
func Parse(text string) (Pattern, error) {
	switch {
	case strings.HasPrefix(text, dns):
		return parseDNS(text)
	case strings.HasPrefix(text, spiffe):
		return parseSPIFFE(text)
	case text == "":
		return Pattern{}, fmt.Errorf("empty: write a SPIFFE ID such as %q, or a DNS name such as %q", spiffe+"cluster.local/ns/istio-system/sa/istiod", dns+"relay.example")
	case strings.Trim(text, "*") == "":
		return Pattern{}, fmt.Errorf("%q is neither a SPIFFE ID nor a DNS name: write %q for every SPIFFE ID", text, spiffe+"*/**")
	case len(text) >= len(spiffe) && strings.EqualFold(text[:len(spiffe)], spiffe):
		return Pattern{}, fmt.Errorf("%q matches nothing, as SPIFFE IDs begin with spiffe://: write %q", text, spiffe+text[len(spiffe):])
	case len(text) >= len(dns) && strings.EqualFold(text[:len(dns)], dns):
		return Pattern{}, fmt.Errorf("%q matches nothing, as the word before the colon is lower case: write %q", text, dns+text[len(dns):])
	case strings.Contains(text, "://"):
		return Pattern{}, fmt.Errorf("%q matches nothing: identities are SPIFFE IDs (spiffe://…) and DNS names (dns:…)", text)
	case strings.Contains(text, "/"):
		return Pattern{}, fmt.Errorf("%q is neither a SPIFFE ID nor a DNS name: write %q", text, spiffe+strings.TrimPrefix(text, "/"))
	}
	return Pattern{}, fmt.Errorf("%q is a bare name: write %q", text, dns+strings.TrimSuffix(text, "."))
}

func parseSPIFFE(text string) (Pattern, error) {
	parts := strings.Split(strings.TrimPrefix(text, spiffe), "/")
	p := Pattern{scheme: spiffe, parts: parts}
	trust := parts[0]
	switch {
	case len(text) > maxID:
		return p, fmt.Errorf("matches nothing: it has more than the %d bytes of a SPIFFE ID", maxID)
	case trust == "" || len(trust) > maxTrust || strings.Contains(trust, "**"):
		return p, fmt.Errorf("%q has no trust domain: write %q for every trust domain", text, spiffe+"*/"+strings.Join(parts[1:], "/"))
	case len(parts) == 1 || len(parts) == 2 && parts[1] == "":
		return p, fmt.Errorf("%q matches nothing, as the identities of clients have a path: write %q", text, spiffe+trust+"/**")
	case strings.ToLower(trust) != trust:
		return p, fmt.Errorf("%q matches nothing, as trust domains are lower case: write %q", text, spiffe+strings.ToLower(trust)+"/"+strings.Join(parts[1:], "/"))
	}
	for i, part := range parts {
		switch {
		case part == "**" && i == len(parts)-1:
			p.parts, p.rest = parts[:i], true
		case strings.Contains(part, "**"):
			return p, fmt.Errorf("%q matches nothing: ** must be a whole segment, and the last one", text)
		case part == "" || part == "." || part == "..":
			return p, fmt.Errorf("%q matches nothing, as a SPIFFE ID can not have the segment %q", text, part)
		case !segments.MatchString(part):
			return p, fmt.Errorf("%q matches nothing, as %q has characters that a SPIFFE ID can not have: use letters, digits, dots, dashes, underscores, * and ?", text, part)
		}
	}
	return p, nil
}

func parseDNS(text string) (Pattern, error) {
	name := strings.TrimPrefix(text, dns)
	p := Pattern{scheme: dns, parts: strings.Split(strings.ToLower(name), ".")}
	if len(name) > maxName {
		return p, fmt.Errorf("matches nothing: it has more than the %d bytes of a DNS name", maxName)
	}
	for _, label := range p.parts {
		switch {
		case strings.Contains(label, "**"):
			return p, fmt.Errorf("%q: ** is only for SPIFFE IDs: write * for one label of a DNS name", text)
		case len(label) > maxLabel || !labels.MatchString(label):
			return p, fmt.Errorf("%q matches nothing, as %q is not a label of a DNS name: use letters, digits, dashes, underscores, * and ?", text, label)
		}
	}
	return p, nil
}

// Matches reports whether the pattern matches an identity.
func (p Pattern) Matches(identity string) bool {
	rest, ok := strings.CutPrefix(identity, p.scheme)
	if !ok || p.scheme == "" {
		return false
	}
	separator := "/"
	if p.scheme == dns {
		separator = "."
	}
	parts := strings.Split(rest, separator)
	if len(parts) < len(p.parts) || len(parts) == len(p.parts) == p.rest {
		return false
	}
	for i, part := range p.parts {
		if !glob.Match(part, parts[i]) {
			return false
		}
	}
	return true
}

// IsDNS reports whether the pattern is for DNS names.
func (p Pattern) IsDNS() bool { return p.scheme == dns }

// MatchesTrustDomain reports whether the pattern can match SPIFFE IDs of a trust domain.
func (p Pattern) MatchesTrustDomain(domain string) bool {
	return p.scheme == spiffe && glob.Match(p.parts[0], domain)
}
