package intake

import (
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

// Trace returns the traces of the resources with a key, at the source or served. If several scopes have a name, it returns the
// served one. A served key that the source does not have is explained by its state.
func (in *Intake) Trace(key mirror.Key) []records.Trace {
	all, r, detail := in.records.Trace(key), in.served.Get(key), ""
	switch in.gate.State(key) {
	case gate.Differs, gate.RuledOut, gate.Kept:
		detail = "the upstream is frozen, and has something else now: relay unfreeze " + in.cfg.name
	case gate.Departing, gate.Held:
		detail = "the upstream has deleted it, and its guard holds the deletion: relay upstreams --held " + in.cfg.name
	}
	if len(all) == 0 && r != nil && detail != "" {
		all = []records.Trace{{Upstream: in.cfg.name, Original: key, Key: key, Detail: detail, Resource: r, From: r}}
	}
	return all
}
