package rewrite

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

const (
	maxLabel  = 63  // characters of a DNS label, and so of a namespace
	maxDomain = 253 // characters of a DNS name, and so of the name of a resource
)

// effect is a set of changes that rules can make.
type effect uint8

const (
	effNamespaces effect = 1 << iota
	effNames
	effHosts
	effShortHosts // short hosts are completed
)

// nameRules maps the namespaces, names and hosts of one source. It is immutable.
type nameRules struct {
	Rules
	effects        effect
	mapped         []string // keys of Namespaces, sorted
	domains        []string // keys of Hosts, the longest first
	serviceDomains []string // what comes after the namespace in the host of a Service
}

func newNameRules(r Rules) *nameRules {
	r.Domain = cmp.Or(r.Domain, federation.DefaultDomain)
	n := &nameRules{
		Rules: r, mapped: slices.Sorted(maps.Keys(r.Namespaces)),
		domains: slices.SortedFunc(maps.Keys(r.Hosts), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }),
		// Kubernetes' resolver accepts the short form in ".svc"; multi-cluster Services have
		// "clusterset.local".
		serviceDomains: []string{".svc." + r.Domain, ".svc.clusterset.local", ".svc"},
	}
	moves := func(from string) bool { return r.Namespaces[from] != from }
	if r.NamespacePrefix != "" || slices.ContainsFunc(n.mapped, moves) {
		n.effects |= effNamespaces
	}
	if r.NamePrefix != "" {
		n.effects |= effNames
	}
	if slices.ContainsFunc(n.domains, func(from string) bool { return r.Hosts[from] != from }) {
		n.effects |= effHosts
	}
	if r.ShortHosts == ShortHostsComplete {
		n.effects |= effShortHosts
	}
	return n
}

// namespace maps a namespace. It does not map the empty one.
func (n *nameRules) namespace(ns string) string {
	if ns == "" || n.effects&effNamespaces == 0 {
		return ns
	}
	if to, ok := n.Namespaces[ns]; ok {
		return to
	}
	return n.NamespacePrefix + ns
}

// scope maps the names in one resource, and keeps the first error.
type scope struct {
	*nameRules
	here string // namespace of the resource, at the source
	// completes is set when short hosts are completed, even if no other rule maps them.
	completes bool
	body      []byte // of the resource, for fields that depend on another field
	message   []byte // the message that holds the string to map
	err       error  // for the first name that could not be mapped
	// blamed is set when err names its field.
	blamed bool
}

func newScope(n *nameRules, namespace string) *scope {
	return &scope{nameRules: n, here: namespace, completes: n.effects&effShortHosts != 0}
}

// sibling returns another string field of scope.message, by its number.
func (s *scope) sibling(number protowire.Number) string { return string(wire.Last(s.message, number)) }

func (s *scope) fail(result string, limit int) {
	if s.err == nil {
		s.err = fmt.Errorf("%q is longer than %d characters", result, limit)
	}
}

// blame adds the field to err, unless err names one already.
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

// name maps the name of a resource.
func (s *scope) name(name string) string {
	if name == "" || s.effects&effNames == 0 {
		return name
	}
	to := s.NamePrefix + name
	if len(to) > maxDomain && to != name {
		s.fail(to, maxDomain)
	}
	return to
}

// key maps the key of a resource.
func (s *scope) key(k mirror.Key) mirror.Key {
	if k.Kind == mirror.MeshConfig {
		return k
	}
	k.Namespace = s.namespace(k.Namespace)
	s.blame("metadata.namespace")
	if renamed(k.Kind) {
		k.Name = s.name(k.Name) + s.hostSuffix(k)
		s.blame("metadata.name")
	}
	return k
}

// hostSuffix returns what the name of a ServiceEntry that is made of a Kubernetes service gets, so that services of other hosts
// have other names: nothing where the host is NAME.NAMESPACE.svc.cluster.local. k has its namespace here, and its name at
// the source.
func (s *scope) hostSuffix(k mirror.Key) string {
	name, made := strings.CutPrefix(k.Name, federation.SyntheticPrefix)
	if !made || k.Kind != federation.ServiceEntry || s.Domain == federation.DefaultDomain && s.effects&effHosts == 0 {
		return ""
	}
	domain := strings.TrimPrefix(s.host(name+"."+s.here+".svc."+s.Domain), name+"."+k.Namespace+".")
	if suffix := federation.Suffix(domain); domain != "svc."+federation.DefaultDomain && !strings.HasSuffix(name, suffix) {
		return suffix
	}
	return ""
}

// visibility maps an element of exportTo: a namespace, ".", "*" or "~".
func (s *scope) visibility(v string) string {
	switch v {
	case ".", "*", "~":
		return v
	}
	return s.namespace(v)
}

// namespacePattern maps a namespace that may have a wildcard. elsewhere has the mapped namespaces that the
// wildcard matched at the source and does not match any more.
func (s *scope) namespacePattern(v string) (to string, elsewhere []string) {
	if strings.IndexByte(v, '*') < 0 {
		return s.namespace(v), nil
	}
	to = v
	if v[0] != '*' {
		to = s.NamespacePrefix + v
	}
	for _, ns := range s.mapped {
		if ok, _ := path.Match(v, ns); !ok {
			continue
		}
		if ok, _ := path.Match(to, s.Namespaces[ns]); !ok {
			elsewhere = append(elsewhere, s.Namespaces[ns])
		}
	}
	return to, elsewhere
}

// principal maps the namespace in TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT, as namespacePattern does. The text may
// have a wildcard at either end. The trust domain is no host, and is not mapped.
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

// serviceAccount maps the namespace in NAMESPACE/ACCOUNT. An account without a namespace is in the namespace of
// the resource.
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

// gateway maps a reference to an Istio Gateway, in the forms that istiod knows (model.resolveGatewayName): NAME,
// NAMESPACE/NAME, ./NAME, and the old NAME.NAMESPACE, with or without a suffix.
func (s *scope) gateway(v string) string {
	if v == "" || v == federation.MeshGateway {
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
