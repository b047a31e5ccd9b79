package upstreams

import (
	"meshrelay/adsclient"
	"meshrelay/mirror"
)

// repeat implements Source.
func (x *XDS) repeat(again bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.status.Protocol == "" || x.ended {
		return
	}
	defer x.client.Relist()
	if again && x.repeating != nil {
		return // a server may need longer than the time between two requests
	}
	x.repeating = make(map[string]map[string]struct{}, len(x.types))
	for _, url := range x.types {
		names := map[string]struct{}{}
		if sp := x.table.byURL[url]; sp != nil && x.status.Protocol == string(adsclient.Delta) && sp.kind != mirror.MeshConfig {
			for name := range sp.byName {
				names[name] = struct{}{}
			}
		}
		x.repeating[url] = names
	}
}

// noteRepeated tells the gate when the server has repeated all that it was asked to. A delta
// answer may come in parts, and a push may come before it: a type counts as repeated when
// every name that is held of it was in what came since, or was removed. The caller holds mu.
func (x *XDS) noteRepeated(sp *spelling, resp *adsclient.Response, result outcome) {
	names, asked := x.repeating[sp.typeURL]
	if !asked || result.unread {
		return
	}
	if !resp.Complete && sp.kind != mirror.MeshConfig {
		for raw := range resp.Resources(x.table.limits.MaxResourceBytes) {
			delete(names, string(raw.Name))
		}
		for name := range resp.Removed() {
			delete(names, string(name))
		}
		if len(names) > 0 {
			return
		}
	}
	if delete(x.repeating, sp.typeURL); len(x.repeating) == 0 {
		x.repeating = nil
		x.gate.repeated()
	}
}
