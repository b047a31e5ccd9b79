package view

import (
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

func TestTheStateOfAnUpstreamExplainsItsCopy(t *testing.T) {
	at := time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)
	frozen := &intake.Frozen{Frozen: state.Frozen{Since: at}}
	for want, c := range map[string]admin.SourceCopy{
		"":                  {Outcome: admin.Served},
		"served as a/B c/d": {Outcome: admin.Renamed, ServedAs: mirror.Key{Kind: mirror.Kind{Group: "a", Kind: "B"}, Namespace: "c", Name: "d"}},
		"frozen: newer content from the upstream is pending: relay unfreeze west":           {Outcome: admin.Served, Frozen: frozen, Pending: true},
		"kept since 2024-02-03T04:05:06Z, upstream out of contact":                          {Outcome: admin.Served, StaleSince: at},
		"kept since 2024-02-03T04:05:06Z, the upstream has not sent it again":               {Outcome: admin.Served, StaleSince: at, Unconfirmed: true},
		"kept since the freeze at 2024-02-03T04:05:06Z, the upstream has not sent it again": {Outcome: admin.Served, Frozen: frozen, Unconfirmed: true},
		"kept, the upstream has not sent it again":                                          {Outcome: admin.Served, Unconfirmed: true},
	} {
		c.Upstream = "west"
		if got := because(c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
