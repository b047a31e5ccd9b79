package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// maxHostPatterns bounds the patterns of a list.
const maxHostPatterns = 10_000

// Hosts selects resources by the hosts that they claim (federation.Claims). A pattern is a DNS name, *.DOMAIN for all
// names below a domain, or * for all. Upper case does not count.
type Hosts struct {
	// Include are patterns; each host of a resource must be covered by one. Empty: all hosts are.
	Include []string `yaml:"include,omitempty"`
	// Exclude are patterns; no host of a resource may have a name in common with one.
	Exclude []string `yaml:"exclude,omitempty"`
}

// hostPatterns is a compiled list of patterns. A look-up costs one map access for each label of a host.
type hostPatterns struct {
	// texts are the patterns as in the config, by their normal form without the *: "a.b", ".a.b", "".
	texts map[string]string
	// reversed are the normal forms, each reversed, sorted.
	reversed []string
}

// newHostPatterns compiles patterns. It adds a mistake for each one that is no pattern, or that another one covers.
func newHostPatterns(patterns []string, field string, mistakes *federation.Mistakes) hostPatterns {
	p := hostPatterns{texts: map[string]string{}}
	if len(patterns) > maxHostPatterns {
		mistakes.Add(fmt.Errorf("%d patterns: want %d at most", len(patterns), maxHostPatterns), "%s", field)
		return p
	}
	for i, pattern := range patterns {
		if err := checkHostPattern(pattern); err != nil {
			mistakes.Add(err, "%s[%d]", field, i)
			continue
		}
		host := strings.TrimPrefix(federation.NormalHost(pattern), "*")
		if other, twice := p.texts[host]; twice {
			mistakes.Add(fmt.Errorf("%q is there already, as %q: leave it out", pattern, other), "%s[%d]", field, i)
		}
		p.texts[host] = pattern
		p.reversed = append(p.reversed, reverse(host))
	}
	slices.Sort(p.reversed)
	for i, pattern := range patterns {
		if other := p.above(federation.NormalHost(pattern)); other != "" {
			mistakes.Add(fmt.Errorf("%q has all hosts of %q: leave one of them out", other, pattern), "%s[%d]", field, i)
		}
	}
	return p
}

// hostCharacters are those of DNS names.
const hostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

func checkHostPattern(p string) error {
	name := strings.TrimPrefix(p, "*.")
	switch {
	case p == "":
		return errors.New("the pattern is empty")
	case p == federation.AnyHost:
		return nil
	case name == "" || len(p) > 255 || strings.Trim(name, hostCharacters) != "" || strings.Contains("."+name+".", ".."):
		return fmt.Errorf("pattern %q: want a DNS name, *.DOMAIN for all names below a domain, or *", text.Abbreviate(p))
	}
	return nil
}

// checkHosts adds a mistake where the two lists of hosts let nothing in, or where a pattern excludes nothing.
func (f *Filter) checkHosts(mistakes *federation.Mistakes) {
	h := f.rules.Hosts
	if mistakes.Err() != nil || len(h.Exclude) == 0 {
		return
	}
	if len(h.Include) > 0 && !slices.ContainsFunc(h.Include, func(p string) bool { return f.exclude.covers(federation.NormalHost(p)) == "" }) || f.exclude.covers(federation.AnyHost) != "" {
		mistakes.Add(errors.New("it excludes every host that is included, so that no resource with a host passes: leave a pattern out"), "hosts.exclude")
		return
	}
	for i, p := range h.Exclude {
		if len(h.Include) > 0 && f.include.overlaps(federation.NormalHost(p)) == "" {
			mistakes.Add(fmt.Errorf("%q excludes nothing, as hosts.include has none of its hosts: leave it out", p), "hosts.exclude[%d]", i)
		}
	}
}

// covers returns the pattern that has all names of a host, empty for none. The host is as federation.Claims returns it.
func (p hostPatterns) covers(host string) string {
	name, wild := strings.CutPrefix(host, "*")
	if pattern, ok := p.texts[name]; ok && wild == (name == "" || name[0] == '.') {
		return pattern
	}
	return p.above(host)
}

// above returns the pattern that has all names of a host and more, empty for none.
func (p hostPatterns) above(host string) string {
	name, wild := strings.CutPrefix(host, "*")
	for i := range len(name) {
		if pattern, ok := p.texts[name[i:]]; ok && name[i] == '.' && (i > 0 || !wild) {
			return pattern
		}
	}
	if host == federation.AnyHost {
		return ""
	}
	return p.texts[""]
}

// overlaps returns a pattern that has a name in common with a host, empty for none.
func (p hostPatterns) overlaps(host string) string {
	if pattern := p.covers(host); pattern != "" {
		return pattern
	}
	end, wild := strings.CutPrefix(host, "*")
	if !wild {
		return ""
	}
	end = reverse(end)
	i, _ := slices.BinarySearch(p.reversed, end)
	if i == len(p.reversed) || !strings.HasPrefix(p.reversed[i], end) {
		return ""
	}
	return p.texts[reverse(p.reversed[i])]
}

func reverse(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// judgedAs returns the host by which a claim is judged. A text that is no DNS name, wildcard or IP address may be any host:
// its reader cuts it as it likes (istiod reads "./a.b/c.d" of a Gateway as a.b, and Envoy "a.*" as a prefix).
func judgedAs(host string) string {
	if host != "" && strings.Trim(strings.TrimPrefix(host, "*"), hostCharacters) == "" {
		return host
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	return federation.AnyHost
}

// JudgesHosts reports whether the hosts that a resource claims decide whether it passes.
func (f *Filter) JudgesHosts() bool { return len(f.rules.Hosts.Include)+len(f.rules.Hosts.Exclude) > 0 }

// checkClaims returns whether the hosts that r claims are included and not excluded. It names the first one that is
// not.
func (f *Filter) checkClaims(r *mirror.Resource, entries func(mirror.Key) []string) Verdict {
	h := f.rules.Hosts
	if !f.JudgesHosts() {
		return Verdict{}
	}
	for _, host := range federation.ClaimsUnder(r, f.rules.Domain, []string{federation.AnyHost}, entries) {
		if pattern := f.exclude.overlaps(judgedAs(host)); pattern != "" {
			return leftOut(ReasonHosts, func() string {
				return fmt.Sprintf("it claims host %q, and hosts.exclude has %q", text.Abbreviate(host), pattern)
			})
		}
		if len(h.Include) > 0 && f.include.covers(judgedAs(host)) == "" {
			return leftOut(ReasonHosts, func() string {
				return fmt.Sprintf("it claims host %q, which hosts.include does not cover: %s", text.Abbreviate(host), list(h.Include))
			})
		}
	}
	return Verdict{}
}
