package upstreams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// Live is a Source that can read one object of its server at a time, and write a condition into its status. Any
// goroutine may call its methods.
type Live interface {
	// Generation returns the metadata.generation of an object. held reports whether the intake has its content.
	Generation(ctx context.Context, key mirror.Key) (generation int64, held bool, err error)
	// Reports reports whether conditions are written, and after how long a time without a change.
	Reports() (interval time.Duration, on bool)
	// Report writes the condition of an object, unless it has the condition, or status True for its content. It asks
	// allow before it writes.
	Report(ctx context.Context, key mirror.Key, c Condition, allow func() bool) (Reported, error)
}

// Condition is a condition in the status of an object. Report sets Type and ObservedGeneration.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"` // True or False
	Reason             string    `json:"reason,omitempty"`
	Message            string    `json:"message,omitempty"`
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
	ObservedGeneration int64     `json:"observedGeneration,omitempty"`
}

// Reported is the result of Live.Report.
type Reported string

// The results.
const (
	Written   Reported = "written"
	Unchanged Reported = "unchanged"
	Outdated  Reported = "outdated" // the object has changed, or has gone
	Deferred  Reported = "deferred" // too many are written
	NotLeader Reported = "other"    // another replica writes
	Failed    Reported = "failed"
)

// ErrNotLive is the error for an upstream whose objects have no generation.
var ErrNotLive = errors.New("only an upstream of kind kubernetes tells the generation of an object")

// Live returns the source of an upstream, and the key by which the source knows a served resource.
func (m *Manager) Live(upstream string, served mirror.Key) (source Live, original mirror.Key, err error) {
	for _, u := range m.all() {
		if u.cfg.Name != upstream {
			continue
		}
		live, is := u.source.(Live)
		if !is {
			return nil, original, fmt.Errorf("upstream %s: %w", upstream, ErrNotLive)
		}
		for _, t := range locked(u.upstream, func(in *intake.Intake) []intake.Trace { return in.Trace(served) }) {
			if t.Key == served && t.Resource != nil {
				return live, t.Original, nil
			}
		}
		return nil, original, fmt.Errorf("upstream %s does not have it any more", upstream)
	}
	return nil, original, fmt.Errorf("%w %q", intake.ErrUnknownUpstream, upstream)
}

// Reporting returns the upstreams whose conditions are written, with their intervals.
func (m *Manager) Reporting() map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, u := range m.all() {
		if live, is := u.source.(Live); is {
			if interval, on := live.Reports(); on {
				out[u.cfg.Name] = interval
			}
		}
	}
	return out
}
