package relay

import (
	"slices"
	"sync/atomic"

	"meshrelay/admin"
	"meshrelay/admin/ui"
	"meshrelay/config"
	"meshrelay/mirror"
)

// listenerAddress returns the address of a listener for "relay get": one without TLS, if there is one.
func listenerAddress(listeners []config.Listener) string {
	if i := slices.IndexFunc(listeners, func(l config.Listener) bool { return l.Plaintext }); i >= 0 {
		return listeners[i].Address
	}
	if len(listeners) > 0 {
		return listeners[0].Address
	}
	return ""
}

// newPages returns the web pages. conflicts counts the keys and hosts in conflict.
func (r *Relay) newPages(views admin.Views, debug *admin.Debug, conflicts func() (keys, hosts int)) (*ui.Pages, error) {
	var changes atomic.Uint64
	r.aggregate.RegisterHandler(func(c mirror.Change) {
		if c.Visible() {
			changes.Add(1)
		}
	})
	return ui.New(ui.Data{
		Resources: r.aggregate, Clients: r.server, Upstreams: views.Upstreams, Clusters: r.finder.Status, Explain: debug.Explain, Services: debug.Services,
		Contests: views.Contests, HostConflicts: views.HostConflicts, Conflicts: conflicts, Apart: debug.Apart,
		Held: r.manager.Held, History: r.manager.History, Events: r.events.Read, Changes: changes.Load,
		Admin: r.options.Config.Admin.Address, XDS: listenerAddress(r.options.Config.Downstream.Listeners),
	})
}
