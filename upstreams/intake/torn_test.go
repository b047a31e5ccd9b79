package intake

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams/intake/records"
)

// newHolding returns a machine on whose stream eight ServiceEntries came, with more.
func newHolding(t *testing.T, more ...fakexds.Resource) (m *machine, names [][]byte) {
	t.Helper()
	m = newMachine(t, true, config.Provenance{})
	m.step(SetPolicy{config.Upstream{Guard: config.Guard{Percent: 30, Count: 2, HoldFor: config.OpenEnded(10 * time.Minute)}}})
	all := more
	for i := range 8 {
		names = append(names, fmt.Appendf(nil, "shop/e-%d", i))
		all = append(all, entry(string(names[i]), "one.example"))
	}
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true, all...)}})
	return m, names
}

// C7: a delta stream tells everything at its beginning only.
func TestWhatIsReadableSince_HoldsNothingBackOnADeltaStream(t *testing.T) {
	bad := entry("shop/bad", "one.example")
	bad.Any.Value = []byte{0x0a, 0xff}
	m, names := newHolding(t, bad)
	gone := m.update(false)
	gone.Removed = slices.Values(names)
	m.step(Received{Updates: []records.Update{gone}})
	m.now = m.now.Add(10 * time.Minute)
	if out := m.step(Tick{}); !out.Repeat || !m.gate.Holding() {
		t.Fatalf("it is not asked to repeat: %+v", out)
	}
	if out := m.step(Repeated{}); out.Deleted > 0 {
		t.Errorf("%d deleted, and what is not readable may be one of them", out.Deleted)
	}
	if out := m.step(Received{Updates: []records.Update{m.update(false, entry("shop/bad", "one.example"))}}); out.Deleted != len(names) {
		t.Errorf("%d deleted, want %d: all is readable", out.Deleted, len(names))
	}
	m.holds("shop/bad=one.example")
}

func TestAnAnswerOverWhichTheCodePanics_EndsNoHold(t *testing.T) {
	m, names := newHolding(t)
	m.step(Received{Updates: []records.Update{m.update(true)}})
	m.step(Closed{})
	m.open(entryURL)
	m.step(Received{Updates: []records.Update{m.update(true)}})
	m.now = m.now.Add(11 * time.Minute)
	m.step(Closed{})
	m.open(entryURL)
	m.panics(Received{Updates: []records.Update{m.broken()}})
	m.open(entryURL)
	if out := m.step(Received{Updates: []records.Update{m.update(true)}}); out.Deleted > 0 || m.store.Counts()[federation.ServiceEntry] != len(names) || !m.gate.Holding() {
		t.Errorf("%d deleted, held: %t", out.Deleted, m.gate.Holding())
	}
}
