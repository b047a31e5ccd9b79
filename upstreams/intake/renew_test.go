package intake

import (
	"slices"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/state"
)

// TestARenewedIntakeBeginsWithWhatTheFormerHeld, also after a panic in the middle of a deletion: what is served stays,
// the source is asked for what it gave, and only all of its content decides what is gone. The disk is written anew.
func TestARenewedIntakeBeginsWithWhatTheFormerHeld(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	scope, err := TypeScope(entryURL)
	if err != nil {
		t.Fatal(err)
	}
	answer := func(resources ...fakexds.Resource) {
		t.Helper()
		m.step(Opened{Scopes: []Scope{scope}})
		m.step(Received{Updates: []Update{m.update(true, resources...)}})
	}
	a, b, c := entry("shop/a", "a"), entry("shop/b", "b"), entry("shop/c", "c")
	answer(a, b, c)
	m.step(Identified{Identity: "cluster"})
	m.step(ServeWithout{})
	m.TakeChanges(m.now)

	k, sc := m.scope(scope)
	delete(sc.byName, "shop/b") // a step was to delete it
	k.pending = map[string]struct{}{"shop/b": {}}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the step does not panic")
			}
		}()
		m.step(struct{ Event }{})
	}()
	m.Intake = m.Renewed(m.now)
	m.holds("shop/a=a", "shop/b=b", "shop/c=c")
	if got := m.Versions(entryURL); len(got) != 2 {
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
