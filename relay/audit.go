package relay

import (
	"os"

	"meshrelay/audit"
	"meshrelay/config"
	"meshrelay/upstreams/intake"
)

// newAudit returns the audit log of a config. It does not open it.
func newAudit(o Options) *audit.Log {
	cfg := o.Config.Audit
	options := audit.Options{
		File: cfg.File, MaxBytes: int64(cfg.MaxBytes), MaxFiles: cfg.MaxFiles, Required: cfg.Required,
		Relay: o.Config.Node.ID, Logger: o.Logger,
	}
	if cfg.Stdout {
		options.Output = os.Stdout
	}
	return audit.New(options)
}

// auditClaims records resources of an upstream that are left out because of a host that they claim.
func (r *Relay) auditClaims(upstream string, refused []intake.Claim, more int) {
	for _, c := range refused {
		r.audit.Record(audit.Line{Event: audit.ClaimRefused, Upstream: upstream, Target: c.Resource, Reason: "hosts", Error: c.Detail})
	}
	if more > 0 {
		r.audit.Record(audit.Line{Event: audit.ClaimRefused, Upstream: upstream, Reason: "hosts", Count: uint64(more)}) // a number of resources
	}
}

// auditReload records a load of the config file.
func (r *Relay) auditReload(st config.ReloadStatus) {
	line := audit.Line{Event: audit.ConfigLoaded, Action: "reload", Target: st.File, After: st.Text()}
	if r.hungUp.Swap(false) {
		line.Reason = "SIGHUP"
	}
	if st.Error != "" {
		line.Event, line.Error = audit.ConfigRefused, st.Error
	}
	line.Before, r.loaded = r.loaded, st.Text()
	r.audit.Record(line)
}
