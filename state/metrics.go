package state

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of one Keeper.
type metrics struct {
	flushes, errors                                    prometheus.Counter
	took                                               prometheus.Histogram
	lastFlush, size, healthy, aside, revisions, unkept *prometheus.Desc
}

func newMetrics() metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return metrics{
		flushes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "relay_state_flushes_total", Help: "Transactions that have written changes to the state file.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "relay_state_flush_errors_total", Help: "Attempts to open or write the state file that failed.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "relay_state_flush_duration_seconds", Help: "How long writing changes to the state file took, until they were durable.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		lastFlush: desc("relay_state_last_flush_timestamp_seconds", "When the state file was last known to have all changes, in seconds since the epoch."),
		size:      desc("relay_state_size_bytes", "Size of the state file."),
		healthy:   desc("relay_state_healthy", "Whether the state file is in use and was written without error the last time."),
		aside:     desc("relay_state_set_aside_files", "State files in the directory that could not be used and were set aside."),
		revisions: desc("relay_state_revisions", "Revisions of the upstream in the history.", "upstream"),
		unkept:    desc("relay_state_not_kept", "1 for an upstream of which nothing is kept until the relay is restarted, because the state file was lost.", "upstream"),
	}
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(ch chan<- *prometheus.Desc) {
	m := &k.metrics
	m.flushes.Describe(ch)
	m.errors.Describe(ch)
	m.took.Describe(ch)
	for _, d := range []*prometheus.Desc{m.lastFlush, m.size, m.healthy, m.aside, m.revisions, m.unkept} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Upstreams are those of the config: what a file
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
	gauge(m.healthy, float64(numberOf(st.Healthy)))
	gauge(m.aside, float64(len(st.SetAside)))
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, f := range k.followed {
		n := 0
		if h := k.kept[name]; h != nil {
			n = h.revisions()
		}
		gauge(m.revisions, float64(n), name)
		gauge(m.unkept, float64(numberOf(f.lost)), name)
	}
}

// Status returns how the Keeper fares.
func (k *Keeper) Status() Status {
	inUse := k.db.Load() != nil
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.status
	st.Path, st.InUse, st.Size, st.SetAside = k.path, inUse, k.size, k.aside
	for _, name := range sortedNames(k.followed) {
		if k.followed[name].lost {
			st.NotKept = append(st.NotKept, name)
		}
	}
	st.Healthy = inUse && st.LastError == "" && len(st.NotKept) == 0
	return st
}
