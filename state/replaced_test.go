package state

import (
	"testing"
	"time"
)

// hooked is a source with something that happens once while it is asked.
type hooked struct {
	*fake
	hook func()
}

func (h *hooked) TakeChanges() ([]Change, Meta) {
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
	old.setMeta(Meta{Synced: true})
	k.Follow("east", h)
	h.hook = func() {
		k.Unfollow("east", true)
		k.Follow("east", next)
	}
	flush(t, k)
	next.put(record("b", "new.example"))
	next.setMeta(Meta{Synced: true})
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
	s.setMeta(Meta{Synced: true, LastContact: time.Now()})
	k.Follow("east", s)
	flush(t, k)
	end(k)
	// What create does, up to where it puts the new file in place.
	k = newKeeper(options(dir))
	k.busy <- struct{}{}
	if err := k.lockDir(); err != nil {
		t.Fatal(err)
	}
	c, err := readFile(k.path, k.format.version)
	if err != nil || len(c.sources) != 1 {
		t.Fatal(err, c)
	}
	temp, err := k.newTemp()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.fill(temp, c); err != nil {
		t.Fatal(err)
	}
	if err := k.setAside(asideCorrupt, errShort, c); err != nil {
		t.Fatal(err)
	}
	k.unlockDir()
	k.release()
	k = Open(options(dir))
	t.Cleanup(func() { end(k) })
	same(t, "what is kept", hostsOf(t, k.Load("east").Records), map[string]string{"a": "a.example"})
}

// Of a source that has come to have too much that is gone to say it, and says what there is.
func TestWhatIsNotAmongAllThatThereIsGoes(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	s := newFake()
	s.put(record("a", "a.example"))
	s.put(record("b", "b.example"))
	s.setMeta(Meta{Synced: true})
	k.Follow("east", s)
	flush(t, k)
	s.put(record("b", "b.example"))
	s.setMeta(Meta{Synced: true, Whole: true})
	flush(t, k)
	s.setMeta(Meta{Synced: true})
	flush(t, k)
	same(t, "what is kept", hostsOf(t, k.Load("east").Records), map[string]string{"b": "b.example"})
}
