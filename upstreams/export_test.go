package upstreams

import (
	"context"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// Upstream is an upstream as the tests of this package see it.
type Upstream = upstream

// Upstreams returns the upstreams of a Manager.
func (m *Manager) Upstreams() []*Upstream { return m.upstreams }

// StartBy has f run upstreams instead of what Run does.
func (m *Manager) StartBy(f func(*Upstream)) { m.start = f }

// Store and Source are those of the upstream.
func (u *upstream) Store() *mirror.Store { return u.store }
func (u *upstream) Source() Source       { return u.source }

// Run does what the passing of time demands.
func (u *upstream) RunTimer(ctx context.Context) error { return u.run(ctx) }

// Stops are set by who starts an upstream.
func (u *upstream) Stops(stop, stopAll func()) {
	u.stop = stop
	if stopAll != nil {
		u.stopAll = stopAll
	}
}

// Running reports whether the upstream was started before.
func (u *upstream) Running() bool { return u.stopAll != nil }

// Stop ends the source, StopAll all of the upstream.
func (u *upstream) Stop()    { u.stop() }
func (u *upstream) StopAll() { u.stopAll() }

var _ state.Source = (*upstream)(nil)

// EndGraces ends the time in which names may turn up in another scope.
func (u *upstream) EndGraces() { u.Tell(intake.EndGraces{}) }

// Owed returns the types that the source has still to repeat.
func (u *upstream) Owed() []string {
	return locked(u, func(in *intake.Intake) []string { return in.Records().Owed() })
}

// Reasons why clients wait, or do not.
const (
	BecauseNew      = becauseNew
	BecauseNoState  = becauseNoState
	BecauseHolds    = MayWaitHolds
	BecauseClient   = becauseClient
	BecauseView     = becauseView
	BecauseOptional = becauseOptional
	BecauseOperator = becauseOperator
	BecauseAdded    = becauseAdded
	BecauseSameName = MayWaitSameName
)

// Runs reports whether the Manager runs.
func (m *Manager) Runs() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.start != nil
}

// PauseFor sets the pause after the first failure of a source.
func (m *Manager) PauseFor(d time.Duration) { m.pause = d }

// Due does what is due, and returns how long nothing will be.
func (u *upstream) Due() time.Duration { return u.turn() }

// Notes returns how many notes wait for the log.
func (u *upstream) Notes() int { return locked(u, func(*intake.Intake) int { return len(u.notes) }) }
