package state

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics returns those of one Keeper.
func metrics(k *Keeper) prometheus.Collector {
	gauge := func(name, help string, value func(Status) bool) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if value(k.Status()) {
				return 1
			}
			return 0
		})
	}
	all := prometheus.NewRegistry()
	all.MustRegister(
		gauge("relay_state_healthy", "Whether the state is in use and was written without error the last time.", func(s Status) bool { return s.Healthy }),
		gauge("relay_state_journal_healthy", "Whether the journal of events was written without error the last time, where it is kept.", func(s Status) bool { return s.JournalError == "" }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "relay_state_set_aside_files", Help: "State files in the directory that could not be used and were set aside.",
		}, func() float64 { return float64(len(k.Status().SetAside)) }),
	)
	return all
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
