package events

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	totalDesc = prometheus.NewDesc("relay_events_total", "Events of the journal since the start, by type. Merged events count once.", []string{"type"}, nil)
	keptDesc  = prometheus.NewDesc("relay_events_kept", "Events of the journal in memory.", nil, nil)
)

// Describe implements prometheus.Collector.
func (j *Journal) Describe(ch chan<- *prometheus.Desc) {
	ch <- totalDesc
	ch <- keptDesc
}

// Collect implements prometheus.Collector. It sends without the lock: the receiver may wait for it.
func (j *Journal) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	total, kept := maps.Clone(j.book.total), j.book.n
	j.mu.Unlock()
	for _, t := range Types() {
		ch <- prometheus.MustNewConstMetric(totalDesc, prometheus.CounterValue, float64(total[t]), string(t))
	}
	ch <- prometheus.MustNewConstMetric(keptDesc, prometheus.GaugeValue, float64(kept))
}
