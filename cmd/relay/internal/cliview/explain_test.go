package cliview

import (
	"strings"
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/federation/conflicts"
	"meshrelay/mirror"
	"meshrelay/sink"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

func TestExplainTellsWhyAnUpstreamWithholdsACopy(t *testing.T) {
	at := time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)
	for name, tc := range map[string]struct {
		source admin.SourceCopy
		want   string
	}{
		"frozen":                              {admin.SourceCopy{Outcome: admin.Frozen, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: at}}}, "frozen since 2024-02-03T04:05:06Z without it: relay unfreeze west"},
		"rolled back":                         {admin.SourceCopy{Outcome: admin.Frozen, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: at, Revision: 7}}}, "frozen at revision 7, which does not have it: relay unfreeze west"},
		"expired":                             {admin.SourceCopy{Outcome: admin.Expired, StaleSince: at}, "expired by its staleness rules, upstream out of contact since 2024-02-03T04:05:06Z"},
		"expired, before the source is stale": {admin.SourceCopy{Outcome: admin.Expired}, "expired by its staleness rules, upstream out of contact"},
		"just now":                            {admin.SourceCopy{Outcome: admin.Changing}, "changing right now, try again"},
	} {
		tc.source.Upstream = "west"
		e := admin.Explanation{
			Key: mirror.Key{Kind: mirror.Kind{Group: "a", Kind: "B"}, Namespace: "c", Name: "d"}, Outcome: tc.source.Outcome,
			Sources: []admin.SourceCopy{{Upstream: "east", Outcome: admin.Refused}, tc.source},
		}
		got := Plain(Explain(e, false, time.Now()))
		if !strings.HasPrefix(got, "a/B c/d is not served: upstream west: "+tc.want+".\n") || strings.Count(got, tc.want) != 2 {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

func TestExplainNamesEachSinkWithWhatItHasWritten(t *testing.T) {
	e := admin.Explanation{Sinks: []sink.Applied{{Sink: "dr", State: "applied"}, {Sink: "lab", State: "refused", Reason: "quota"}}}
	want := "\nSINK   STATE     REASON\ndr     applied   -\nlab    refused   quota\n"
	if got := Plain(Explain(e, false, time.Now())); !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s\nwant at the end\n%s", got, want)
	}
}

func TestExplainNamesAResourceWithoutNamespaceByItsNameAlone(t *testing.T) {
	e := admin.Explanation{Key: mirror.Key{Kind: mirror.MeshConfig, Name: "mesh"}, Outcome: admin.Missing}
	if got := Plain(Explain(e, false, time.Now())); !strings.HasPrefix(got, "core/MeshConfig mesh: no upstream has it.") {
		t.Error(got)
	}
}

func TestAHostThatManyClaimIsOneLineOfBoundedLength(t *testing.T) {
	c := conflicts.HostConflict{Host: "a.example", Claims: make([]conflicts.Claim, 10_000)}
	if got := Plain(Explain(admin.Explanation{HostConflicts: []conflicts.HostConflict{c}}, false, testNow)); len(got) > 2000 || !strings.Contains(got, "and 9984 more") {
		t.Errorf("%d bytes: %.300s", len(got), got)
	}
}

func TestHostsWhosePartsComeFromDifferentUpstreamsFollowTheConflicts(t *testing.T) {
	key := func(kind string) mirror.Key {
		return mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: kind}, Namespace: "payments", Name: "bank"}
	}
	h := conflicts.Hybrid{Host: "api.bank.example", Parts: []conflicts.Part{{Key: key("ServiceEntry"), Source: "east"}, {Key: key("DestinationRule"), Source: "west"}}, More: 7}
	want := "No two resources claim the same host.\n\nHosts whose parts come from different upstreams:\n\nHOST               PARTS\n" +
		"api.bank.example   ServiceEntry payments/bank from east, DestinationRule payments/bank from west, 7 more\n"
	if got := Plain(Conflicts(admin.Conflicts{Hybrids: []conflicts.Hybrid{h}}, testNow)); !strings.HasSuffix(got, want) {
		t.Errorf("%s\nwant at the end\n%s", got, want)
	}
}
