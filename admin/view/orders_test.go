package view

import (
	"testing"

	"meshrelay/admin"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

func TestFreezeTextNamesItsEnd(t *testing.T) {
	frozen := upstreams.Status{Name: "east", Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Revision: 3}}}}
	some := frozen
	some.Resources = map[string]int{"a/B": 2}
	for want, c := range map[string]admin.Controlled{
		"upstream east was unfrozen by another operator":                                                                                 {Status: upstreams.Status{Name: "east"}},
		`upstream east is frozen at revision 3, with 0 resources, until "relay unfreeze east"`:                                           {Status: frozen, KeepsState: true},
		`upstream east is frozen at revision 3, with 2 resources, until "relay unfreeze east"`:                                           {Status: some, KeepsState: true},
		`upstream east is frozen at revision 3, with 2 resources, until "relay unfreeze east"; without state.dir, a restart undoes this`: {Status: some},
	} {
		if got := Ordered(c, "freeze", intake.Order{}); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
