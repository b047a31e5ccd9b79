package intake

import (
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

// Status is the state of an Intake. Counters are since the start of the process.
type Status struct {
	// Synced: the source has given its complete content at least once. It stays true through
	// disconnects (PROTOCOL C21).
	Synced bool `json:"synced"`
	// Complete: the present source has given all its content, first at CompleteAt. LastContact is zero in contact.
	Complete                bool      `json:"-"`
	CompleteAt, LastContact time.Time `json:"-"`
	InContact               bool      `json:"-"`
	// LastUpdate is when the source last sent anything. After a restart, it is the last contact
	// until then. Zero is unknown.
	LastUpdate time.Time `json:"lastUpdate,omitzero"`
	// Pending are the type URLs without an answer, while not synced.
	Pending []string `json:"pending,omitempty"`
	records.Summary
	// Empty counts the services that are served without endpoints because they have none.
	Empty int `json:"withoutEndpoints,omitempty"`
	// Stale: the source is out of contact for too long, or since the start of the relay. StaleSince
	// is the last known contact. StaleLater: there was a later one.
	Stale      bool      `json:"stale,omitempty"`
	StaleSince time.Time `json:"staleSince,omitzero"`
	StaleLater bool      `json:"staleLater,omitempty"`
	// Expired counts the resources that are not served because the source is stale, by
	// "group/Kind".
	Expired map[string]int `json:"expired,omitempty"`
	// Held is set while the guard holds deletions, Frozen while the upstream is frozen.
	Held   *Held   `json:"held,omitempty"`
	Frozen *Frozen `json:"frozen,omitempty"`
}

// Held are the deletions that the guard of a source holds.
type Held struct {
	// ID is a hash of the held keys and versions.
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
	// Clock is the state of the hold's clock: running, stopped, over or none.
	Clock string `json:"clock"`
	// Until is the end of a running clock. Left is the time left of a stopped one, as in 7m30s.
	Until time.Time `json:"until,omitzero"`
	Left  string    `json:"left,omitempty"`
	// Asked is the time of the last request to the source to repeat everything, once the clock is over.
	Asked time.Time `json:"asked,omitzero"`
	// Reason is why the deletions look like an accident.
	Reason string `json:"reason"`
	// Removals counts the held deletions, Of the resources that the source had. Examples are some,
	// as "group/Kind namespace/name".
	Removals int      `json:"removals"`
	Of       int      `json:"of"`
	Examples []string `json:"examples,omitempty"`
}

// Clocks of a hold.
const (
	ClockRunning = "running"
	ClockStopped = "stopped" // the source is out of contact
	ClockOver    = "over"    // the source has to repeat the deletions
	ClockNone    = "none"    // only an operator or the source ends the hold
)

// HeldDeletion is one deletion that a guard holds. Version is the served one.
type HeldDeletion struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Version   string `json:"version"`
	// Created is when the resource was created, zero if unknown.
	Created time.Time `json:"created,omitzero"`
	// Since is when the source deleted it.
	Since time.Time `json:"since"`
}

// HeldUpstream has all held deletions of one upstream, sorted by kind, namespace and name.
type HeldUpstream struct {
	Upstream string `json:"upstream"`
	Held
	Deletions []HeldDeletion `json:"deletions"`
}

// Frozen is the freeze of an upstream.
type Frozen struct {
	state.Frozen
	// Waiting counts the resources that the source has changed or deleted since.
	Waiting int `json:"waiting"`
}

// Status returns the status at a time.
func (in *Intake) Status(now time.Time) Status {
	in.gate.SetNow(now)
	c := in.gate.Contact()
	st := Status{
		Summary: in.records.Summary(in.gate.SizeOf),
		Synced:  in.told, Complete: in.complete, CompleteAt: in.completeAt, InContact: c.Has, LastContact: c.Since, LastUpdate: in.lastUpdate,
		Stale: c.Stale, Expired: in.expired(), Empty: in.empty,
	}
	if !in.complete {
		st.Pending = in.records.Pending()
	}
	if c.Stale {
		st.StaleSince, st.StaleLater = c.Since, c.Lasted
	}
	if h, is := in.gate.Hold(); is {
		held := in.describeHold(now, h)
		st.Held = &held
	}
	if f := in.frozen; f != nil {
		st.Frozen = &Frozen{*f, in.gate.Exceptions()}
	}
	return st
}

// HeldDeletions returns the held deletions, or nil.
func (in *Intake) HeldDeletions(now time.Time) []HeldUpstream {
	in.gate.SetNow(now)
	h, is := in.gate.Hold()
	if !is {
		return nil
	}
	out := HeldUpstream{Upstream: in.cfg.name, Held: in.describeHold(now, h)}
	for _, key := range in.namedHold().keys {
		r := in.served.Get(key)
		since, _ := in.gate.Departure(key)
		out.Deletions = append(out.Deletions, HeldDeletion{
			Kind: key.Kind.String(), Namespace: key.Namespace, Name: key.Name,
			Version: r.Version(), Created: r.Metadata().CreateTime, Since: since,
		})
	}
	return []HeldUpstream{out}
}

// describeHold returns the hold for a status.
func (in *Intake) describeHold(now time.Time, h gate.Hold) Held {
	named := in.namedHold()
	out := Held{ID: named.id, Since: h.Since, Clock: ClockNone, Reason: h.Why, Asked: h.Asked, Removals: len(named.keys), Of: h.Of}
	switch {
	case !h.Ends:
	case h.Left == 0:
		out.Clock = ClockOver
	case h.Runs:
		out.Clock, out.Until = ClockRunning, now.Add(h.Left)
	default:
		out.Clock, out.Left = ClockStopped, h.Left.Round(time.Second).String()
	}
	for _, key := range named.keys[:min(len(named.keys), maxExamples)] {
		out.Examples = append(out.Examples, key.String())
	}
	return out
}

// expired counts, by kind, the resources of the source that are not served because they have
// expired.
func (in *Intake) expired() map[string]int {
	out, seen := map[string]int{}, map[mirror.Key]bool{}
	if in.gate.Contact().Has {
		return out // for nothing has expired
	}
	for key := range in.records.Keys() {
		if !seen[key] && in.gate.Withholds(key.Kind) && in.served.Get(key) == nil {
			seen[key] = true
			out[key.Kind.String()]++
		}
	}
	return out
}
