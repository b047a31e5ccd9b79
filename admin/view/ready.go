package view

import "meshrelay/admin"

// Ready returns the readiness in one or two words.
func Ready(r admin.Readiness) (string, Level) {
	switch {
	case !r.Ready:
		return "not ready", Bad
	case len(r.Reasons) > 0:
		return "ready, degraded", Warn
	}
	return "ready", OK
}
