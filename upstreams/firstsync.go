package upstreams

import (
	"time"

	"meshrelay/config"
)

// Reasons why clients wait for a source, or do not. Each completes a sentence that begins with
// "clients wait for it: ", or "clients are served without it: ".
const (
	becauseWait     = "its firstSync is wait"
	becauseOptional = "its firstSync is optional"
	becauseOperator = "an operator ran \"relay serve-without\""
	becauseReading  = "its state is being read from disk"
	becauseFrozen   = "it is frozen, and nothing of it was known here then"
	becauseAdded    = "it was added by a reload"
	becauseFirst    = "clients were never served from this state.dir, which does not have it"
	becauseNew      = "it is new: clients were served from this state.dir before, which does not have it"
	becauseNoState  = "without state.dir it is not on disk, and clients wait no longer than downstream.startupTimeout: set state.dir, or firstSync: wait"
	becauseClient   = "it may be waiting for this relay: its clusterID is that of a client"
	becauseView     = "it may be waiting for this relay: its clusterID is that of a view"
	// MayWaitHolds and MayWaitSameName are reasons that a source knows, for Status.MayWait.
	MayWaitHolds    = "it may be waiting for this relay: it is a relay that holds its own clients"
	MayWaitSameName = "it is a relay with the name of this relay: nothing can be taken from it"
)

// FirstSync is whether clients wait for a source, and why. The source has not synced since the start of the
// relay, and was not on disk then.
type FirstSync struct {
	// Awaited: clients wait for it. Otherwise they are served without it, or will be.
	Awaited bool `json:"awaited"`
	// Until is when the wait ends at the latest. It is zero when only the first sync ends the wait.
	Until time.Time `json:"until,omitzero"`
	// Reason completes: "clients wait for it: ", or "clients are served without it: ".
	Reason string `json:"reason"`
}

// candidate is a source that clients may wait for.
type candidate struct {
	name    string
	mode    string // its firstSync
	known   bool   // it has synced, or the disk has its resources
	frozen  bool   // it was frozen before: what it has now is not served
	without bool   // an operator serves clients without it
	added   bool   // a reload has added it while clients were held
	mayWait string // why it may itself be waiting for this relay, empty when it may not
}

// start holds clients at the start of a relay. It has no clock.
type start struct {
	kept, served     bool // there is a state; clients were served from it before
	reading          bool // the state is not read yet: no client is served
	elapsed, timeout time.Duration
	until            time.Time // when the timeout ends, zero before clients wait
}

// verdict is the FirstSync of one source.
type verdict struct {
	name string
	FirstSync
}

// decide returns a verdict for each source whose content is not known.
func (s start) decide(all []candidate) (verdicts []verdict) {
	for _, c := range all {
		if !c.known || c.frozen {
			verdicts = append(verdicts, verdict{c.name, s.judge(c)})
		}
	}
	return verdicts
}

func (s start) judge(c candidate) FirstSync {
	switch {
	case s.reading:
		return FirstSync{Awaited: true, Reason: becauseReading}
	case c.without:
		return FirstSync{Reason: becauseOperator}
	case c.frozen:
		return FirstSync{Awaited: true, Reason: becauseFrozen}
	case c.mode == config.FirstSyncOptional:
		return FirstSync{Reason: becauseOptional}
	case c.mode == config.FirstSyncWait:
		return FirstSync{Awaited: true, Reason: becauseWait}
	case c.added:
		return FirstSync{Reason: becauseAdded}
	case s.kept && !s.served && c.mayWait == "":
		return FirstSync{Awaited: true, Reason: becauseFirst}
	}
	f := FirstSync{Reason: c.mayWait}
	switch {
	case !s.kept:
		f.Reason = becauseNoState
	case s.served:
		f.Reason = becauseNew
	}
	if s.elapsed < s.timeout {
		f.Awaited, f.Until = true, s.until
	}
	return f
}
