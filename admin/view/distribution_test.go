package view

import (
	"testing"

	"meshrelay/downstream"
)

// TestADistributionIsOneSentence, which names who lacks or rejects the content, and the error.
func TestADistributionIsOneSentence(t *testing.T) {
	one := []downstream.Holder{{NodeID: "sidecar~1~a.b~x"}}
	bad := []downstream.Holder{{NodeID: "tool", Error: "bad"}}
	for _, row := range []struct {
		d    downstream.Distribution
		want string
	}{
		{downstream.Distribution{Version: "v"}, "No client sees it."},
		{downstream.Distribution{Version: "v", Clients: 2, Has: 2}, "Acknowledged by 2 of 2 clients."},
		{downstream.Distribution{Version: "v", Clients: 3, Has: 1, Lacks: 1, Lacking: one, Refuses: 1, Refusing: bad, Pushing: true}, "Acknowledged by 1 of 3 clients; the newest change was not pushed yet; not acknowledged by a.b; rejected by tool: bad."},
		{downstream.Distribution{}, "No client still has it."},
		{downstream.Distribution{Clients: 2, Lacks: 1, Lacking: one, Refuses: 1, Refusing: bad}, "Not served; still at a.b; rejected by tool: bad."},
	} {
		got, level := Distribution(row.d)
		if want := OKIf(!row.d.Pushing && row.d.Lacks+row.d.Refuses == 0, Warn); got != row.want || level != want {
			t.Errorf("%q %v, want %q %v", got, level, row.want, want)
		}
	}
}
