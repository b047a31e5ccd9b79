// Package push carries changes from the merged view to the clients: it merges the
// requests that event handlers make into fewer, larger ones, and decides when one
// goes out.
//
// The package must not know of connections: whoever serves them is handed one
// merged Request at a time.
package push

import (
	"maps"
	"time"

	"meshrelay/mirror"
)

// Reason says why a push is asked for, for logs and metrics.
type Reason string

// The reasons for a push.
const (
	// ConfigUpdate: resources of the merged view changed.
	ConfigUpdate Reason = "config"
	// SourcesUpdate: the set or the order of the sources changed.
	SourcesUpdate Reason = "sources"
)

// Request asks for clients to be brought up to date.
type Request struct {
	// Full asks for everything to be looked at again. When it is false only
	// ConfigsUpdated may have changed.
	Full bool
	// ConfigsUpdated are the keys that may have changed. A key says nothing about
	// the content: that is read when the push is carried out.
	ConfigsUpdated map[mirror.Key]struct{}
	// Reason counts the requests that were merged into this one, by why they were
	// made.
	Reason map[Reason]int
	// Start is when the oldest of them was made.
	Start time.Time
}

// NewRequest returns a request for one changed key, made now.
func NewRequest(key mirror.Key, reason Reason, now time.Time) *Request {
	return &Request{
		ConfigsUpdated: map[mirror.Key]struct{}{key: {}},
		Reason:         map[Reason]int{reason: 1},
		Start:          now,
	}
}

// Merge returns a request for all that r and other ask for. Either may be nil. It
// may change and return r; other is left as it is.
func (r *Request) Merge(other *Request) *Request {
	if r == nil {
		return other.clone()
	}
	if other == nil {
		return r
	}
	r.Full = r.Full || other.Full
	if len(other.ConfigsUpdated) > 0 && r.ConfigsUpdated == nil {
		r.ConfigsUpdated = make(map[mirror.Key]struct{}, len(other.ConfigsUpdated))
	}
	maps.Copy(r.ConfigsUpdated, other.ConfigsUpdated)
	if len(other.Reason) > 0 && r.Reason == nil {
		r.Reason = make(map[Reason]int, len(other.Reason))
	}
	for reason, n := range other.Reason {
		r.Reason[reason] += n
	}
	if r.Start.IsZero() || (!other.Start.IsZero() && other.Start.Before(r.Start)) {
		r.Start = other.Start
	}
	return r
}

func (r *Request) clone() *Request {
	if r == nil {
		return nil
	}
	c := *r
	c.ConfigsUpdated = maps.Clone(r.ConfigsUpdated)
	c.Reason = maps.Clone(r.Reason)
	return &c
}
