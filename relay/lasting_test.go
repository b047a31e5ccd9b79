package relay

import (
	"testing"

	"meshrelay/events"
	"meshrelay/notify"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// TestWhatAnEventHasBegunLasts: for each type of events that another one ends, there is a status in which
// it lasts, and one in which it does not.
func TestWhatAnEventHasBegunLasts(t *testing.T) {
	bad := []upstreams.Status{
		{Status: intake.Status{Held: &intake.Held{}, Stale: true, Expired: map[string]int{"a/B": 1}, Frozen: &intake.Frozen{}}},
		{Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Revision: 3}}}},
	}
	good := upstreams.Status{Status: intake.Status{InContact: true}}
	for _, begun := range notify.Lasting() {
		if begun == events.ConfigRefused {
			continue // of no upstream
		}
		if !lastsFor(&bad[0], begun) && !lastsFor(&bad[1], begun) {
			t.Errorf("%s never lasts", begun)
		}
		if lastsFor(&good, begun) {
			t.Errorf("%s lasts when all is well", begun)
		}
	}
	if lastsFor(&bad[0], events.RolledBack) || lastsFor(&bad[1], events.Frozen) {
		t.Error("a freeze is no rollback")
	}
}
