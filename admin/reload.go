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

// NewReloadMetric returns the metric of a ReloadStatus. status must be safe for concurrent use.
func NewReloadMetric(status func() ReloadStatus) prometheus.Collector {
	const help = "1 if the last reload of the config succeeded, 0 if it failed."
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "relay_config_last_reload_successful", Help: help}, func() float64 {
		if status().Error == "" {
			return 1
		}
		return 0
	})
}
