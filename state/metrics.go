package state

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of one Keeper.
type metrics struct {
	flushes, errors      prometheus.Counter
	took                 prometheus.Histogram
	all                  []prometheus.Collector // these and gauges
	lastFlush, revisions *prometheus.Desc
}

func newMetrics(k *Keeper) metrics {
	m := metrics{
		flushes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "relay_state_flushes_total", Help: "Flushes that have written changes to the state.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "relay_state_flush_errors_total", Help: "Attempts to open or write the state that failed.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "relay_state_flush_duration_seconds", Help: "How long writing changes to the state took, until they were durable.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		lastFlush: prometheus.NewDesc("relay_state_last_flush_timestamp_seconds", "When the state was last known to have all changes, in seconds since the epoch.", nil, nil),
		revisions: prometheus.NewDesc("relay_state_revisions", "Revisions of the upstream in the history.", []string{"upstream"}, nil),
	}
	gauge := func(name, help string, value func(Status) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value(k.Status())) })
	}
	m.all = []prometheus.Collector{
		m.flushes, m.errors, m.took,
		gauge("relay_state_size_bytes", "Size of the state.", func(s Status) int64 { return s.Size }),
		gauge("relay_state_healthy", "Whether the state is in use and was written without error the last time.", func(s Status) int64 {
			if s.Healthy {
				return 1
			}
			return 0
		}),
		gauge("relay_state_journal_healthy", "Whether the journal of events was written without error the last time, where it is kept.", func(s Status) int64 {
			if s.JournalError == "" {
				return 1
			}
			return 0
		}),
		gauge("relay_state_set_aside_files", "State files in the directory that could not be used and were set aside.", func(s Status) int64 { return int64(len(s.SetAside)) }),
	}
	return m
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range k.metrics.all {
		c.Describe(ch)
	}
	ch <- k.metrics.lastFlush
	ch <- k.metrics.revisions
}

// Collect implements prometheus.Collector. Only upstreams of the config are labels. It sends without the lock: the
// receiver asks for the Status meanwhile.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	for _, c := range k.metrics.all {
		c.Collect(ch)
	}
	k.mu.Lock()
	last, revisions := k.status.LastFlush, make(map[string]int, len(k.followed))
	for name := range k.followed {
		revisions[name] = k.kept[name].Revisions
	}
	k.mu.Unlock()
	if !last.IsZero() {
		ch <- prometheus.MustNewConstMetric(k.metrics.lastFlush, prometheus.GaugeValue, float64(last.UnixMilli())/1000)
	}
	for name, n := range revisions {
		ch <- prometheus.MustNewConstMetric(k.metrics.revisions, prometheus.GaugeValue, float64(n), name)
	}
}

// Status returns the state of the Keeper.
func (k *Keeper) Status() Status {
	info := k.store.Info()
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.status
	st.Info, st.JournalError = info, k.journalError
	st.Healthy = info.InUse && st.LastError == ""
	return st
}
