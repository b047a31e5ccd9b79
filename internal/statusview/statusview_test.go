package statusview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/state"
	"meshrelay/upstreams"
)

var now = time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)

func TestTables(t *testing.T) {
	ups := []upstreams.Status{
		{
			Name: "east", Type: "xds", Protocol: "delta", State: upstreams.StateSynced, Since: now.Add(-time.Hour), Synced: true, Address: "east:15010",
			LastUpdate: now.Add(-5 * time.Second), Resources: map[string]int{"a/B": 2, "a/C": 3}, Dropped: map[string]int{"generated": 4},
		},
		{Name: "west", Type: "file", State: upstreams.StateFailed, RefusedTotal: 1},
	}
	synced := downstream.TypeStatus{SentNonce: "1", Synced: true, NACKs: 2}
	client := func(id string, types ...downstream.TypeStatus) downstream.ClientStatus {
		return downstream.ClientStatus{NodeID: id, Protocol: "sotw", Address: "10.0.0.1:5", Connected: now.Add(-time.Minute), Types: types}
	}
	held := client("held")
	held.Held = true
	full := client("istiod", synced, synced)
	full.ClusterID, full.View, full.IstioVersion = "c1", "east", "1.23.0"
	clients := []downstream.ClientStatus{
		full, client("behi\nd", synced, downstream.TypeStatus{SentNonce: "1"}), client("bad", synced, downstream.TypeStatus{LastNACK: "no"}), held,
	}
	var out strings.Builder
	if err := Print(&out, admin.Readiness{Ready: true, Reasons: []string{"upstream west:\n\x1bfailed"}}, ups, clients, now); err != nil {
		t.Fatal(err)
	}
	want := `ready, degraded
- upstream west: ?failed

UPSTREAM   TYPE        STATE        SYNCED   RESOURCES   REFUSED   DROPPED   UPDATED   ADDRESS
east       xds/delta   synced 60m   yes      5           0         4         5s        east:15010
west       file        failed -     no       0           1         0         -         -

CLIENT   CLUSTER   VIEW   VERSION   PROTOCOL   TYPES   STATE                   NACKS   CONNECTED   ADDRESS
istiod   c1        east   1.23.0    sotw       2       synced                  4       60s         10.0.0.1:5
behi?d   -         -      -         sotw       2       1 type behind           2       60s         10.0.0.1:5
bad      -         -      -         sotw       2       1 type rejected         2       60s         10.0.0.1:5
held     -         -      -         sotw       0       waiting for upstreams   0       60s         10.0.0.1:5
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	out.Reset()
	if err := Print(&out, admin.Readiness{}, nil, nil, now); err != nil || !strings.HasPrefix(out.String(), "not ready\n") || !strings.Contains(out.String(), "No clients are connected.") {
		t.Errorf("%v %s", err, out.String())
	}
}

func TestWhatWaitsForSomebodyIsSaid(t *testing.T) {
	ups := []upstreams.Status{
		{
			Name: "held", Type: "xds", State: upstreams.StateSynced, Since: now.Add(-time.Hour), Synced: true, Resources: map[string]int{"a/B": 100},
			Held: &upstreams.Held{Clock: upstreams.ClockRunning, Reason: "40 of 100 at once", Since: now.Add(-time.Minute), Until: now.Add(9 * time.Minute), Removals: 40, Of: 100},
		},
		{Name: "kept", Type: "xds", State: upstreams.StateSynced, Synced: true, Held: &upstreams.Held{Clock: upstreams.ClockNone, Reason: "it comes back with nothing", Removals: 1, Of: 2}},
		{Name: "cool", Type: "xds", State: upstreams.StateSynced, Synced: true, Frozen: &upstreams.Frozen{Since: now.Add(-time.Minute), Until: now.Add(time.Minute), Reason: "night", Waiting: 1}},
		{Name: "late", Type: "xds", State: upstreams.StateSynced, Synced: true, Frozen: &upstreams.Frozen{Since: now.Add(-time.Minute), Until: now.Add(-time.Second)}},
		{Name: "cold", Type: "xds", State: upstreams.StateSynced, Synced: true, Frozen: &upstreams.Frozen{Since: now.Add(-2 * time.Hour), Waiting: 3}},
		{Name: "back", Type: "xds", State: upstreams.StateSynced, Synced: true, Frozen: &upstreams.Frozen{Since: now.Add(-time.Second), Revision: 17}},
		{
			Name: "gone", Type: "xds", State: upstreams.StateDisconnected, Synced: true, Stale: true, StaleSince: now.Add(-3 * time.Hour),
			Resources: map[string]int{"a/B": 4, "a/C": 1}, Expired: map[string]int{"a/D": 2, "a/E": 5},
			Held: &upstreams.Held{Clock: upstreams.ClockStopped, Left: "7m30s", Reason: "every VirtualService would go", Removals: 5, Of: 5}, Frozen: &upstreams.Frozen{},
		},
	}
	var out strings.Builder
	r := admin.Readiness{Ready: true, Config: admin.ReloadStatus{LastSuccess: now.Add(-2 * time.Minute)}}
	if err := Print(&out, r, ups, nil, now); err != nil {
		t.Fatal(err)
	}
	want := `ready

config: loaded 2m ago

UPSTREAM   TYPE   STATE                                 SYNCED   RESOURCES   REFUSED   DROPPED   UPDATED   ADDRESS
held       xds    synced 60m, held                      yes      100         0         0         -         -
kept       xds    synced -, held                        yes      0           0         0         -         -
cool       xds    synced -, frozen                      yes      0           0         0         -         -
late       xds    synced -, frozen                      yes      0           0         0         -         -
cold       xds    synced -, frozen                      yes      0           0         0         -         -
back       xds    synced -, frozen                      yes      0           0         0         -         -
gone       xds    disconnected -, stale, held, frozen   yes      5           0         0         -         -

held: 40 deletions of 100 resources are held (40 of 100 at once). The hold ends in 9m, once the upstream repeats the deletions. See them: relay held held
kept: 1 deletion of 2 resources is held (it comes back with nothing). The hold ends only when the upstream has the resources again, or somebody releases them. See them: relay held kept
cool: frozen as it was for 60s (night), ends in 60s, 1 resource has changed there. To follow it again: relay unfreeze cool
late: frozen as it was for 60s, ends when it is in contact. To follow it again: relay unfreeze late
cold: frozen as it was for 120m, 3 resources have changed there. To follow it again: relay unfreeze cold
back: frozen at revision 17 for 1s. To follow it again: relay unfreeze back
gone: 5 deletions of 5 resources are held (every VirtualService would go). The hold ends after 7m30s of contact, and the upstream is out of contact. See them: relay held gone
gone: frozen as it was for -. To follow it again: relay unfreeze gone
gone: last in contact 3h ago. 5 resources of it are served as they were, 7 are not any more. See what keeps the relay from reaching it

No clients are connected.
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestAConfigThatIsNotInForceIsSaid(t *testing.T) {
	var out strings.Builder
	r := admin.Readiness{Ready: true, Config: admin.ReloadStatus{
		LastSuccess: now.Add(-time.Hour), FailingSince: now.Add(-time.Minute), Error: "relay.yaml:1: \x1bnonsense", NeedsRestart: []string{"node.id", "admin.address"},
	}}
	if err := Print(&out, r, nil, nil, now); err != nil {
		t.Fatal(err)
	}
	want := "config: loaded 60m ago; what is in the file since 60s is not in force; a restart is needed for node.id, admin.address:\n  relay.yaml:1: ?nonsense\n"
	if !strings.Contains(out.String(), "\n"+want) {
		t.Errorf("%s", out.String())
	}
}

func TestTheMistakesOfAConfigAreSaidOnceAndOneALine(t *testing.T) {
	for text, want := range map[string]string{
		"relay.yaml:1: a; b": "  relay.yaml:1: a; b\n",
		"relay.yaml:1: a; see b; relay.yaml:2: c; and 3 more": "  relay.yaml:1: a; see b\n  relay.yaml:2: c\n  and 3 more\n",
		"upstream a: x; upstream b: y":                        "  upstream a: x; upstream b: y\n",
		"nonsense":                                            "  nonsense\n",
	} {
		var out strings.Builder
		r := admin.Readiness{
			Ready: true, Reasons: []string{"the config file has not been taken over: what was in force before stays so: " + text},
			Config: admin.ReloadStatus{LastSuccess: now, FailingSince: now, Error: text},
		}
		if err := Print(&out, r, nil, nil, now); err != nil {
			t.Fatal(err)
		}
		want = "ready, degraded\n- the config file has not been taken over: what was in force before stays so\n\n" +
			"config: loaded 0s ago; what is in the file since 0s is not in force:\n" + want + "\n"
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("want\n%s\nin\n%s", want, out.String())
		}
	}
}

