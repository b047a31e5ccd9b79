package kubernetes

import (
	"fmt"
	"testing"
	"testing/synctest"

	"meshrelay/decisions"
)

// TestAnObjectThatWasRestoredAndDecidedOnLosesNothingThatAReplicaKnows: the restored object is as new as what the replica
// has read, or newer, but it lacks some of that.
func TestAnObjectThatWasRestoredAndDecidedOnLosesNothingThatAReplicaKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for others := 1; others <= 3; others++ { // decisions about the restored object
			s := newServer(t)
			a := s.replica()
			for _, id := range []string{"1", "2"} {
				if _, err := a.add(freeze(id, "u"+id)); err != nil {
					t.Fatal(err)
				}
			}
			backup := s.text(logKey)
			if _, err := a.add(freeze("3", "u3")); err != nil {
				t.Fatal(err)
			}
			s.edit(map[string]any{logKey: backup})
			b := s.replica() // it has read nothing before
			for i := range others {
				if _, err := b.add(freeze(fmt.Sprint("b", i), fmt.Sprint("v", i))); err != nil {
					t.Fatal(err)
				}
			}
			want := 3 + others
			all := func(w *watched) bool { return w.err == nil && len(w.log.State().Upstreams) == want }
			s.watch(a).await(t, fmt.Sprint("all are known to a, after ", others), all)
			s.watch(b).await(t, fmt.Sprint("all are known to b, after ", others), all)
		}
	})
}

// TestReplicasThatHaveDecidedDifferentlyAboutARestoredObjectAgree, and do not write it again and again.
func TestReplicasThatHaveDecidedDifferentlyAboutARestoredObjectAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		a, b := s.replica(), s.replica()
		if _, err := a.add(freeze("a", "east")); err != nil {
			t.Fatal(err)
		}
		s.Remove(configMaps, key)
		if _, err := b.add(freeze("b", "east")); err != nil {
			t.Fatal(err)
		}
		one, other := s.watch(a), s.watch(b)
		both := func(w *watched) bool {
			return w.err == nil && w.log.Has("a") && w.log.Has("b") && w.log.State().Sequence == 2
		}
		one.await(t, "both records at a", both)
		other.await(t, "both records at b", both)
		if log, err := decisions.Decode(s.text(logKey)); err != nil || log.State().Sequence != 2 {
			t.Errorf("%v, %+v", err, log)
		}
	})
}
