package events

import "github.com/prometheus/client_golang/prometheus"

var (
	totalDesc = prometheus.NewDesc("relay_events_total", "Events of the journal since the start, by type. Merged events count once.", []string{"type"}, nil)
	keptDesc  = prometheus.NewDesc("relay_events_kept", "Events of the journal in memory.", nil, nil)
)

// Describe implements prometheus.Collector.
func (j *Journal) Describe(ch chan<- *prometheus.Desc) {
	ch <- totalDesc
	ch <- keptDesc
}

// Collect implements prometheus.Collector.
func (j *Journal) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, t := range Types() {
		ch <- prometheus.MustNewConstMetric(totalDesc, prometheus.CounterValue, float64(j.book.total[t]), string(t))
	}
	ch <- prometheus.MustNewConstMetric(keptDesc, prometheus.GaugeValue, float64(j.book.n))
}
