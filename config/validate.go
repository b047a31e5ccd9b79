package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"

	"meshrelay/internal/loopback"
	"meshrelay/internal/yamlpos"
	"meshrelay/mirror"
)

var (
	nameShape = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	idShape   = regexp.MustCompile(`^[-_.A-Za-z0-9]{1,253}$`)
)

// validator collects what is wrong with a config.
type validator struct {
	name  string
	lines map[string]int // of each field that the file has; "" is the file
	wrong []string       // fields that were reported
	errs  *multierror.Error
}

// mistake is one thing that is wrong.
type mistake struct {
	file        string
	line        int
	field, text string
}

func (m *mistake) Error() string {
	where := fmt.Sprintf("%s:%d: ", m.file, m.line)
	if m.field != "" {
		where += m.field + ": "
	}
	return where + m.text
}

func byLine(a, b error) int {
	var x, y *mistake
	if errors.As(a, &x) && errors.As(b, &y) {
		return x.line - y.line
	}
	return 0
}

// note records the line of a field.
func (v *validator) note(field string, line int) {
	if !v.noted(field) {
		v.lines[field] = line
	}
}

func (v *validator) noted(field string) bool {
	_, ok := v.lines[field]
	return ok
}

// errorf reports a mistake in a field, with the line that it, or what encloses it,
// stands on. Of a field, what encloses it and what it encloses, only the first mistake
// is reported: the others may well follow from it.
func (v *validator) errorf(field, format string, args ...any) {
	if v.reported(field) {
		return
	}
	if field != "" {
		v.wrong = append(v.wrong, field)
	}
	v.errs = multierror.Append(v.errs, &mistake{v.name, v.line(field), field, fmt.Sprintf(format, args...)})
}

// reported reports whether there is a mistake in a field, in what encloses it or in
// what it encloses.
func (v *validator) reported(field string) bool {
	return slices.ContainsFunc(v.wrong, func(w string) bool { return encloses(w, field) || encloses(field, w) })
}

