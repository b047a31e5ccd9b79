package rewrite

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

const (
	maxLabel  = 63  // of a DNS label, and so of a namespace
	maxDomain = 253 // of a DNS name, and so of the name of a config

	defaultDomain   = "cluster.local"
	sidecarsGateway = "mesh" // stands for all sidecars among the gateways of a VirtualService
)

// effect is a set of what rules can do to a name.
type effect uint8

const (
	effNamespaces effect = 1 << iota
	effNames
	effHosts
	effShortHosts // short hosts are completed
)

// nameRules map namespaces, names and hosts of one source. They are immutable.
type nameRules struct {
	effects        effect
	namespaces     map[string]string
	mapped         []string      // keys of namespaces, sorted
	prefix         string        // of namespaces
	before, after  string        // of names
	hosts          []HostMapping // longest From first
	domain         string
	serviceDomains []string // what stands behind the namespace in the host of a Service
}

func newNameRules(r Rules) *nameRules {
	n := &nameRules{
		namespaces: maps.Clone(r.Namespaces),
		mapped:     slices.Sorted(maps.Keys(r.Namespaces)),
		prefix:     r.NamespacePrefix,
		before:     r.NamePrefix, after: r.NameSuffix,
		hosts:  slices.Clone(r.Hosts),
		domain: r.Domain,
	}
	if n.domain == "" {
		n.domain = defaultDomain
	}
	// The short form in ".svc" is what Kubernetes' resolver accepts; "clusterset.local" is
	// that of multi-cluster Services.
	n.serviceDomains = []string{".svc." + n.domain, ".svc.clusterset.local", ".svc"}
	slices.SortStableFunc(n.hosts, func(a, b HostMapping) int { return len(b.From) - len(a.From) })
	if n.prefix != "" {
		n.effects |= effNamespaces
	}
	for from, to := range n.namespaces {
		if from != to {
			n.effects |= effNamespaces
		}
	}
	if n.before != "" || n.after != "" {
		n.effects |= effNames
	}
	for _, h := range n.hosts {
		if h.From != h.To {
			n.effects |= effHosts
		}
	}
	if r.CompleteShortHosts {
		n.effects |= effShortHosts
	}
	return n
}

// namespace maps the name of a namespace; the empty one stays.
func (n *nameRules) namespace(ns string) string {
	if ns == "" || n.effects&effNamespaces == 0 {
		return ns
	}
	if to, ok := n.namespaces[ns]; ok {
		return to
	}
	return n.prefix + ns
}

// name maps the name of a config.
func (n *nameRules) name(name string) string {
	if name == "" || n.effects&effNames == 0 {
		return name
	}
	return n.before + name + n.after
}

// scope is one config in which names are mapped.
type scope struct {
	*nameRules
	here string // namespace of the config, at the source
	// completes tells that short hosts become long ones, even where no other rule asks for it.
	completes bool
	body      wireMessage // of the config, as far as a field depends on another
	err       error       // the first name that could not be mapped
	// blamed says that err tells where it is.
	blamed bool
}

func newScope(n *nameRules, namespace string) *scope {
	return &scope{nameRules: n, here: namespace, completes: n.effects&effShortHosts != 0}
}

func (s *scope) fail(result string, limit int) {
	if s.err == nil {
		s.err = fmt.Errorf("%q is longer than %d characters", result, limit)
	}
}

// blame adds the field to an error that is new.
func (s *scope) blame(field string) {
	if s.err != nil && !s.blamed {
		s.err = fmt.Errorf("%s: %w", field, s.err)
		s.blamed = true
	}
}

func (s *scope) namespace(ns string) string {
	to := s.nameRules.namespace(ns)
	if len(to) > maxLabel && to != ns {
		s.fail(to, maxLabel)
	}
	return to
}

func (s *scope) name(name string) string {
	to := s.nameRules.name(name)
	if len(to) > maxDomain && to != name {
		s.fail(to, maxDomain)
	}
	return to
}

