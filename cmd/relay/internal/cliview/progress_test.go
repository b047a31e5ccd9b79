package cliview

import (
	"strings"
	"testing"
	"time"

	"meshrelay/admin/view"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

func TestProgressTellsEachUpstreamOnceAndWhomItWaitsFor(t *testing.T) {
	var out strings.Builder
	p, now := NewProgress(&out), time.Unix(0, 0)
	east := upstreams.Status{Name: "east", State: upstreams.StateSynced, Resources: map[string]int{"a/B": 3}, Status: intake.Status{Synced: true}}
	west := upstreams.Status{Name: "west", State: upstreams.StateSyncing, Status: intake.Status{Pending: []string{"a", "b"}}}
	for range 30 { // 6 seconds
		p.Told([]upstreams.Status{east, west}, now)
		now = now.Add(200 * time.Millisecond)
	}
	west.Synced = true
	p.Told([]upstreams.Status{east, west}, now)
	want := "east: synced, 3 resources (1 of 2 upstreams)\nwest: syncing, no answer to 2 types yet\nwest: synced, 0 resources (2 of 2 upstreams)\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestOnlyMarksOfOurOwnColorText(t *testing.T) {
	got := tableOf(view.Upstreams.Pick("Upstream", "State"), []upstreams.Status{{Name: "e\ue002st", State: upstreams.StateDisconnected}}, time.Time{}).String()
	if want := "UPSTREAM   STATE\ne?st       \ue002disconnected -\ue003\n"; got != want {
		t.Errorf("got %q want %q", got, want)
	}
}
