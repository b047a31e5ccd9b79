package cliview

import (
	"strings"
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/mirror"
	"meshrelay/services"
)

func TestServicesOfAClusterOutOfContactAreMarked(t *testing.T) {
	lost := testNow.Add(-4 * time.Minute)
	s := services.Service{
		Host: "db.example", Clusters: []string{"c-east", "c-west"}, ContactLost: map[string]time.Time{"c-west": lost},
		Entries:   []services.Entry{{Upstream: "east"}, {Upstream: "west", ContactLost: lost}},
		Endpoints: []services.Endpoint{{Address: "10.0.0.1", Upstream: "east"}, {Address: "10.1.0.1", Upstream: "west", ContactLost: lost}},
	}
	if got := Plain(Services([]services.Service{s}, testNow)); !strings.Contains(got, "   c-east, c-west (out of contact for 4m)   ") {
		t.Error(got)
	}
	if got := Plain(Service(s, testNow)); strings.Count(got, "west (out of contact for 4m)") != 2 || strings.Count(got, "east (") != 0 {
		t.Error(got)
	}
}

func TestExplainTellsWhichSourcesOfWhatIsServedAreOutOfContact(t *testing.T) {
	lost, e := testNow.Add(-4*time.Minute), admin.Explanation{Outcome: admin.Served, Source: "east", Reason: "why", Since: testNow.Add(-time.Hour)}
	for outcome, want := range map[admin.Outcome]string{
		admin.United:   " is served from upstream east: why. Upstream west is out of contact for 4m.\n",
		admin.Shadowed: " is served from upstream east: why. Unchanged for 60m.\n",
	} {
		e.Key = mirror.Key{Name: "db"}
		e.Sources = []admin.SourceCopy{{Upstream: "east", Outcome: admin.Served}, {Upstream: "west", Outcome: outcome, ContactLost: lost}}
		if got := Plain(Explain(e, false, testNow)); !strings.Contains(got, want) || !strings.Contains(got, "upstream out of contact since ") {
			t.Errorf("%s: %s", outcome, got)
		}
	}
}
