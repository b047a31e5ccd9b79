package admin

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ReloadStatus is what became of reading the config file.
type ReloadStatus struct {
	// LastAttempt is when the file was last read and found changed, or had to be read.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// LastSuccess is when the config that is in force was loaded.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Error says why what is in the file is not in force, since FailingSince. It is empty
	// while it is.
	Error        string    `json:"error,omitempty"`
	FailingSince time.Time `json:"failingSince,omitzero"`
	// NeedsRestart are the fields that have changed and are taken over only when the relay
	// is started anew.
	NeedsRestart []string `json:"needsRestart,omitempty"`
}

// reloadReasons returns what is amiss with a config that was to be taken over.
func reloadReasons(s ReloadStatus) (reasons []string) {
	if s.Error != "" {
		reasons = append(reasons, "the config file has not been taken over since "+s.FailingSince.UTC().Format(time.RFC3339)+": what was in force before stays so: "+s.Error)
	}
	if len(s.NeedsRestart) > 0 {
		reasons = append(reasons, "a restart is needed to take over what has changed in the config file: "+strings.Join(s.NeedsRestart, ", "))
	}
	return reasons
}

// reloadMetrics are the metrics of a ReloadStatus.
type reloadMetrics struct {
	status              func() ReloadStatus
	successful, success *prometheus.Desc
}

// NewReloadMetrics returns the metrics of what status returns, which may be called from any
// goroutine.
func NewReloadMetrics(status func() ReloadStatus) prometheus.Collector {
	return &reloadMetrics{
		status: status,
		successful: prometheus.NewDesc("relay_config_last_reload_successful",
			"Whether what is in the config file is in force: 1, or 0 when the last attempt to take it over failed.", nil, nil),
		success: prometheus.NewDesc("relay_config_last_reload_success_timestamp_seconds",
			"When the config that is in force was loaded, in seconds since 1970.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *reloadMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.successful; ch <- m.success }

// Collect implements prometheus.Collector.
func (m *reloadMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.status()
	ok := 0.0
	if s.Error == "" {
		ok = 1
	}
	ch <- prometheus.MustNewConstMetric(m.successful, prometheus.GaugeValue, ok)
	if !s.LastSuccess.IsZero() {
		ch <- prometheus.MustNewConstMetric(m.success, prometheus.GaugeValue, float64(s.LastSuccess.UnixMilli())/1000)
	}
}
