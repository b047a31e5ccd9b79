package intake

import (
	"slices"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

// TestARenewedIntakeBeginsWithWhatTheFormerHeld, also after a panic in the middle of a deletion: what is served stays,
// the source is asked for what it gave, and only all of its content decides what is gone. The disk is written anew.
func TestARenewedIntakeBeginsWithWhatTheFormerHeld(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	scope, err := records.TypeScope(entryURL)
	if err != nil {
		t.Fatal(err)
	}
	answer := func(resources ...fakexds.Resource) {
		t.Helper()
		m.step(Opened{Scopes: []records.Scope{scope}})
		m.step(Received{Updates: []records.Update{m.update(true, resources...)}})
	}
	a, b, c := entry("shop/a", "a"), entry("shop/b", "b"), entry("shop/c", "c")
	answer(a, b, c)
	m.step(Identified{Identity: "cluster"})
	m.step(ServeWithout{})
	m.TakeChanges(m.now)

	m.panics(Received{Updates: []records.Update{m.update(true, a, c), m.broken()}}) // the step was to delete b
	m.holds("shop/a=a", "shop/b=b", "shop/c=c")
	if got := m.records.Versions(m.update(false).Scope); len(got) != 2 {
		t.Errorf("a stream resumes with %v, want a and c", got)
	}
	if st := m.Status(m.now); st.Complete || !st.Synced || m.Identity() != "cluster" || !m.ServedWithout() || !m.gate.Contact().Has {
		t.Errorf("%+v", st)
	}
	changes, meta := m.TakeChanges(m.now)
	if !meta.Whole || len(changes) != 3 || slices.ContainsFunc(changes, func(c state.Change) bool { return c.Record == nil }) {
		t.Errorf("whole: %t, changes %+v", meta.Whole, changes)
	}
	m.step(Tick{})
	m.holds("shop/a=a", "shop/b=b", "shop/c=c")
	answer(a, b)
	m.holds("shop/a=a", "shop/b=b")
}
