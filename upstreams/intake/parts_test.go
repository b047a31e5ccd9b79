package intake

import (
	"slices"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/upstreams/intake/records"
)

// stream begins a stream of ServiceEntries.
func (m *machine) stream() {
	m.t.Helper()
	m.step(Opened{Scopes: []records.Scope{m.update(false).Scope}})
}

// part takes in a part of an answer, or its last part.
func (m *machine) part(complete, last bool, resources ...fakexds.Resource) Output {
	m.t.Helper()
	u := m.update(complete, resources...)
	u.Part = !last
	return m.step(Received{Updates: []records.Update{u}})
}

func TestAnAnswerInPartsCountsWithItsLastPart_S18(t *testing.T) {
	a, b, c := entry("shop/a", "a"), entry("shop/b", "b"), entry("shop/c", "c")
	nameless := entry("", "x")
	began := func(t *testing.T) *machine {
		m := newMachine(t, true, config.Provenance{})
		m.stream()
		m.part(false, true, a, b)
		m.stream()
		return m
	}
	t.Run("an upstream has synced", func(t *testing.T) {
		m := newMachine(t, true, config.Provenance{})
		m.stream()
		m.part(false, false, a)
		m.part(false, false, b)
		if m.holds("shop/a=a", "shop/b=b"); m.complete || !slices.Equal(m.records.Pending(), []string{entryURL}) {
			t.Errorf("after a part it has synced, %v is pending", m.records.Pending())
		}
		if m.part(false, true, c); !m.complete || m.records.Pending() != nil {
			t.Errorf("after the last part it has not synced, %v is pending", m.records.Pending())
		}
	})
	t.Run("what vanished is gone", func(t *testing.T) {
		m := began(t)
		if out := m.part(true, false, b); out.Gone != 0 {
			t.Errorf("%d are gone by a part", out.Gone)
		}
		m.holds("shop/a=a", "shop/b=b")
		if out := m.part(true, true, c); out.Gone != 1 || out.Relist {
			t.Errorf("%d are gone, everything is asked for again: %v", out.Gone, out.Relist)
		}
		m.holds("shop/b=b", "shop/c=c")
	})
	t.Run("the stream ends in the middle", func(t *testing.T) {
		m := began(t)
		m.part(true, false, a)
		m.step(Closed{})
		m.holds("shop/a=a", "shop/b=b")
		m.stream()
		m.part(true, true, b)
		m.holds("shop/b=b")
	})
	t.Run("a name comes in two parts", func(t *testing.T) {
		m := began(t)
		m.part(true, false, a)
		if out := m.part(true, true, a); out.RefusedTotal != 1 {
			t.Errorf("refused: %v", out.Refused)
		}
		m.holds("shop/a=a")
	})
	t.Run("a name in an earlier part can not be read", func(t *testing.T) {
		m := began(t)
		m.part(true, false, b, nameless)
		if out := m.part(true, true, c); out.Gone != 0 || !out.Unread {
			t.Errorf("%d are gone", out.Gone)
		}
		m.holds("shop/a=a", "shop/b=b", "shop/c=c")
	})
	t.Run("there is no more room at the end than before", func(t *testing.T) {
		m := began(t)
		m.limit(func(l *config.Limits) { l.MaxResources = 2 })
		m.part(true, false, a, c)
		if out := m.part(true, true, b); out.RefusedTotal != 0 || out.Relist {
			t.Errorf("refused: %v, everything is asked for again: %v", out.Refused, out.Relist)
		}
		m.holds("shop/a=a", "shop/b=b")
	})
	t.Run("there is room when what vanished is gone", func(t *testing.T) {
		m := began(t)
		m.limit(func(l *config.Limits) { l.MaxResources = 2 })
		if out := m.part(true, false, c); out.RefusedTotal != 1 || out.Relist {
			t.Errorf("refused: %v, everything is asked for again: %v", out.Refused, out.Relist)
		}
		if out := m.part(true, true, b); !out.Relist {
			t.Error("what there was no room for is not asked for again")
		}
		m.holds("shop/b=b")
		m.part(false, true, b, c)
		if m.holds("shop/b=b", "shop/c=c"); m.Status(m.now).RefusedTotal != 0 {
			t.Errorf("refused: %v", m.Status(m.now).Refused)
		}
	})
}
