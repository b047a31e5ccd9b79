package intake

import (
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

// Trace returns the traces of the resources with a key, at the source or served. If several scopes
// have a name, it returns the served one.
func (in *Intake) Trace(key mirror.Key) []records.Trace {
	if all := in.records.Trace(key); len(all) > 0 {
		return all
	}
	return in.traceServed(key)
}

// traceServed explains a served key that the source does not have.
func (in *Intake) traceServed(key mirror.Key) []records.Trace {
	detail := ""
	switch in.gate.State(key) {
	case gate.Differs, gate.RuledOut, gate.Kept:
		detail = "the upstream is frozen, and has something else now: relay unfreeze " + in.cfg.name
	case gate.Departing, gate.Held:
		detail = "the upstream has deleted it, and its guard holds the deletion: relay upstreams --held " + in.cfg.name
	default:
		return nil
	}
	r := in.served.Get(key)
	if r == nil {
		return nil
	}
	return []records.Trace{{Upstream: in.cfg.name, Original: key, Key: key, Detail: detail, Resource: r, From: r}}
}
