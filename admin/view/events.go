package view

import (
	"fmt"
	"strings"
	"time"

	"meshrelay/events"
)

// EventText describes an event in one sentence, without its client.
func EventText(e *events.Event) string {
	var b strings.Builder
	b.WriteString(e.Text)
	if e.After != e.Before {
		fmt.Fprintf(&b, ": %s → %s", e.Before, e.After)
	}
	if r := e.Resources; r != nil && len(r.Names) > 0 {
		if e.Text == "" {
			b.WriteString(r.String())
		}
		b.WriteString(": " + someKeys(r.Names, r.Total()))
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	if e.Hold != "" {
		fmt.Fprintf(&b, " [hold %s]", e.Hold)
	}
	if e.Count > 1 {
		fmt.Fprintf(&b, " [%d times in %v]", e.Count, max(e.Time.Sub(e.Since), time.Millisecond).Round(time.Millisecond))
	}
	return strings.TrimSpace(b.String())
}

// EventBy returns the cause of an event: the name of an operator, or a part of the relay.
func EventBy(e *events.Event) string {
	if e.Operator != nil {
		return e.Operator.String()
	}
	return string(e.By)
}

// EventStages returns how long a change took to reach the clients, or "" when this is unknown.
func EventStages(s *events.Stages) string {
	if s == nil || s.Merged.IsZero() {
		return ""
	}
	var parts []string
	add := func(what string, at time.Time) {
		if !at.IsZero() {
			parts = append(parts, what+" "+max(at.Sub(s.Received), 0).Round(10*time.Microsecond).String())
		}
	}
	add("merged", s.Merged)
	add("pushed", s.Pushed)
	if s.Clients > 0 {
		add("half of the clients", s.Half)
		add("all", s.All)
		parts = append(parts, fmt.Sprintf("%d of %s", s.Acknowledged, Count(s.Clients, "client")))
	}
	return strings.Join(parts, ", ")
}

// EventLevel returns the level of an event.
func EventLevel(t events.Type) Level {
	switch t {
	case events.Lost, events.Denied, events.Failed, events.Expired, events.ConfigRefused, events.NACK:
		return Bad
	case events.Held, events.Stale, events.Refused, events.OverLimit, events.Frozen, events.RolledBack, events.CarriedOut, events.TurnedAway, events.Released:
		return Warn
	case events.Synced, events.Regained, events.Returned, events.Serving, events.Unfrozen:
		return OK
	}
	return None
}
