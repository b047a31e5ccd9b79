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
	becauseAdded    = "it was added by a reload"
	becauseFirst    = "clients were never served from this state.dir, which does not have it"
	becauseNew      = "it is new: clients were served from this state.dir before, which does not have it"
	becauseNoState  = "without state.dir nothing of it is known, and clients wait no longer than downstream.startupTimeout: set state.dir, or firstSync: wait"
	becauseHolds    = "it may be waiting for this relay: it is a relay that holds its own clients"
	becauseClient   = "it may be waiting for this relay: its clusterID is that of a client"
	becauseView     = "it may be waiting for this relay: its clusterID is that of a view"
	becauseSameName = "it is a relay of this relay's own name: nothing can be taken from it"
)

// MayWait is why a source may itself be waiting for this relay.
type MayWait string

// Reasons that a source knows.
const (
	// MayWaitHolds: it is a relay that holds its own clients, this relay among them.
	MayWaitHolds MayWait = becauseHolds
	// MayWaitSameName: it is a relay of this relay's own name.
	MayWaitSameName MayWait = becauseSameName
)

// candidate is a source, as far as it matters for who is waited for.
type candidate struct {
	name string
	// mode is its firstSync.
	mode string
	// known: it has synced, or what it gave last is on disk.
	known bool
	// without: an operator lets clients go on without it.
	without bool
	// added: a reload has added it while clients were held.
	added bool
	// mayWait is why it may itself be waiting for this relay, empty when it may not.
	mayWait string
}

// start is what clients are held by at the start of a relay. It has no clock: elapsed is the
// time since the start.
type start struct {
	// kept: there is a state. served: clients were served from it before.
	kept, served     bool
	elapsed, timeout time.Duration
}

// verdict is how clients fare with a source that is not known.
type verdict struct {
	name    string
	awaited bool
	// until is when the wait ends at the latest, since the start; 0: when it has synced.
	until  time.Duration
	reason string
}

// decide returns a verdict for each source that is not known, and when to decide again
// although nothing has changed, since the start; 0: never.
func (s start) decide(all []candidate) (verdicts []verdict, next time.Duration) {
	for _, c := range all {
		if c.known {
			continue
		}
		v := s.judge(c)
		verdicts = append(verdicts, v)
		if s.elapsed < s.timeout {
			next = s.timeout // also a wait without end may end there, if it turns out to be mutual
		}
	}
	return verdicts, next
}

func (s start) judge(c candidate) verdict {
	switch {
	case c.mode == config.FirstSyncOptional:
		return verdict{name: c.name, reason: becauseOptional}
	case c.without:
		return verdict{name: c.name, reason: becauseOperator}
	case c.mode == config.FirstSyncWait:
		return verdict{name: c.name, awaited: true, reason: becauseWait}
	case c.added:
		return verdict{name: c.name, reason: becauseAdded}
	case s.kept && !s.served && c.mayWait == "":
		return verdict{name: c.name, awaited: true, reason: becauseFirst}
	}
	reason := c.mayWait
	switch {
	case !s.kept:
		reason = becauseNoState
	case s.served:
		reason = becauseNew
	}
	return verdict{name: c.name, awaited: s.elapsed < s.timeout, until: s.timeout, reason: reason}
}
