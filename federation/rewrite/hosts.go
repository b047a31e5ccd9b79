package rewrite

import "strings"

// host maps a complete host: the host of a Kubernetes Service contains a namespace, and any
// host may be in a mapped domain. It may begin with a wildcard.
//
// host does not map hosts of two labels: to istiod, "reviews.team-a" is a domain, and no Service in team-a. It
// does not map a wildcard above a mapped domain, such as "*.local" above "cluster.local", because the wildcard
// also matches hosts of other domains. In a list that selects hosts, movedHosts adds the mapped ones.
func (s *scope) host(h string) string {
	if len(h) < 2 {
		return h
	}
	// A trailing dot has no meaning.
	bare := strings.TrimSuffix(h, ".")
	cut, to := s.mappedDomain(bare)
	at, end := s.serviceNamespace(bare)
	ns := bare[at:end]
	if end > cut {
		at, end, ns = cut, cut, "" // the mapping replaces the namespace, too
	} else if lower := strings.ToLower(ns); s.namespace(lower) != lower {
		ns = s.namespace(lower)
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

// movedHosts returns the mapped hosts that a wildcard matched at the source and does not match any more. They
// must not be added to a list that claims hosts: a more specific resource claims them already.
func (s *scope) movedHosts(v string) (moved []string) {
	if len(v) < 2 || v[0] != '*' || s.effects&effHosts == 0 {
		return nil
	}
	reach := s.host(v)[1:]
	for _, from := range s.domains {
		if to := s.Hosts[from]; hasSuffix("."+from, v[1:]) && !hasSuffix("."+to, reach) {
			moved = append(moved, to, "*."+to)
		}
	}
	return moved
}

// hasSuffix reports whether a host ends with a domain, without regard to case.
func hasSuffix(h, domain string) bool {
	return len(h) >= len(domain) && strings.EqualFold(h[len(h)-len(domain):], domain)
}

// mappedDomain returns where the domain in h begins that Hosts replaces, and the new domain. Without such a
// domain it returns the end of h.
func (n *nameRules) mappedDomain(h string) (cut int, to string) {
	for _, from := range n.domains {
		rest := h[:max(len(h)-len(from), 0)]
		if hasSuffix(h, from) && (rest == "" || rest == "*" || rest[len(rest)-1] == '.') {
			return len(rest), n.Hosts[from]
		}
	}
	return len(h), ""
}

// serviceNamespace returns the place of the namespace in the host of a Service, NAME.NAMESPACE.svc.DOMAIN. NAME
// may have dots, as for a pod, or be "*". It returns 0, 0 for other hosts.
func (n *nameRules) serviceNamespace(h string) (at, end int) {
	if n.effects&effNamespaces == 0 {
		return 0, 0
	}
	for _, d := range n.serviceDomains {
		if !hasSuffix(h, d) {
			continue
		}
		rest := h[:len(h)-len(d)]
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
	h, port := cutPort(v)
	if to := s.host(h); to != h {
		return to + port
	}
	return v
}

// hostPattern is hostPort in a list that selects hosts.
func (s *scope) hostPattern(v string) (to string, moved []string) {
	h, port := cutPort(v)
	moved = s.movedHosts(h)
	for i := range moved {
		moved[i] += port
	}
	return s.hostPort(v), moved
}

// cutPort cuts the port off a host, with its colon.
func cutPort(v string) (host, port string) {
	i := strings.LastIndexByte(v, ':')
	if i < 0 || v[i+1:] != "*" && strings.Trim(v[i+1:], "0123456789") != "" {
		return v, ""
	}
	return v[:i], v[i:]
}

// namespacedHost maps an element of a list that selects hosts: "namespace/host", or a host alone. The
// namespace may be ".", "*" or "~". moved are those of movedHosts, to be added to the list.
func (s *scope) namespacedHost(v string) (to string, moved []string) {
	ns, h, ok := strings.Cut(v, "/")
	if !ok {
		return s.host(v), s.movedHosts(v)
	}
	toNS, toHost := s.visibility(ns), s.host(h)
	moved = s.movedHosts(h)
	for i := range moved {
		moved[i] = toNS + "/" + moved[i]
	}
	if toNS == ns && toHost == h {
		return v, moved
	}
	return toNS + "/" + toHost, moved
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