func encloses(outer, inner string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// syntaxError reports a file that is not YAML.
func (v *validator) syntaxError(e *yamlpos.SyntaxError) {
	v.lines[""] = e.Line
	v.errorf("", "%s", e.Msg)
}

// mistyped reports whether the whole file is not what a config can be made from.
func (v *validator) mistyped() bool { return v.errs != nil && len(v.wrong) == 0 }

func (v *validator) line(field string) int {
	for {
		if line, ok := v.lines[field]; ok {
			return line
		}
		i := strings.LastIndexAny(field, ".[")
		if i < 0 {
			return max(v.lines[""], 1)
		}
		field = field[:i]
	}
}

func (v *validator) config(c *Config) {
	v.fields(c)
	if net.ParseIP(c.Node.IP) == nil {
		v.errorf("node.ip", "%q is not an IP address", c.Node.IP)
	}
	if !nameShape.MatchString(c.Node.Namespace) {
		v.errorf("node.namespace", "%q is not a namespace", c.Node.Namespace)
	}
	v.id("node.id", c.Node.ID)
	if c.Node.ClusterID != "" {
		v.id("node.clusterID", c.Node.ClusterID)
	}
	if c.Node.Revision != "" && !nameShape.MatchString(c.Node.Revision) {
		v.errorf("node.revision", "%q is not a revision: it is written as in the label istio.io/rev", c.Node.Revision)
	}
	if len(c.Upstreams) == 0 {
		v.errorf("upstreams", "there must be at least one: add an xds or a file upstream")
	}
	for i, u := range c.Upstreams {
		at := fmt.Sprintf("upstreams[%d]", i)
		v.upstream(at, u)
		if n := slices.IndexFunc(c.Upstreams[:i], func(o Upstream) bool { return o.Name == u.Name }); n >= 0 {
			v.errorf(at+".name", "%q is the name of upstreams[%d] already: names must differ", u.Name, n)
		}
	}
	v.tokens(c.Upstreams)
	v.merges(c.Merge)
	v.views(c)
	v.listeners(c)
	if c.Provenance.Relay != c.Node.ID {
		v.id("provenance.relay", c.Provenance.Relay)
	}
	if len(c.Downstream.Listeners) == 0 {
		v.errorf("downstream.listeners", "there must be at least one: add an address to serve on")
	}
	if c.Push.DebounceMax < c.Push.DebounceAfter {
		v.errorf("push.debounceMax", "%v is less than debounceAfter, which is %v", c.Push.DebounceMax.D(), c.Push.DebounceAfter.D())
	}
	v.address("admin.address", c.Admin.Address, 0)
	for i, l := range c.Downstream.Listeners {
		if collide(l.Address, c.Admin.Address) {
			v.errorf("admin.address", "%q is the address of downstream.listeners[%d] already: choose another port", c.Admin.Address, i)
		}
	}
	if !c.Admin.AllowInsecure && !onLoopback(c.Admin.Address) {
		v.errorf("admin.address", "%q is not a loopback address: listen on 127.0.0.1, or set admin.allowInsecure: true", c.Admin.Address)
	}
	v.socket(c)
}

func (v *validator) upstream(at string, u Upstream) {
	v.label(at+".name", u.Name)
	if u.ClusterID != u.Name {
		v.id(at+".clusterID", u.ClusterID)
	}
	v.federation(at, u)
	v.staleness(at+".staleness", u.Staleness)
	switch {
	case (u.XDS == nil) == (u.File == nil):
		v.errorf(at, "upstream %q needs exactly one of xds and file", u.Name)
	case u.XDS != nil:
		v.xds(at+".xds", *u.XDS)
	case u.File.Path == "":
		v.errorf(at+".file.path", "missing: name a file or a directory")
	}
}

// tokens reports a token that upstreams of different clusters are shown: each could present it
// to the other, and to its CA.
func (v *validator) tokens(upstreams []Upstream) {
	for i, u := range upstreams {
		if u.XDS == nil || u.XDS.TokenFile == "" {
			continue
		}
		for n, other := range upstreams[:i] {
			if other.XDS == nil || other.XDS.TokenFile != u.XDS.TokenFile || other.ClusterID == u.ClusterID || other.XDS.ShareToken || u.XDS.ShareToken {
				continue
			}
			v.errorf(fmt.Sprintf("upstreams[%d].xds.tokenFile", i), "upstreams[%d] (%q) of cluster %q is given the same token, and each can use it with the other: give each its own, or set shareToken: true", n, other.Name, other.ClusterID)
			break
		}
	}
}

func (v *validator) xds(at string, x XDS) {
	if len(x.Addresses) == 0 {
		v.errorf(at+".addresses", "missing: give at least one host:port")
	}
	for i, a := range x.Addresses {
		v.address(fmt.Sprintf("%s.addresses[%d]", at, i), a, 1)
	}
	for i, t := range x.Types {
		if _, _, err := mirror.ParseTypeURL(t); err != nil {
			v.errorf(fmt.Sprintf("%s.types[%d]", at, i), "%v", err)
		}
	}
	switch {
	case x.Plaintext && x.TLS != nil:
		v.errorf(at+".plaintext", "both plaintext and tls: leave out one")
	case !x.Plaintext && x.TLS == nil && !v.reported(at+".plaintext"):
		v.errorf(at+".tls", "neither tls nor plaintext: set tls, or plaintext: true to go without")
	}
	if x.Plaintext && x.TokenFile != "" {
		v.errorf(at+".tokenFile", "a token is not sent over plaintext, where anybody can read it, and an istiod ignores it there: set tls, or leave out tokenFile")
	}
	if t := x.TLS; t != nil && (t.CertFile == "") != (t.KeyFile == "") {
		v.errorf(at+".tls", "certFile and keyFile go together: give both, or none")
	}
}

// address checks a host:port. The port is at least leastPort: 0 lets the system choose.
func (v *validator) address(field, a string, leastPort uint64) {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		v.errorf(field, "%q is not host:port", a)
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n < leastPort {
		v.errorf(field, "%q: the port must be a number from %d to 65535", a, leastPort)
		return
	}
	if host == "" && leastPort > 0 {
		v.errorf(field, "%q has no host", a)
	}
}

// collide reports whether two addresses can not both be listened on.
func collide(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || wildcard(hostA) || wildcard(hostB)
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // another check reports it
	}
	return loopback.Host(host)
}

// id reports a text that is no ID of a relay, a cluster or a network.
func (v *validator) id(field, text string) {
	if !idShape.MatchString(text) {
		v.errorf(field, "%q: 1 to 253 letters, digits, dots, dashes and underscores", text)
	}
}

// label reports a text that is no name of an upstream or a view.
func (v *validator) label(field, text string) {
	if !nameShape.MatchString(text) {
		v.errorf(field, "%q: 1 to 63 lower-case letters, digits and dashes, neither first nor last a dash", text)
	}
}

func (v *validator) oneOf(field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.errorf(field, "%q: want one of %s", value, strings.Join(allowed, ", "))
	}
}
