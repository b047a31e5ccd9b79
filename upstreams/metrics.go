package upstreams

import (
	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

// metric is a metric of each upstream.
type metric struct {
	desc *prometheus.Desc
	typ  prometheus.ValueType
	// values calls emit with each value in a status, and with the value of its label if it has one.
	values func(st *Status, emit func(v float64, label ...string))
}

// desc describes a metric. Its first label is the name of the upstream.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"upstream"}, labels...), nil)
}

// metrics returns the metrics of upstreams of all kinds.
func metrics() []metric {
	number := func(typ prometheus.ValueType, desc *prometheus.Desc, value func(*Status) float64) metric {
		return metric{desc, typ, func(st *Status, emit func(float64, ...string)) { emit(value(st)) }}
	}
	flag := func(desc *prometheus.Desc, value func(*Status) bool) metric {
		return number(prometheus.GaugeValue, desc, func(st *Status) float64 { return boolValue(value(st)) })
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	return []metric{
		{desc("relay_upstream_state", "1 for the state that the upstream is in, 0 for the others.", "state"), gauge, func(st *Status, emit func(float64, ...string)) {
			for _, s := range States() {
				emit(boolValue(s == st.State), string(s))
			}
		}},
		flag(desc("relay_upstream_synced", "Whether the upstream has given its complete content since the start."), func(st *Status) bool { return st.Synced }),
		{desc("relay_upstream_resources", "Resources mirrored from the upstream, by kind.", "kind"), gauge, func(st *Status, emit func(float64, ...string)) {
			emitKinds(st.Resources, emit)
		}},
		number(gauge, desc("relay_upstream_refused_resources", "Resources of the upstream whose newest content is refused now."), func(st *Status) float64 { return float64(st.RefusedTotal) }),
		{desc("relay_upstream_left_out_resources", "Resources of the upstream that are left out now, by reason.", "reason"), gauge, func(st *Status, emit func(float64, ...string)) {
			for _, reason := range records.Reasons() {
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
		number(gauge, desc("relay_upstream_told_problems", "Problems that the relay behind the upstream tells of its own upstreams now."), func(st *Status) float64 {
			return float64(len(st.Told.Problems) + st.Told.More)
		}),
		number(gauge, desc("relay_upstream_over_limit_resources", "Resources of the upstream that its limits refuse now."), func(st *Status) float64 { return float64(st.OverLimit) }),
		number(gauge, desc("relay_upstream_services_without_endpoints", "Services of the upstream that are served without endpoints, because it has none for them."), func(st *Status) float64 { return float64(st.Empty) }),
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

// Metrics of a relay that is one of several replicas.
var (
	reachableDesc  = prometheus.NewDesc("relay_orders_reachable", "Whether the ConfigMap with the orders of the replicas can be read and written.", nil, nil)
	notInForceDesc = prometheus.NewDesc("relay_orders_not_in_force", "Upstreams whose order is not in force on this replica.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(ch chan<- *prometheus.Desc) {
	ch <- reachableDesc
	ch <- notInForceDesc
	for _, one := range metrics() {
		ch <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *Manager) Collect(ch chan<- prometheus.Metric) {
	if shown := m.shown.Load(); m.replicas != nil {
		ch <- prometheus.MustNewConstMetric(reachableDesc, prometheus.GaugeValue, boolValue(shown.reachable))
		ch <- prometheus.MustNewConstMetric(notInForceDesc, prometheus.GaugeValue, float64(len(shown.replicas[0].Lacks)))
	}
	all := m.Status()
	for _, one := range metrics() {
		for i := range all {
			st := &all[i]
			one.values(st, func(v float64, label ...string) {
				ch <- prometheus.MustNewConstMetric(one.desc, one.typ, v, append([]string{st.Name}, label...)...)
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
