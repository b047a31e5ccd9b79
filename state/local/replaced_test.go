package local

import (
	"testing"
	"time"

	"meshrelay/state"
)

// hooked is a source with something that happens once while it is asked.
type hooked struct {
	*fake
	hook func()
}

func (h *hooked) TakeChanges() ([]state.Change, state.Meta) {
	changes, meta := h.fake.TakeChanges()
	if f := h.hook; f != nil {
		h.hook = nil
		f()
	}
	return changes, meta
}

func TestASourceRemovedDuringAFlushLeavesNothingToItsSuccessor(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	old, next := newFake(), newFake()
	h := &hooked{fake: old}
	old.put(record("a", "old.example"))
	old.setMeta(state.Meta{Synced: true})
	k.Follow("east", h)
	h.hook = func() {
		k.Unfollow("east")
		k.Follow("east", next)
	}
	flush(t, k)
	next.put(record("b", "new.example"))
	next.setMeta(state.Meta{Synced: true})
	flush(t, k)
	flush(t, k)
	end(k)
	k = open(t, dir)
	same(t, "what is kept", hostsOf(t, k.Load("east").Records), map[string]string{"b": "new.example"})
}

func TestAKillWhileADamagedFileIsReplacedLosesNothing(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	s := newFake()
	s.put(record("a", "a.example"))
	s.setMeta(state.Meta{Synced: true, LastContact: time.Now()})
	k.Follow("east", s)
	flush(t, k)
	end(k)
	// The steps of repair up to the new file in its place.
	store := New(dir, nil)
	for _, name := range []string{logName("east"), indexName} {
		must(t, store.setAside(name, errCorrupt))
	}
	k = openState(dir)
	t.Cleanup(func() { end(k) })
	same(t, "what is kept", hostsOf(t, k.Load("east").Records), map[string]string{"a": "a.example"})
}

// A source with too many deletions to name them sends its whole content.
func TestWhatIsNotAmongAllThatThereIsGoes(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	s := newFake()
	s.put(record("a", "a.example"))
	s.put(record("b", "b.example"))
	s.setMeta(state.Meta{Synced: true})
	k.Follow("east", s)
	flush(t, k)
	s.put(record("b", "b.example"))
	s.setMeta(state.Meta{Synced: true, Whole: true})
	flush(t, k)
	s.setMeta(state.Meta{Synced: true})
	flush(t, k)
	same(t, "what is kept", hostsOf(t, k.Load("east").Records), map[string]string{"b": "b.example"})
}
