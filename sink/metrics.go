package sink

import "github.com/prometheus/client_golang/prometheus"

// metric is a metric of each sink, without a label of its own.
type metric struct {
	*prometheus.Desc
	prometheus.ValueType
	of func(Status) float64
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"sink"}, nil)
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func troubles(states ...string) func(Status) float64 {
	return func(s Status) (n float64) {
		for _, state := range states {
			n += float64(s.TroublesByState[state])
		}
		return n
	}
}

const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue

var (
	metrics = []metric{
		{desc("relay_sink_conflicts", "Objects with fields that another manager owns."), gauge, troubles(stateConflict)},
		{desc("relay_sink_foreign", "Objects that are not written because others have objects of their names."), gauge, troubles(stateForeign)},
		{desc("relay_sink_refused", "Objects that the cluster refuses, by its schema, a webhook, a quota, a missing right or namespace, or because it does not serve the kind."), gauge, troubles(stateRefused, stateNamespace, stateUnserved)},
		{desc("relay_sink_held_deletions", "Deletions that the guard of the sink holds until an operator decides."), gauge, func(s Status) float64 { return float64(s.Todo["held"]) }},
		{desc("relay_sink_unwritten", "Objects that are to be written, and that nobody has written for a minute."), gauge, func(s Status) float64 { return float64(s.Unwritten) }},
		{desc("relay_sink_drift_total", "Changes and deletions by others of objects of the sink."), counter, func(s Status) float64 { return float64(s.Drifted) }},
		{desc("relay_sink_leader", "1 while this process writes for the sink, else 0."), gauge, func(s Status) float64 { return flag(s.Leader) }},
		{desc("relay_sink_suspended", "1 while the sink is not to write: it is frozen, was promoted, or only tells the difference."), gauge, func(s Status) float64 { return flag(s.suspended) }},
		{desc("relay_sink_last_complete_timestamp_seconds", "When the cluster last had all that the sink wants it to have; 0 for never."), gauge, func(s Status) float64 {
			return float64(max(0, s.Complete.UnixMilli())) / 1000
		}},
	}
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.Desc
	}
}

// Collect implements prometheus.Collector. It sends without a lock.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	for _, st := range s.Status("") {
		for _, m := range metrics {
			ch <- prometheus.MustNewConstMetric(m.Desc, m.ValueType, m.of(st), st.Name)
		}
	}
}
