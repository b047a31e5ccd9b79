package ui

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/admin/view"
	"meshrelay/upstreams"
)

func TestAdviceNamesKindsThatAreNotFollowedAndNotes(t *testing.T) {
	u := upstreams.Status{
		Following: []upstreams.FollowedKind{{Kind: "g/Kept", State: "following"}, {Kind: "g/Lost", State: "denied", Reason: "no right"}},
		Notes:     []string{"12 of 80 namespaces selected"},
	}
	want := []State{{Level: view.Warn, Text: "g/Lost denied: no right"}, {Level: view.None, Text: "12 of 80 namespaces selected"}}
	if d := cmp.Diff(want, upstreamAdvice(u, &request{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
