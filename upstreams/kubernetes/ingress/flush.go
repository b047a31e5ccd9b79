package ingress

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"meshrelay/mirror"
)

// Flush returns the outputs that changed since the last call: Gateways before VirtualServices, each
// sorted by namespace and name. Removed ones have no Body. It returns nothing before all inputs have synced.
func (s *State) Flush() (changes []*Output) {
	if s.synced != [inputs]bool{true, true, true} {
		return nil
	}
	now := map[mirror.Key]*Output{} // nil for a removed output
	if s.changedOptions {
		for key := range s.outputs {
			now[key] = nil // unless it is made again below
		}
	}
	for name := range s.changedIngresses {
		now[s.options.gatewayName(name).key(gatewayKind)] = nil
		if e := s.ingresses[name]; e != nil && e.converted {
			out := s.options.gateway(e.Ingress)
			now[out.Key] = out
		}
	}
	s.flushHosts(now)
	for key, out := range now {
		if s.replace(key, out) {
			changes = append(changes, cmp.Or(out, &Output{Key: key}))
		}
	}
	slices.SortFunc(changes, func(a, b *Output) int { return mirror.CompareKeys(a.Key, b.Key) })
	clear(s.changedIngresses)
	clear(s.changedHosts)
	s.changedOptions = false
	return changes
}

// All returns all outputs, in the order of Flush. The next Flush returns the changes after that. All returns
// nothing before all inputs have synced.
func (s *State) All() []*Output {
	clear(s.outputs)
	for _, e := range s.ingresses {
		if e.converted {
			s.change(e)
		}
	}
	return s.Flush()
}

// Counts returns the number of Ingresses, and of those that are converted.
func (s *State) Counts() (all, converted int) {
	for _, e := range s.ingresses {
		if e.converted {
			converted++
		}
	}
	return len(s.ingresses), converted
}

// replace notes the hash of an output, and reports whether it has changed.
func (s *State) replace(key mirror.Key, out *Output) bool {
	old, had := s.outputs[key]
	if out == nil {
		delete(s.outputs, key)
		return had
	}
	s.buffer = out.appendTo(s.buffer[:0])
	hash := xxh3.Hash128(s.buffer)
	s.outputs[key] = hash
	return !had || hash != old
}

// Digest returns a hash of the content of an output.
func (o *Output) Digest() xxh3.Uint128 { return xxh3.Hash128(o.appendTo(nil)) }

// appendTo appends the body and the origins. The annotations are always the same.
func (o *Output) appendTo(b []byte) []byte {
	b, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, o.Body) // decoded JSON is UTF-8
	for _, n := range o.Origins {
		b = append(append(b, n.Namespace...), '/')
		b = append(append(b, n.Name...), 0)
	}
	return b
}

// flushHosts makes the VirtualServices of changed hosts, and of hosts whose VirtualService gets another name
// because of them.
func (s *State) flushHosts(now map[mirror.Key]*Output) {
	s.changeClaims()
	var made []*Output
	for name := range s.changedHosts {
		h := s.hosts[name]
		if h.output != (Name{}) {
			now[h.output.key(serviceKind)] = nil // unless it is made again below
		}
		if len(h.ingresses) == 0 {
			delete(s.hosts, name)
			continue
		}
		h.output = s.nameOf(name, h)
		made = append(made, s.options.virtualService(h.output, name, s.parts(h, name), s.port))
	}
	for _, out := range made {
		now[out.Key] = out
	}
}

// changeClaims updates the claims of the changed hosts. It marks all hosts of a changed claim as changed,
// because their names may change.
func (s *State) changeClaims() {
	touched := index[Name, string]{} // the hosts that were removed, by claim
	joined := map[Name][]string{}
	for name := range s.changedHosts {
		h := s.hosts[name]
		touched.add(h.claim, name)
		h.claim = Name{}
		if parts := s.parts(h, name); len(parts) > 0 {
			h.claim = s.options.serviceName(parts[0].Ingress, parts[0].rules[0])
			joined[h.claim] = append(joined[h.claim], name)
		}
	}
	for claim, left := range touched {
		s.claims[claim] = slices.DeleteFunc(s.claims[claim], func(name string) bool { _, ok := left[name]; return ok })
	}
	for claim, names := range joined {
		s.claims[claim] = append(s.claims[claim], names...)
		touched[claim] = nil
	}
	for claim := range touched {
		for _, name := range s.claims[claim] {
			s.changedHosts[name] = struct{}{}
		}
		if len(s.claims[claim]) == 0 {
			delete(s.claims, claim)
		}
	}
}

// nameOf returns the name of the VirtualService of a host. It is the claim of the host, unless another host
// with the same claim comes before it.
func (s *State) nameOf(name string, h *host) Name {
	for _, other := range s.claims[h.claim] {
		if other != name && s.before(other, name) {
			sum := sha256.Sum256([]byte(name))
			return Name{h.claim.Namespace, h.claim.Name + "-" + hex.EncodeToString(sum[:16])}
		}
	}
	return h.claim
}

// before reports whether the first rule of one host comes before that of another one.
func (s *State) before(a, b string) bool {
	x, y := s.parts(s.hosts[a], a)[0], s.parts(s.hosts[b], b)[0]
	return cmp.Or(s.options.compare(x.Ingress, y.Ingress), x.rules[0]-y.rules[0]) < 0
}

// parts returns the parts of all Ingresses about a host, in their order.
func (s *State) parts(h *host, name string) []part {
	parts := make([]part, 0, len(h.ingresses))
	for n := range h.ingresses {
		e := s.ingresses[n]
		parts = append(parts, part{e.Ingress, e.of(name)})
	}
	slices.SortFunc(parts, func(a, b part) int { return s.options.compare(a.Ingress, b.Ingress) })
	return parts
}