// host maps a host that receivers take as it stands: that of a Kubernetes Service
// contains a namespace, and any host may be in a domain that is mapped. A wildcard may
// stand for the leftmost labels.
//
// Left alone are hosts of two labels: istiod takes "reviews.team-a" for a domain of its
// own and not for a Service in team-a. So is a wildcard above a mapped domain, such as
// "*.local" above "cluster.local": it stands for more than what is mapped. Where hosts are
// selected and not claimed, movedHosts adds the rest.
func (s *scope) host(h string) string {
	if len(h) < 2 {
		return h
	}
	// A trailing dot is only another spelling.
	bare := strings.TrimSuffix(h, ".")
	cut, to := s.mappedDomain(bare)
	at, end := s.serviceNamespace(bare)
	ns := bare[at:end]
	if end > cut {
		at, end, ns = cut, cut, "" // the mapping of the domain says it all
	} else {
		ns = s.namespace(ns)
	}
	if to == bare[cut:] && ns == bare[at:end] {
		return h
	}
	out := bare[:at] + ns + bare[end:cut] + to + h[len(bare):]
	if len(out) > maxDomain {
		s.fail(out, maxDomain)
	}
	return out
}

// movedHosts returns the hosts that are mapped away from under a wildcard. They are not
// added where a config claims hosts: it would claim what one that is more specific claims
// already.
func (s *scope) movedHosts(v string) (moved []string) {
	if len(v) < 2 || v[0] != '*' || s.effects&effHosts == 0 {
		return nil
	}
	reach := s.host(v)[1:]
	for i := range s.hosts {
		m := &s.hosts[i]
		if strings.HasSuffix("."+m.From, v[1:]) && !strings.HasSuffix("."+m.To, reach) {
			moved = append(moved, m.To, "*."+m.To)
		}
	}
	return moved
}

// movedHostPorts is movedHosts for hostPort.
func (s *scope) movedHostPorts(v string) []string {
	port := ""
	if i := strings.LastIndexByte(v, ':'); i >= 0 && isPort(v[i+1:]) {
		v, port = v[:i], v[i:]
	}
	moved := s.movedHosts(v)
	for i := range moved {
		moved[i] += port
	}
	return moved
}

// movedNamespacedHosts is movedHosts for namespacedHost.
func (s *scope) movedNamespacedHosts(v string) []string {
	ns, h, ok := strings.Cut(v, "/")
	if !ok {
		return s.movedHosts(v)
	}
	moved := s.movedHosts(h)
	for i := range moved {
		moved[i] = s.visibility(ns) + "/" + moved[i]
	}
	return moved
}

// mappedDomain returns where the part of h begins that a HostMapping replaces, and by
// what. Without one it is the empty end.
func (n *nameRules) mappedDomain(h string) (cut int, to string) {
	for i := range n.hosts {
		m := &n.hosts[i]
		rest, ok := strings.CutSuffix(h, m.From)
		if ok && (rest == "" || rest == "*" || rest[len(rest)-1] == '.') {
			return len(rest), m.To
		}
	}
	return len(h), ""
}

// serviceNamespace returns where the namespace is in the host of a Service:
// NAME.NAMESPACE.svc.DOMAIN, where NAME may be that of a pod, with dots, or "*". When h is
// no such host, it is the empty place at 0.
func (n *nameRules) serviceNamespace(h string) (at, end int) {
	if n.effects&effNamespaces == 0 {
		return 0, 0
	}
	for _, d := range n.serviceDomains {
		rest, ok := strings.CutSuffix(h, d)
		if !ok {
			continue
		}
		i := strings.LastIndexByte(rest, '.')
		if i < 1 || strings.IndexByte(rest[i:], '*') >= 0 {
			return 0, 0
		}
		return i + 1, len(rest)
	}
	return 0, 0
}

// hostPort maps a host that may have a port, or "*" for all ports.
func (s *scope) hostPort(v string) string {
	i := strings.LastIndexByte(v, ':')
	if i < 0 || !isPort(v[i+1:]) {
		return s.host(v)
	}
	if to := s.host(v[:i]); to != v[:i] {
		return to + v[i:]
	}
	return v
}

func isPort(p string) bool {
	if p == "*" {
		return true
	}
	for i := range len(p) {
		if p[i] < '0' || p[i] > '9' {
			return false
		}
	}
	return true
}

// namespacedHost maps "namespace/host", where the namespace may be ".", "*" or "~".
func (s *scope) namespacedHost(v string) string {
	ns, h, ok := strings.Cut(v, "/")
	if !ok {
		return s.host(v)
	}
	toNS, to := s.visibility(ns), s.host(h)
	if toNS == ns && to == h {
		return v
	}
	return toNS + "/" + to
}

// visibility maps a namespace for which ".", "*" and "~" may stand.
func (s *scope) visibility(v string) string {
	switch v {
	case ".", "*", "~":
		return v
	}
	return s.namespace(v)
}