func TestOfAStaleUpstreamIsSaidWhatIsServed(t *testing.T) {
	for want, u := range map[string]upstreams.Status{
		"Nothing of it is served":                                      {},
		"1 resource of it is served as it was":                         {Resources: map[string]int{"a/B": 1}},
		"2 resources of it are served as they were":                    {Resources: map[string]int{"a/B": 1, "a/C": 1}},
		"1 resource of it is not served any more":                      {Expired: map[string]int{"a/B": 1}},
		"3 resources of it are served as they were, 1 is not any more": {Resources: map[string]int{"a/B": 3}, Expired: map[string]int{"a/C": 1}},
	} {
		u.Name, u.Stale, u.StaleSince = "east", true, now.Add(-time.Minute)
		if got := advice([]upstreams.Status{u}, now); got != "\neast: last in contact 60s ago. "+want+". See what keeps the relay from reaching it\n" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestHistory(t *testing.T) {
	var out strings.Builder
	err := History(&out, []state.Revision{
		{ID: 12, Time: now.Add(-time.Minute), Added: 1, Changed: 2, Removed: 3, Resources: 40, By: "release", Keys: []string{"+a/B c/d", "~a/B c/e", "-a/B c/f", "-a/B c/g"}},
		{ID: 9, Time: now.Add(-3 * time.Hour), Resources: 42},
	}, now)
	want := `REVISION   AGE   RESOURCES   ADDED   CHANGED   REMOVED   BY         AMONG THEM
12         60s   40          1       2         3         release    +a/B c/d, ~a/B c/e, -a/B c/f
9          3h    42          0       0         0         upstream   -
`
	if d := cmp.Diff(want, out.String()); err != nil || d != "" {
		t.Errorf("%v -want +got:\n%s", err, d)
	}
	out.Reset()
	if err := History(&out, nil, now); err != nil || out.String() != "No revisions are kept.\n" {
		t.Errorf("%v %q", err, out.String())
	}
}

func TestSeveralAddressesAreListed(t *testing.T) {
	ups := []upstreams.Status{{
		Name: "east", Type: "xds", State: upstreams.StateSynced, Address: "b:1",
		Addresses: []adsclient.AddressStatus{
			{Address: "a:1", LastError: "refused\n", LastAttempt: now.Add(-time.Minute)},
			{Address: "b:1", Active: true},
			{Address: "c:1"},
			{Address: "d:1", HealthySince: now.Add(-time.Hour)},
			{Address: "e:1", LastError: "e:1: refused", LastAttempt: now.Add(-21 * time.Second)},
		},
	}}
	var out strings.Builder
	if err := Print(&out, admin.Readiness{Ready: true}, ups, nil, now); err != nil {
		t.Fatal(err)
	}
	want := "\neast: a:1 down, tried 60s ago: refused\neast: b:1 in use\neast: c:1 not tried\neast: d:1 works since 60m\neast: e:1 on standby, was down 21s ago: refused\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("want %s in:\n%s", want, out.String())
	}
}
