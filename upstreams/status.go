package upstreams

import (
	"time"

	"meshrelay/adsclient"
	"meshrelay/upstreams/intake"
)

// What an intake knows of its upstream, and what operators ask of it.
type (
	// Held is what the guard of a source holds back.
	Held = intake.Held
	// HeldDeletion is one deletion that a guard holds back.
	HeldDeletion = intake.HeldDeletion
	// HeldUpstream is all that the guard of one upstream holds back.
	HeldUpstream = intake.HeldUpstream
	// Frozen is how an operator holds a source.
	Frozen = intake.Frozen
	// Refusal is a resource or file whose newest content is not accepted.
	Refusal = intake.Refusal
	// Trace is what became of one resource of a source on its way in.
	Trace = intake.Trace
	// LeftOut is a resource of a source that is not imported.
	LeftOut = intake.LeftOut
	// Order is what an operator asks of an upstream.
	Order = intake.Order
	// Effect is what an order changes of what is served of an upstream.
	Effect = intake.Effect
	// Scope picks resources by kind and namespace.
	Scope = intake.Part
)

// Clocks of a hold.
const (
	ClockRunning = intake.ClockRunning
	ClockStopped = intake.ClockStopped
	ClockOver    = intake.ClockOver
	ClockNone    = intake.ClockNone
)

// StaleAnnotation is the annotation of what a source that is out of contact gave.
const StaleAnnotation = intake.StaleAnnotation

// Errors of what an operator asks for, to be checked with errors.Is.
var (
	ErrUnknownUpstream = intake.ErrUnknownUpstream
	ErrNotPossible     = intake.ErrNotPossible
)

// ParseScope parses KIND/NAMESPACE. Each of the two may be *.
func ParseScope(text string) (Scope, error) { return intake.ParsePart(text) }

// CheckReason returns the error of an operator's reason that can not be kept.
func CheckReason(reason string) error { return intake.CheckReason(reason) }

// State is the state of a source, as operators see it. The relay serves what a source gave in each.
type State string

// The states of a source.
const (
	// StateConnecting: no stream is open and none was refused for who we are.
	StateConnecting State = "connecting"
	// StateSyncing: the first answers, or the first reading of files, are not complete.
	StateSyncing State = "syncing"
	// StateSynced: all that the source has is mirrored and changes follow.
	StateSynced State = "synced"
	// StateDisconnected: the source was reached before and is not now.
	StateDisconnected State = "disconnected"
	// StateDenied: the source refuses our identity.
	StateDenied State = "denied"
	// StateFailed: the source can not be read, or is a relay of this one's own name.
	StateFailed State = "failed"
)

// Status is a snapshot of one source. Counters are since the start of the process.
type Status struct {
	Name string `json:"name"`
	// ClusterID is the cluster that the source speaks for.
	ClusterID string `json:"clusterID,omitempty"`
	// Type is the kind of source: "xds" or "file".
	Type string `json:"type"`
	// State is the present state, entered at Since.
	State State     `json:"state"`
	Since time.Time `json:"since"`
	// Synced: the source has given its complete content at least once. It stays true through
	// disconnects (PROTOCOL C21).
	Synced bool `json:"synced"`
	// Address is host:port or a path; Addresses has each address of an xds source, in order of
	// preference, and Switches counts how often another one was taken.
	Address   string                    `json:"address,omitempty"`
	Addresses []adsclient.AddressStatus `json:"addresses,omitempty"`
	Switches  uint64                    `json:"switches,omitempty"`
	// Protocol is "sotw" or "delta" for an xds source with an open stream.
	Protocol string `json:"protocol,omitempty"`
	// LastUpdate is when the source last told anything, or, after a restart until it does, was last
	// in contact. It is zero when neither is known.
	LastUpdate time.Time `json:"lastUpdate,omitzero"`
	// LastError is the most recent failure, with what to do about it, empty without one.
	LastError string `json:"lastError,omitempty"`
	// Pending are the type URLs without an answer yet, while not synced.
	Pending []string `json:"pending,omitempty"`
	// Resources counts what is mirrored, by "group/Kind".
	Resources map[string]int `json:"resources,omitempty"`
	// Refused are resources, or files, whose newest content is bad, so that the last good one is
	// served: at most a hundred, with RefusedTotal of them in all.
	Refused      []Refusal `json:"refused,omitempty"`
	RefusedTotal int       `json:"refusedTotal,omitempty"`
	// Panics counts the panics over single resources of the source, which are refused.
	Panics uint64 `json:"panics,omitempty"`
	// Dropped counts what the source has and the relay leaves out now, by reason.
	Dropped map[string]int `json:"dropped,omitempty"`
	// Endpoints is set where the endpoints of services are discovered.
	Endpoints *EndpointsStatus `json:"endpoints,omitempty"`
	// Required: the relay is not ready while the source is stale.
	Required bool `json:"required,omitempty"`
	// FirstSync is set until the first sync, unless the source was on disk at the start.
	FirstSync *FirstSync `json:"firstSync,omitempty"`
	// Stale: the source has been out of contact for too long, or since the start of the relay. It
	// was last in contact at StaleSince.
	Stale      bool      `json:"stale,omitempty"`
	StaleSince time.Time `json:"staleSince,omitzero"`
	// Expired counts what is not served because the source is stale, by "group/Kind".
	Expired map[string]int `json:"expired,omitempty"`
	// Held is set while the guard holds deletions, Frozen while an operator freezes the source.
	Held   *Held   `json:"held,omitempty"`
	Frozen *Frozen `json:"frozen,omitempty"`
	// Drift counts, by "group/Kind", what asking for everything again has brought and no push had.
	Drift map[string]uint64 `json:"drift,omitempty"`
	// OverLimit counts what the limits refuse now.
	OverLimit int `json:"overLimit,omitempty"`
	// MayWait is why the source may itself be waiting for this relay, empty when it is not known to.
	MayWait string `json:"-"`
	// Reconnects counts streams after the first, NACKs responses rejected in part or whole.
	Reconnects uint64 `json:"reconnects"`
	NACKs      uint64 `json:"nacks"`
	// Relayed is as in config.Source.
	Relayed bool `json:"-"`
}

// Enter makes a state the present one.
func (st *Status) Enter(state State) {
	if st.State != state {
		st.State, st.Since = state, time.Now()
	}
}

// EndpointsStatus is the status of a source's endpoints.
type EndpointsStatus struct {
	// Clusters are asked for, one for each port of a service: Answered of them are answered, and
	// Awaited still waited for.
	Clusters int `json:"clusters"`
	Answered int `json:"answered"`
	Awaited  int `json:"awaited,omitempty"`
	// NACKs counts responses rejected in part or whole.
	NACKs uint64 `json:"nacks,omitempty"`
	// LastError is the most recent failure, empty while there is none.
	LastError string `json:"lastError,omitempty"`
}