// namespacePattern maps a namespace that may have a wildcard. A pattern goes on to stand
// for whatever namespace the rules leave in its reach; those that are mapped out of it are
// in elsewhere.
func (s *scope) namespacePattern(v string) (to string, elsewhere []string) {
	if strings.IndexByte(v, '*') < 0 {
		return s.namespace(v), nil
	}
	to = v
	if v[0] != '*' {
		to = s.prefix + v
	}
	for _, ns := range s.mapped {
		if ok, _ := path.Match(v, ns); !ok {
			continue
		}
		if ok, _ := path.Match(to, s.namespaces[ns]); !ok {
			elsewhere = append(elsewhere, s.namespaces[ns])
		}
	}
	return to, elsewhere
}

// principal maps the namespace in TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT, which may have a
// wildcard at either end. The trust domain is left alone: it is no host.
func (s *scope) principal(v string) (to string, elsewhere []string) {
	at := strings.Index(v, "/ns/") + len("/ns/")
	if at < len("/ns/") {
		if at = len("*ns/"); !strings.HasPrefix(v, "*ns/") {
			return v, nil
		}
	}
	head, ns, tail := v[:at], v[at:], ""
	if i := strings.IndexByte(ns, '/'); i >= 0 {
		ns, tail = ns[:i], ns[i:]
	}
	if ns == "" || ns == "*" {
		return v, nil
	}
	toNS, others := s.namespacePattern(ns)
	for _, o := range others {
		if tail == "" {
			o += "/*"
		}
		elsewhere = append(elsewhere, head+o+tail)
	}
	if toNS == ns {
		return v, elsewhere
	}
	return head + toNS + tail, elsewhere
}

// serviceAccount maps the namespace in NAMESPACE/ACCOUNT. A bare account is of the
// namespace of the config.
func (s *scope) serviceAccount(v string) string {
	ns, account, ok := strings.Cut(v, "/")
	if !ok {
		return v
	}
	if to := s.namespace(ns); to != ns {
		return to + "/" + account
	}
	return v
}

// gateway maps a reference to an Istio Gateway in any form that istiod knows
// (model.resolveGatewayName): NAME, NAMESPACE/NAME, ./NAME, and the old NAME.NAMESPACE with
// anything behind it.
func (s *scope) gateway(v string) string {
	if v == "" || v == sidecarsGateway {
		return v
	}
	if ns, name, ok := strings.Cut(v, "/"); ok {
		toNS, to := s.visibility(ns), s.name(name)
		if toNS == ns && to == name {
			return v
		}
		return toNS + "/" + to
	}
	name, rest, ok := strings.Cut(v, ".")
	if !ok {
		return s.name(v)
	}
	ns, tail := rest, ""
	if i := strings.IndexByte(rest, '.'); i >= 0 {
		ns, tail = rest[:i], rest[i:]
	}
	toNS, to := s.namespace(ns), s.name(name)
	if toNS == ns && to == name {
		return v
	}
	return to + "." + toNS + tail
}

// url maps the host of a URL.
func (s *scope) url(v string) string {
	i := strings.Index(v, "://")
	if i < 0 {
		return v
	}
	at := i + len("://")
	end := len(v)
	if i := strings.IndexAny(v[at:], "/?#"); i >= 0 {
		end = at + i
	}
	at += strings.LastIndexByte(v[at:end], '@') + 1
	to := s.hostPort(v[at:end])
	if to == v[at:end] {
		return v
	}
	return v[:at] + to + v[end:]
}

// cluster maps the host in the name of an Envoy cluster, DIRECTION|PORT|SUBSET|HOST.
func (s *scope) cluster(v string) string {
	if strings.Count(v, "|") != 3 {
		return v
	}
	i := strings.LastIndexByte(v, '|') + 1
	if to := s.host(v[i:]); to != v[i:] {
		return v[:i] + to
	}
	return v
}

// routeConfiguration maps the name of an Envoy route configuration: HOST:PORT of an
// outbound one, https.PORT.PORTNAME.GATEWAY.NAMESPACE of a gateway
// (model.ParseGatewayRDSRouteName).
func (s *scope) routeConfiguration(v string) string {
	if strings.HasPrefix(v, "https.") && strings.Count(v, ".") == 4 {
		parts := strings.Split(v, ".")
		parts[3], parts[4] = s.name(parts[3]), s.namespace(parts[4])
		return strings.Join(parts, ".")
	}
	return s.hostPort(v)
}
