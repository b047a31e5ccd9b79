package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"

	"meshrelay/internal/loopback"
)

var (
	nameShape = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	idShape   = regexp.MustCompile(`^[-_.A-Za-z0-9]{1,253}$`)
)

// validator collects the mistakes in a config.
type validator struct {
	name     string
	sources  []Source
	lines    map[string]int // of each field in the file; "" is the file
	wrong    []string       // fields that were reported
	mistakes []*mistake
}

func newValidator(name string, sources []Source) *validator {
	return &validator{name: name, sources: sources, lines: map[string]int{}}
}

// sourceKinds returns the names of the kinds of sources.
func (v *validator) sourceKinds() (names []string) {
	for _, s := range v.sources {
		names = append(names, s.Kind())
	}
	return names
}

// mistake is one mistake in the file.
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

// err returns all mistakes in the order of their lines as a *multierror.Error, or nil.
func (v *validator) err() error {
	slices.SortStableFunc(v.mistakes, func(a, b *mistake) int { return a.line - b.line })
	var all *multierror.Error
	for _, m := range v.mistakes {
		all = multierror.Append(all, m)
	}
	return all.ErrorOrNil()
}

// note records the line of a field.
func (v *validator) note(field string, line int) {
	v.lines[field] = line
}

func (v *validator) noted(field string) bool {
	_, ok := v.lines[field]
	return ok
}

// errorf reports a mistake in a field, with the line of the field or of the field around it. It
// ignores a mistake if the field, a field around it or a field in it already has one: the second
// may be a consequence of the first.
func (v *validator) errorf(field, format string, args ...any) {
	if v.reported(field) {
		return
	}
	if field != "" {
		v.wrong = append(v.wrong, field)
	}
	v.mistakes = append(v.mistakes, &mistake{v.name, v.line(field), field, fmt.Sprintf(format, args...)})
}

// errorIf reports a mistake in a field if a condition holds.
func (v *validator) errorIf(wrong bool, field, format string, args ...any) {
	if wrong {
		v.errorf(field, format, args...)
	}
}

// errorOf reports err as a mistake in a field, unless err is nil.
func (v *validator) errorOf(field string, err error) { v.errorIf(err != nil, field, "%v", err) }

// reported reports whether a field, a field around it or a field in it has a mistake.
func (v *validator) reported(field string) bool {
	return slices.ContainsFunc(v.wrong, func(w string) bool { return encloses(w, field) || encloses(field, w) })
}

func encloses(outer, inner string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

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
	v.errorIf(net.ParseIP(c.Node.IP) == nil, "node", "the address of the relay, $INSTANCE_IP or $POD_IP, is %q, and not an IP address", c.Node.IP)
	v.namespace("node.namespace", c.Node.Namespace)
	v.id("node.id", c.Node.ID)
	v.id("node.clusterID", c.Node.ClusterID)
	v.errorIf(len(c.Upstreams)+len(c.Clusters) == 0, "upstreams", "missing: add an upstream with %s, or clusters", strings.Join(v.sourceKinds(), " or "))
	for i, u := range c.Upstreams {
		at := fmt.Sprintf("upstreams[%d]", i)
		v.upstream(at, u, c.Upstreams[:i])
		if n := slices.IndexFunc(c.Upstreams[:i], func(o Upstream) bool { return o.Name == u.Name }); n >= 0 {
			v.errorf(at+".name", "%q is the name of upstreams[%d] already: names must differ", u.Name, n)
		}
	}
	v.clusters(c)
	v.merges(c.Merge)
	v.views(c)
	v.listeners(c)
	if c.Provenance.Relay != c.Node.ID {
		v.id("provenance.relay", c.Provenance.Relay)
	}
	v.errorIf(len(c.Downstream.Listeners) == 0, "downstream.listeners", "missing: add an address to serve on")
	v.address("admin.address", c.Admin.Address, 0)
	for i, l := range c.Downstream.Listeners {
		v.errorIf(collide(l.Address, c.Admin.Address), "admin.address", "%q is already the address of downstream.listeners[%d]: choose another port", c.Admin.Address, i)
	}
	v.errorIf(!c.Admin.AllowInsecure && !onLoopback(c.Admin.Address), "admin.address", "%q is not a loopback address: listen on 127.0.0.1, or set admin.allowInsecure: true", c.Admin.Address)
	v.socket(c)
	v.sinks(c)
	v.replicas(c)
}

func (v *validator) upstream(at string, u Upstream, before []Upstream) {
	v.label(at+".name", u.Name)
	if u.ClusterID != u.Name {
		v.id(at+".clusterID", u.ClusterID)
	}
	v.federation(at, u)
	v.staleness(at+".staleness", u.Staleness)
	given := v.given(at)
	switch {
	case len(given) != 1:
		v.errorf(at, "upstream %q needs exactly one of %s", u.Name, strings.Join(v.sourceKinds(), ", "))
	case u.Source != nil: // nil is already reported
		u.Source.Check(Checker{v, join(at, given[0])}, u, before)
	}
}

// given returns the kinds of sources for which an upstream in the file has a section.
func (v *validator) given(at string) []string {
	return slices.DeleteFunc(v.sourceKinds(), func(kind string) bool { return !v.noted(join(at, kind)) })
}

// address checks a host:port. With leastPort 0, the port may be 0, and the system chooses one.
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
	v.errorIf(host == "" && leastPort > 0, field, "%q has no host", a)
}

// collide reports whether two addresses conflict: a process can listen on only one of them.
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

// id reports a text that is neither empty nor a valid ID of a relay, a cluster or a network.
func (v *validator) id(field, text string) {
	v.errorIf(text != "" && !idShape.MatchString(text), field, "%q is not an ID: write 1 to 253 letters, digits, dots, dashes and underscores", text)
}

func (v *validator) namespace(field, text string) {
	v.errorIf(!nameShape.MatchString(text), field, "%q is not a namespace", text)
}

// label reports a text that is not a valid name of an upstream or a view.
func (v *validator) label(field, text string) {
	v.errorIf(!nameShape.MatchString(text), field, "%q is not a name: write 1 to 63 lower-case letters, digits and dashes, without a dash at the beginning or end", text)
}
