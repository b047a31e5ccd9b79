package upstreams

import (
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// Metric is a metric of each upstream.
type Metric struct {
	Desc *prometheus.Desc
	Type prometheus.ValueType
	// Values calls emit with each value in a status, and with the value of its label if it has one.
	Values func(st *Status, emit func(v float64, label ...string))
}

// NewDesc describes a Metric. Its first label is the name of the upstream.
func NewDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"upstream"}, labels...), nil)
}

// metrics returns the metrics of upstreams of all kinds.
func metrics() []Metric {
	desc := NewDesc
	number := func(typ prometheus.ValueType, desc *prometheus.Desc, value func(*Status) float64) Metric {
		return Metric{desc, typ, func(st *Status, emit func(float64, ...string)) { emit(value(st)) }}
	}
	flag := func(desc *prometheus.Desc, value func(*Status) bool) Metric {
		return number(prometheus.GaugeValue, desc, func(st *Status) float64 { return boolValue(value(st)) })
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	return []Metric{
		{desc("relay_upstream_state", "1 for the state that the upstream is in, 0 for the others.", "state"), gauge, func(st *Status, emit func(float64, ...string)) {
			for _, s := range []State{StateConnecting, StateSyncing, StateSynced, StateDisconnected, StateDenied, StateFailed} {
				emit(boolValue(s == st.State), string(s))
			}
		}},
		flag(desc("relay_upstream_synced", "Whether the upstream has given its complete content since the start."), func(st *Status) bool { return st.Synced }),
		{desc("relay_upstream_resources", "Resources mirrored from the upstream, by kind.", "kind"), gauge, func(st *Status, emit func(float64, ...string)) {
			emitKinds(st.Resources, emit)
		}},
		{desc("relay_upstream_last_update_timestamp_seconds", "When the upstream last sent anything, in seconds since the epoch. After a restart, when it was last in contact before."), gauge, func(st *Status, emit func(float64, ...string)) {
			if !st.LastUpdate.IsZero() {
				emit(float64(st.LastUpdate.UnixMilli()) / 1000)
			}
		}},
		number(counter, desc("relay_upstream_reconnects_total", "Streams to the upstream opened after the first."), func(st *Status) float64 { return float64(st.Reconnects) }),
		number(counter, desc("relay_upstream_nacks_total", "Responses of the upstream that were rejected in part or whole."), func(st *Status) float64 { return float64(st.NACKs) }),
		number(gauge, desc("relay_upstream_refused_resources", "Resources of the upstream whose newest content is refused now."), func(st *Status) float64 { return float64(st.RefusedTotal) }),
		{desc("relay_upstream_left_out_resources", "Resources of the upstream that are left out now, by reason.", "reason"), gauge, func(st *Status, emit func(float64, ...string)) {
			for _, reason := range intake.Reasons() {
				emit(float64(st.LeftOut[reason]), reason)
			}
		}},
		number(counter, desc("relay_upstream_panics_total", "Panics over single resources of the upstream, which are refused."), func(st *Status) float64 { return float64(st.Panics) }),
		flag(desc("relay_upstream_stale", "Whether the upstream has been out of contact for longer than staleAfter, or has not synced since the relay restored it from disk."), func(st *Status) bool { return st.Stale }),
		number(gauge, desc("relay_upstream_expired_resources", "Resources of the upstream that are not served now because it is out of contact."), func(st *Status) (n float64) {
			for _, of := range st.Expired {
				n += float64(of)
			}
			return n
		}),
		number(gauge, desc("relay_upstream_held_deletions", "Deletions of the upstream that its guard holds now."), func(st *Status) float64 {
			if st.Held == nil {
				return 0
			}
			return float64(st.Held.Removals)
		}),
		flag(desc("relay_upstream_frozen", "Whether an operator holds the upstream as it is."), func(st *Status) bool { return st.Frozen != nil }),
		number(gauge, desc("relay_upstream_over_limit_resources", "Resources of the upstream that its limits refuse now."), func(st *Status) float64 { return float64(st.OverLimit) }),
		number(gauge, desc("relay_upstream_services_without_endpoints", "Services of the upstream that are served without endpoints, because it has none for them."), func(st *Status) float64 { return float64(st.Empty) }),
		number(gauge, desc("relay_upstream_types_not_offered", "Types that the upstream does not offer: it is silent about them and counts as synced."), func(st *Status) float64 { return float64(len(st.NotOffered)) }),
		flag(desc("relay_upstream_awaited", "Whether clients are held until the upstream has synced."), func(st *Status) bool { return st.FirstSync != nil && st.FirstSync.Awaited }),
		{desc("relay_upstream_address_active", "Whether the upstream is read from this one of its addresses.", "address"), gauge, func(st *Status, emit func(float64, ...string)) {
			seen := map[string]bool{} // an address may be given twice
			for _, a := range st.Addresses {
				if !seen[a.Address] {
					emit(boolValue(a.Active), a.Address)
				}
				seen[a.Address] = true
			}
		}},
		{desc("relay_upstream_switches_total", "How often the upstream was read from another address than before."), counter, func(st *Status, emit func(float64, ...string)) {
			if st.Relayed {
				emit(float64(st.Switches))
			}
		}},
		{desc("relay_upstream_drift_total", "Changes that a full answer brought, and that no push had brought before, by kind.", "kind"), counter, func(st *Status, emit func(float64, ...string)) {
			if st.Relayed {
				emitKinds(st.Drift, emit)
			}
		}},
	}
}

// emitKinds emits counts by kind. Kinds that are not well known count as "other": an upstream must not make
// labels.
func emitKinds[N int | uint64](counts map[string]N, emit func(float64, ...string)) {
	other := N(0)
	for _, n := range counts {
		other += n
	}
	for _, info := range mirror.Kinds() {
		n := counts[info.Kind.String()]
		emit(float64(n), info.Kind.String())
		other -= n
	}
	emit(float64(other), "other")
}

// allMetrics returns the metrics of upstreams of all kinds, and those of single kinds.
func (m *Manager) allMetrics() []Metric {
	all := metrics()
	for _, k := range m.kinds {
		all = append(all, k.Metrics...)
	}
	return all
}

// Metrics of a relay that is one of several replicas.
var (
	sequenceDesc  = prometheus.NewDesc("relay_decisions_sequence", "The number of the last decision of the replicas that is in effect here.", nil, nil)
	reachableDesc = prometheus.NewDesc("relay_decisions_store_reachable", "Whether the store of the decisions can be reached.", nil, nil)
	localDesc     = prometheus.NewDesc("relay_decisions_local", "Decisions of this replica on which the others have not agreed.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{sequenceDesc, reachableDesc, localDesc} {
		ch <- desc
	}
	for _, one := range m.allMetrics() {
		ch <- one.Desc
	}
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	if s := m.Replicas(); s != nil {
		ch <- prometheus.MustNewConstMetric(sequenceDesc, prometheus.GaugeValue, float64(s.Sequence))
		ch <- prometheus.MustNewConstMetric(reachableDesc, prometheus.GaugeValue, boolValue(s.Reachable))
		ch <- prometheus.MustNewConstMetric(localDesc, prometheus.GaugeValue, float64(len(s.Local)))
	}
	all := m.Status()
	for _, one := range m.allMetrics() {
		for i := range all {
			st := &all[i]
			one.Values(st, func(v float64, label ...string) {
				ch <- prometheus.MustNewConstMetric(one.Desc, one.Type, v, append([]string{st.Name}, label...)...)
			})
		}
	}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
