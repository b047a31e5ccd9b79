package rewrite

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/wire"
)

// This file completes short hosts (PROTOCOL C23). An istiod completes them with the namespace of the resource
// and its cluster domain. It has no domain for resources that it receives over MCP, so the relay must send
// complete hosts.

var virtualServiceHosts = number(&networking.VirtualService{}, "hosts")

// shortHost maps a host that istiod completes when it has no dots. The rules apply to the complete host. With
// ShortHostsKeep, the host stays short if clients complete it to the mapped host.
func (s *scope) shortHost(h string) string {
	if s.here == "" || !federation.IsShort(h) {
		return s.host(h)
	}
	to := s.host(h + "." + s.here + ".svc." + s.Domain)
	if !s.completes && to == h+"."+s.nameRules.namespace(s.here)+".svc."+s.Domain {
		return h
	}
	return to
}

// virtualServiceHost maps a host of a VirtualService. If a wildcard of the same VirtualService covers a short
// host once it is complete, the host becomes that wildcard: istiod refuses a VirtualService in which one host
// covers another.
func (s *scope) virtualServiceHost(h string) string {
	to := s.shortHost(h)
	if !s.completes || !federation.IsShort(h) {
		return to
	}
	c := wire.Fields(s.body)
	for c.Next() {
		if !c.Bytes(virtualServiceHosts) || len(c.Value()) < 2 || c.Value()[0] != '*' || string(c.Value()) == h {
			continue
		}
		if wildcard := s.shortHost(string(c.Value())); hasSuffix(to, wildcard[1:]) {
			return wildcard
		}
	}
	return to
}

// sniHost maps the server name in a match of a VirtualService. istiod does not complete it, and refuses it
// unless a host of the VirtualService covers it. So sniHost maps it as it maps those hosts. The host "*" also
// covers short names.
func (s *scope) sniHost(h string) string {
	if federation.IsShort(h) {
		c := wire.Fields(s.body)
		for c.Next() {
			if c.Bytes(virtualServiceHosts) && string(c.Value()) == "*" {
				return h
			}
		}
	}
	return s.shortHost(h)
}

// mayHaveShortHost reports whether a field of the plan has a host without dots. It also returns true for a message that
// does not parse: apply returns the error. It allocates nothing.
func (p *messagePlan) mayHaveShortHost(m []byte) bool {
	c := wire.Fields(m)
	for c.Next() {
		if c.Type != protowire.BytesType || int(c.Number) >= len(p.steps) || p.steps[c.Number] == nil {
			continue
		}
		switch st, v := p.steps[c.Number], c.Value(); {
		case st.plan != nil && st.plan.mayHaveShortHost(v):
			return true
		case st.role != nil && len(v) > 0 && bytes.IndexByte(v, '.') < 0 && string(v) != "*":
			return true
		}
	}
	return c.Err() != nil
}
