package sink

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of writes, in addition to the states of troubles.
const (
	resultCreated   = "created"
	resultApplied   = "applied"
	resultAdopted   = "adopted"
	resultUnchanged = "unchanged"
)

// counts are counters since the start of a sink.
type counts struct {
	writes         map[string]uint64
	deletes, drift uint64
}

// newCounts has all results, so that a rate knows the first one.
func newCounts() counts {
	c := counts{writes: map[string]uint64{}}
	for _, result := range []string{resultCreated, resultApplied, resultAdopted, resultUnchanged, stateConflict, stateForeign, stateRefused, stateNamespace, stateUnserved, stateFailed} {
		c.writes[result] = 0
	}
	return c
}

func (c *counts) write(result string) { c.writes[result]++ }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"sink"}, labels...), nil)
}

var (
	objectsDesc   = desc("relay_sink_objects", "Objects that the sink has in its cluster.")
	writesDesc    = desc("relay_sink_writes_total", "Requests of the sink that create or change an object, by result.", "result")
	deletesDesc   = desc("relay_sink_deletes_total", "Objects that the sink has deleted.")
	conflictsDesc = desc("relay_sink_conflicts", "Objects with fields that another manager owns.")
	foreignDesc   = desc("relay_sink_foreign", "Objects that are not written because others have objects of their names.")
	refusedDesc   = desc("relay_sink_refused", "Objects that the cluster refuses, by its schema, a webhook, a quota, a missing right or namespace, or because it does not serve the kind.")
	heldDesc      = desc("relay_sink_held_deletions", "Deletions that the guard of the sink holds until an operator decides.")
	driftDesc     = desc("relay_sink_drift_total", "Changes and deletions by others of objects of the sink.")
	leaderDesc    = desc("relay_sink_leader", "1 while this process writes for the sink, else 0.")
	suspendedDesc = desc("relay_sink_suspended", "1 while the sink is not to write: it is frozen, was promoted, or only tells the difference.")
	completeDesc  = desc("relay_sink_last_complete_timestamp_seconds", "When the cluster last had all that the sink wants it to have; 0 for never.")
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{objectsDesc, writesDesc, deletesDesc, conflictsDesc, foreignDesc, refusedDesc, heldDesc, driftDesc, leaderDesc, suspendedDesc, completeDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It sends without a lock.
func (s *Set) Collect(ch chan<- prometheus.Metric) {
	for _, e := range s.running() {
		leader, suspended := 0.0, 0.0
		if e.lease.Status().Held {
			leader = 1
		}
		e.mu.Lock()
		if e.frozen != nil || e.promoted.Load() || !e.writes() {
			suspended = 1
		}
		_, owned := e.core.Counts()
		held, complete, c := len(e.core.Held().Keys), e.complete, e.counts
		c.writes = maps.Clone(c.writes)
		byState := map[string]int{}
		for _, t := range e.troubles {
			byState[t.state]++
		}
		refused := byState[stateRefused] + byState[stateNamespace] + byState[stateUnserved]
		e.mu.Unlock()
		name := e.spec.Name
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name)
		}
		count := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{name}, labels...)...)
		}
		gauge(objectsDesc, float64(owned))
		for result, n := range c.writes {
			count(writesDesc, n, result)
		}
		count(deletesDesc, c.deletes)
		gauge(conflictsDesc, float64(byState[stateConflict]))
		gauge(foreignDesc, float64(byState[stateForeign]))
		gauge(refusedDesc, float64(refused))
		gauge(heldDesc, float64(held))
		count(driftDesc, c.drift)
		gauge(leaderDesc, leader)
		gauge(suspendedDesc, suspended)
		at := 0.0
		if !complete.IsZero() {
			at = float64(complete.UnixMilli()) / 1000
		}
		gauge(completeDesc, at)
	}
}
