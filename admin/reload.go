package admin

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/config"
)

// ReloadStatus is the state of the config file.
type ReloadStatus = config.ReloadStatus

// reloadReasons returns the problems of the config file.
func reloadReasons(s ReloadStatus) (reasons []string) {
	if s.Error != "" {
		reasons = append(reasons, "config file not loaded"+Since(s.FailingSince)+", the previous config stays: "+s.Error)
	}
	if len(s.NeedsRestart) > 0 {
		reasons = append(reasons, "config fields changed that need a restart: "+strings.Join(s.NeedsRestart, ", "))
	}
	return reasons
}

// NewReloadMetrics returns the metrics of a ReloadStatus. status must be safe for concurrent use.
func NewReloadMetrics(status func() ReloadStatus) []prometheus.Collector {
	gauge := func(name, help string, value func(ReloadStatus) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(status()) })
	}
	return []prometheus.Collector{
		gauge("relay_config_last_reload_successful", "1 if the last reload of the config succeeded, 0 if it failed.", func(s ReloadStatus) float64 {
			if s.Error == "" {
				return 1
			}
			return 0
		}),
	}
}
