package state

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of one Keeper.
type metrics struct {
	flushes, errors                            prometheus.Counter
	took                                       prometheus.Histogram
	lastFlush, size, healthy, aside, revisions *prometheus.Desc
}

func newMetrics() metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return metrics{
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
		lastFlush: desc("relay_state_last_flush_timestamp_seconds", "When the state was last known to have all changes, in seconds since the epoch."),
		size:      desc("relay_state_size_bytes", "Size of the state."),
		healthy:   desc("relay_state_healthy", "Whether the state is in use and was written without error the last time."),
		aside:     desc("relay_state_set_aside_files", "State files in the directory that could not be used and were set aside."),
		revisions: desc("relay_state_revisions", "Revisions of the upstream in the history.", "upstream"),
	}
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) {
	m := &k.metrics
	m.flushes.Describe(ch)
	m.errors.Describe(ch)
	m.took.Describe(ch)
	for _, d := range []*prometheus.Desc{m.lastFlush, m.size, m.healthy, m.aside, m.revisions} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Upstreams are those of the config: what a store
// has of others makes no labels.
func (k *Keeper) Collect(ch chan<- prometheus.Metric) {
	m := &k.metrics
	m.flushes.Collect(ch)
	m.errors.Collect(ch)
	m.took.Collect(ch)
	st := k.Status()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	if !st.LastFlush.IsZero() {
		gauge(m.lastFlush, float64(st.LastFlush.UnixMilli())/1000)
	}
	gauge(m.size, float64(st.Size))
	gauge(m.healthy, numberOf(st.Healthy))
	gauge(m.aside, float64(len(st.SetAside)))
	k.mu.Lock()
	defer k.mu.Unlock()
	for name := range k.followed {
		gauge(m.revisions, float64(k.kept[name].Revisions), name)
	}
}

func numberOf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Status returns how the Keeper fares.
func (k *Keeper) Status() Status {
	info := k.store.Info()
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.status
	st.Info = info
	st.Healthy = info.InUse && st.LastError == ""
	return st
}
