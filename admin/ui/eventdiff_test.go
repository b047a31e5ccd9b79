package ui

import (
	"strings"
	"testing"
	"time"

	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// changedFixture has a change of one resource, and the revision in which it was written.
func changedFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, 1)
	before, after := entry(t, 1, 1), entry(t, 1, 2)
	f.journal = []events.Event{{
		Seq: 7, Time: testNow, Type: events.Changed, Upstream: "east", Text: "1 changed",
		Resources: &events.Resources{Changed: 1, Names: []events.Name{{Mark: events.Modification, Key: after.Key()}}},
	}}
	f.revisions = []state.Revision{
		{ID: 43, Time: testNow.Add(time.Hour), Resources: 2, Changed: 1, Keys: []string{"~" + after.Key().String()}},
		{ID: 42, Time: testNow.Add(time.Second), Resources: 2, Changed: 3, Keys: []string{"~" + after.Key().String()}},
		{ID: 41, Time: testNow.Add(-time.Hour), Resources: 2, Changed: 1, Keys: []string{"~" + after.Key().String()}},
	}
	f.diff = upstreams.Differences{Revision: f.revisions[1], Resources: []upstreams.Difference{{Before: before, After: after}}}
	return f
}

func TestTheEventOfAChangeShowsItsDifference(t *testing.T) {
	f := changedFixture(t)
	_, body, _ := f.get(t, "/events/7")
	for _, want := range []string{"relay history east 42 --diff", "revision 42 of ", "&#43;  - host-1-1.example.com", "0 added, 1 changed, 0 removed"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
}

func TestADifferenceThatCostsTooMuchIsACommand(t *testing.T) {
	f := changedFixture(t)
	f.revisions[1].Resources = maxReplayed
	_, body, _ := f.get(t, "/events/7")
	if f.diffs != 0 || !strings.Contains(body, "The history is too long for a page. To print the difference: relay history east 42 --diff") {
		t.Errorf("%d differences were made:\n%s", f.diffs, body)
	}
}

func TestAChangeWithoutARevisionShowsNoOtherOne(t *testing.T) {
	f := changedFixture(t)
	f.journal[0].Resources.Names[0].Key.Name = "another"
	_, body, _ := f.get(t, "/events/7")
	if f.diffs != 0 || !strings.Contains(body, "This change has no revision") {
		t.Errorf("%d differences were made:\n%s", f.diffs, body)
	}
	f.revisions[1].Changed = 1 // the same count, but other names
	if _, body, _ = f.get(t, "/events/7"); f.diffs != 0 {
		t.Errorf("the revision of another resource is shown:\n%s", body)
	}
	f.revisions = nil
	if _, body, _ = f.get(t, "/events/7"); f.diffs != 0 || !strings.Contains(body, "This change has no revision") {
		t.Errorf("no revisions:\n%s", body)
	}
}

// TestLargeContentsAreNotCompared. The page counts them.
func TestLargeContentsAreNotCompared(t *testing.T) {
	f := changedFixture(t)
	huge := entry(t, 2, 5000)
	f.diff.Resources = append(f.diff.Resources, upstreams.Difference{Before: nil, After: huge}, upstreams.Difference{Before: huge, After: (*mirror.Resource)(nil)})
	_, body, _ := f.get(t, "/events/7")
	if strings.Contains(body, "host-2-") || !strings.Contains(body, "and 2 more are left out") {
		t.Error(body)
	}
}
