package upstreams

import (
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// states are all states, so that each has a series that is 0 or 1.
var states = []State{StateConnecting, StateSyncing, StateSynced, StateDisconnected, StateDenied, StateFailed}

type descs struct {
	state, synced, resources, lastUpdate, reconnects, nacks, refused, dropped *prometheus.Desc
	stale, expired, held, frozen, drift, overLimit                            *prometheus.Desc
	panics                                                                    *prometheus.Desc
	active, switches, awaited                                                 *prometheus.Desc
}

func newDescs() descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"upstream"}, labels...), nil)
	}
	return descs{
		state:      desc("relay_upstream_state", "1 for the state that the upstream is in, 0 for the others.", "state"),
		synced:     desc("relay_upstream_synced", "Whether the upstream has given its complete content since the start."),
		resources:  desc("relay_upstream_resources", "Resources mirrored from the upstream, by kind.", "kind"),
		lastUpdate: desc("relay_upstream_last_update_timestamp_seconds", "When the upstream last said anything, in seconds since the epoch. After a restart, when it was last in contact before."),
		reconnects: desc("relay_upstream_reconnects_total", "Streams to the upstream opened after the first."),
		nacks:      desc("relay_upstream_nacks_total", "Responses of the upstream that were rejected in part or whole."),
		refused:    desc("relay_upstream_refused_resources", "Resources of the upstream whose newest content is refused now."),
		dropped:    desc("relay_upstream_dropped_resources", "Resources of the upstream that are left out now, by reason.", "reason"),
		stale:      desc("relay_upstream_stale", "Whether the upstream has been out of contact for longer than staleAfter, or since the relay was started with what it had on disk."),
		expired:    desc("relay_upstream_expired_resources", "Resources of the upstream that are not served now because it is out of contact."),
		held:       desc("relay_upstream_held_deletions", "Deletions of the upstream that its guard holds back now."),
		frozen:     desc("relay_upstream_frozen", "Whether an operator holds the upstream as it is."),
		panics:     desc("relay_upstream_panics_total", "Panics over single resources of the upstream, which are refused."),
		drift:      desc("relay_upstream_drift_total", "Changes that asking the upstream for everything again has brought and no push had, by kind.", "kind"),
		active:     desc("relay_upstream_address_active", "Whether the upstream is read from this one of its addresses.", "address"),
		switches:   desc("relay_upstream_switches_total", "How often the upstream was read from another address than before."),
		awaited:    desc("relay_upstream_awaited", "Whether clients are held until the upstream has synced."),
		overLimit:  desc("relay_upstream_over_limit_resources", "Resources of the upstream that its limits refuse now."),
	}
}

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	d := newDescs()
	for _, desc := range []*prometheus.Desc{d.state, d.synced, d.resources, d.lastUpdate, d.reconnects, d.nacks, d.refused, d.dropped, d.panics, d.stale, d.expired, d.held, d.frozen, d.drift, d.overLimit, d.active, d.switches, d.awaited} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector. Kinds outside the table count as "other":
// an upstream must not be able to make labels.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	d := newDescs()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	counter := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, v, labels...)
	}
	first := m.firstSyncs()
	for _, u := range m.all() {
		st := u.status()
		for _, s := range states {
			gauge(d.state, boolValue(s == st.State), st.Name, string(s))
		}
		gauge(d.synced, boolValue(st.Synced), st.Name)
		other := 0
		counts := u.store.Counts()
		for kind, n := range counts {
			if _, known := mirror.LookupKind(kind); !known {
				other += n
			}
		}
		for _, info := range mirror.Kinds() {
			gauge(d.resources, float64(counts[info.Kind]), st.Name, info.Kind.String())
		}
		gauge(d.resources, float64(other), st.Name, "other")
		if !st.LastUpdate.IsZero() {
			gauge(d.lastUpdate, float64(st.LastUpdate.UnixMilli())/1000, st.Name)
		}
		counter(d.reconnects, float64(st.Reconnects), st.Name)
		counter(d.nacks, float64(st.NACKs), st.Name)
		gauge(d.refused, float64(st.RefusedTotal), st.Name)
		counter(d.panics, float64(st.Panics), st.Name)
		for _, reason := range intake.Reasons() {
			gauge(d.dropped, float64(st.Dropped[reason]), st.Name, reason)
		}
		gauge(d.stale, boolValue(st.Stale), st.Name)
		expired, held := 0, 0
		for _, n := range st.Expired {
			expired += n
		}
		if st.Held != nil {
			held = st.Held.Removals
		}
		gauge(d.expired, float64(expired), st.Name)
		gauge(d.held, float64(held), st.Name)
		gauge(d.frozen, boolValue(st.Frozen != nil), st.Name)
		gauge(d.overLimit, float64(st.OverLimit), st.Name)
		f := first[st.Name]
		gauge(d.awaited, boolValue(f != nil && f.Awaited), st.Name)
		if !u.kind.Relayed {
			continue
		}
		seen := map[string]bool{} // an address may be given twice
		for _, a := range st.Addresses {
			if !seen[a.Address] {
				gauge(d.active, boolValue(a.Active), st.Name, a.Address)
			}
			seen[a.Address] = true
		}
		counter(d.switches, float64(st.Switches), st.Name)
		drifted := uint64(0)
		for _, info := range mirror.Kinds() {
			counter(d.drift, float64(st.Drift[info.Kind.String()]), st.Name, info.Kind.String())
			delete(st.Drift, info.Kind.String())
		}
		for _, n := range st.Drift {
			drifted += n
		}
		counter(d.drift, float64(drifted), st.Name, "other")
	}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
