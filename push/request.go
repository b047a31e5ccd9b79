// Package push merges changes of the merged view into few requests, and decides when clients are pushed.
//
// The package must not know connections: the server gets one merged Request at a time.
package push

import (
	"time"

	"meshrelay/mirror"
)

// Reason is the cause of a push, for logs and metrics.
type Reason string

// The reasons for a push.
const (
	// ServiceUpdate: a service of the merged view changed, and not only its endpoints. EndpointUpdate: only they did.
	ServiceUpdate  Reason = "service"
	EndpointUpdate Reason = "endpoint"
	// ConfigUpdate: other resources of the merged view changed, or what clients of services do not use.
	ConfigUpdate Reason = "config"
	// CopyUpdate: copies of upstreams changed. Only clients with a view of some upstreams may see them.
	CopyUpdate Reason = "copy"
)

// Reasons returns all reasons.
func Reasons() []Reason { return []Reason{ServiceUpdate, EndpointUpdate, ConfigUpdate, CopyUpdate} }

// Request asks the server to bring clients up to date.
type Request struct {
	// Full is set when anything may have changed. Otherwise only ConfigsUpdated may have.
	Full bool
	// ConfigsUpdated are the keys that may have changed. The server reads their content during the push.
	ConfigsUpdated map[mirror.Key]struct{}
	// Reason counts the merged changes by reason.
	Reason map[Reason]int
	// Start is the time of the oldest change.
	Start time.Time
}
