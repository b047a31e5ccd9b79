// Package push carries changes from the merged view to the clients: it merges what event
// handlers report into fewer, larger requests, and decides when one goes out.
//
// The package must not know of connections: whoever serves them gets one merged Request at a
// time.
package push

import (
	"time"

	"meshrelay/mirror"
)

// Reason is why a push is asked for, for logs and metrics.
type Reason string

// The reasons for a push.
const (
	// ConfigUpdate: resources of the merged view changed.
	ConfigUpdate Reason = "config"
	// CopyUpdate: copies of upstreams changed, which clients that do not see everything may see.
	CopyUpdate Reason = "copy"
)

// Reasons returns all reasons.
func Reasons() []Reason { return []Reason{ConfigUpdate, CopyUpdate} }

// Request asks for clients to be brought up to date.
type Request struct {
	// Full asks for everything to be looked at again. When it is false only
	// ConfigsUpdated may have changed.
	Full bool
	// ConfigsUpdated are the keys that may have changed. A key tells nothing about
	// the content: that is read when the push is carried out.
	ConfigsUpdated map[mirror.Key]struct{}
	// Reason counts the changes that were merged, by their reasons.
	Reason map[Reason]int
	// Start is when the oldest of them came.
	Start time.Time
}
