package admin

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ReloadStatus is the state of the config file.
type ReloadStatus struct {
	// LastAttempt is when the file was last loaded, or should have been.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// LastSuccess is when the config that is used was loaded.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Error is why the file is not loaded since FailingSince; empty if it is. Mistakes are its
	// parts.
	Error        string    `json:"error,omitempty"`
	Mistakes     []string  `json:"mistakes,omitempty"`
	FailingSince time.Time `json:"failingSince,omitzero"`
	// NeedsRestart are the changed fields that only a restart applies.
	NeedsRestart []string `json:"needsRestart,omitempty"`
}

// reloadReasons returns what is wrong with the config file.
func reloadReasons(s ReloadStatus) (reasons []string) {
	if s.Error != "" {
		reasons = append(reasons, "config file not loaded"+since(s.FailingSince)+", the previous config stays: "+s.Error)
	}
	if len(s.NeedsRestart) > 0 {
		reasons = append(reasons, "config fields changed that need a restart: "+strings.Join(s.NeedsRestart, ", "))
	}
	return reasons
}

// reloadMetrics are the metrics of a ReloadStatus.
type reloadMetrics struct {
	status              func() ReloadStatus
	successful, success *prometheus.Desc
}

// NewReloadMetrics returns the metrics of a ReloadStatus. status is called from any goroutine.
func NewReloadMetrics(status func() ReloadStatus) prometheus.Collector {
	return &reloadMetrics{
		status: status,
		successful: prometheus.NewDesc("relay_config_last_reload_successful",
			"1 if the last reload of the config succeeded, 0 if it failed.", nil, nil),
		success: prometheus.NewDesc("relay_config_last_reload_success_timestamp_seconds",
			"When the running config was loaded, in seconds since 1970.", nil, nil),
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
