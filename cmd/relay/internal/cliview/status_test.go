package cliview

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/internal/buildinfo"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

var testNow = time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)

func TestStatusTables(t *testing.T) {
	ups := []upstreams.Status{
		{
			Name: "east", Type: "xds", Protocol: "delta", State: upstreams.StateSynced, Since: testNow.Add(-time.Hour), Status: intake.Status{Synced: true, LastUpdate: testNow.Add(-5 * time.Second), Summary: records.Summary{LeftOut: map[string]int{"generated": 4}}}, Address: "east:15010", Resources: map[string]int{"a/B": 2, "a/C": 3},
		},
		{Name: "west", Type: "file", State: upstreams.StateFailed, Status: intake.Status{Summary: records.Summary{RefusedTotal: 1}}},
	}
	synced := downstream.TypeStatus{SentNonce: "1", Synced: true, NACKs: 2}
	client := func(id string, types ...downstream.TypeStatus) downstream.ClientStatus {
		return downstream.ClientStatus{NodeID: id, Protocol: "sotw", Address: "10.0.0.1:5", Connected: testNow.Add(-time.Minute), Types: types}
	}
	held := client("held")
	held.Held = true
	full := client("istiod", synced, synced)
	full.ClusterID, full.View, full.IstioVersion = "c1", "east", "1.23.0"
	clients := []downstream.ClientStatus{
		full, client("behi\nd", synced, downstream.TypeStatus{SentNonce: "1"}), client("bad", synced, downstream.TypeStatus{LastNACK: "no"}), held,
	}
	got := Plain(Status(admin.Version{}, admin.Readiness{Ready: true, Reasons: []string{"upstream west:\n\x1bfailed"}}, ups, clients, testNow))
	want := `ready, degraded
- upstream west: ?failed

UPSTREAM   TYPE        STATE             SYNCED   RESOURCES   REFUSED   LEFT OUT   UPDATED   ADDRESS
east       xds/delta   in sync for 60m   yes      5           0         4          5s        east:15010
west       file        failed            no       0           1         0          -         -

CLIENT   CLUSTER   VIEW   VERSION   PROTOCOL   TYPES   STATE                   NACKS   CONNECTED   ADDRESS
istiod   c1        east   1.23.0    sotw       2       synced                  4       60s         10.0.0.1:5
behi?d   -         -      -         sotw       2       1 type behind           2       60s         10.0.0.1:5
bad      -         -      -         sotw       2       1 type rejected         2       60s         10.0.0.1:5
held     -         -      -         sotw       0       waiting for upstreams   0       60s         10.0.0.1:5
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := Plain(Status(admin.Version{}, admin.Readiness{}, nil, nil, testNow)); !strings.HasPrefix(got, "not ready\n") || !strings.Contains(got, "No clients are connected.") {
		t.Error(got)
	}
}

func TestStatusAdvisesOnHeldFrozenAndStaleUpstreams(t *testing.T) {
	ups := []upstreams.Status{
		{
			Name: "held", Type: "xds", State: upstreams.StateSynced, Since: testNow.Add(-time.Hour), Status: intake.Status{Synced: true, Held: &intake.Held{Clock: intake.ClockRunning, Reason: "40 of 100 at once", Since: testNow.Add(-time.Minute), Until: testNow.Add(9 * time.Minute), Removals: 40, Of: 100}}, Resources: map[string]int{"a/B": 100},
		},
		{Name: "kept", Type: "xds", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Held: &intake.Held{Clock: intake.ClockNone, Reason: "it comes back with nothing", Removals: 1, Of: 2}}},
		{Name: "cool", Type: "xds", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: testNow.Add(-time.Minute), Reason: "night"}, Waiting: 1}}},
		{Name: "cold", Type: "xds", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: testNow.Add(-2 * time.Hour)}, Waiting: 3}}},
		{Name: "back", Type: "xds", State: upstreams.StateSynced, Status: intake.Status{Synced: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: testNow.Add(-time.Second), Revision: 17}}}},
		{
			Name: "gone", Type: "xds", State: upstreams.StateDisconnected, Since: testNow.Add(-time.Minute), ContactLost: testNow.Add(-3 * time.Hour), Status: intake.Status{Synced: true, Stale: true, StaleSince: testNow.Add(-3 * time.Hour), Expired: map[string]int{"a/D": 2, "a/E": 5}, Held: &intake.Held{Clock: intake.ClockStopped, Left: "7m30s", Reason: "every VirtualService would go", Removals: 5, Of: 5}, Frozen: &intake.Frozen{}},
			Resources: map[string]int{"a/B": 4, "a/C": 1},
		},
	}
	r := admin.Readiness{Ready: true, Config: admin.ReloadStatus{LastSuccess: testNow.Add(-2 * time.Minute), File: "relay.yaml", Hash: "0123456789ab"}}
	got := Plain(Status(admin.Version{}, r, ups, nil, testNow))
	want := `ready

config: relay.yaml (sha256 0123456789ab), loaded 2m ago

UPSTREAM   TYPE   STATE                                       SYNCED         RESOURCES   REFUSED   LEFT OUT   UPDATED   ADDRESS
held       xds    in sync for 60m, held                       yes            100         0         0          -         -
kept       xds    in sync, held                               yes            0           0         0          -         -
cool       xds    in sync, frozen                             yes            0           0         0          -         -
cold       xds    in sync, frozen                             yes            0           0         0          -         -
back       xds    in sync, frozen                             yes            0           0         0          -         -
gone       xds    disconnected for 60s, stale, held, frozen   until 3h ago   5           0         0          -         -

held: 40 deletions of 100 resources are held (40 of 100 at once). The hold ends in 9m, once the upstream repeats the deletions. See them: relay upstreams --held held
kept: 1 deletion of 2 resources is held (it comes back with nothing). The hold ends when the upstream has the resources again, or an operator releases them. See them: relay upstreams --held kept
cool: frozen for 60s (night), 1 resource changed there. To unfreeze it: relay unfreeze cool
cold: frozen for 120m, 3 resources changed there. To unfreeze it: relay unfreeze cold
back: frozen at revision 17 for 1s. To unfreeze it: relay unfreeze back
gone: 5 deletions of 5 resources are held (every VirtualService would go). The hold ends after another 7m30s of contact (now out of contact). See them: relay upstreams --held gone
gone: frozen for -. To unfreeze it: relay unfreeze gone
gone: last in contact 3h ago, 5 resources served, 7 expired. Check why the relay can not reach it

No clients are connected.
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func TestStatusShowsAConfigFileThatDoesNotLoad(t *testing.T) {
	r := admin.Readiness{Ready: true, Config: admin.ReloadStatus{
		File: "relay.yaml", Hash: "0123456789ab", LastSuccess: testNow.Add(-time.Hour), FailingSince: testNow.Add(-time.Minute), Error: "relay.yaml:1: \x1bnonsense", Mistakes: []string{"relay.yaml:1: \x1bnonsense"}, NeedsRestart: []string{"node.id", "admin.address"},
	}}
	got := Plain(Status(admin.Version{}, r, nil, nil, testNow))
	want := "config: relay.yaml (sha256 0123456789ab), loaded 60m ago; restart needed for node.id, admin.address; the file can not be loaded since 60s:\n  relay.yaml:1: ?nonsense\n"
	if !strings.Contains(got, "\n"+want) {
		t.Errorf("%s", got)
	}
}

func TestTheMistakesOfAConfigAreListedOnce(t *testing.T) {
	text := "relay.yaml:1: a; b; relay.yaml:2: c"
	r := admin.Readiness{
		Ready: true, Reasons: []string{"config file not loaded, the previous config stays: " + text},
		Config: admin.ReloadStatus{File: "relay.yaml", Hash: "0123456789ab", LastSuccess: testNow, FailingSince: testNow, Error: text, Mistakes: []string{"relay.yaml:1: a; b", "relay.yaml:2: c"}},
	}
	got := Plain(Status(admin.Version{}, r, nil, nil, testNow))
	want := "ready, degraded\n- config file not loaded, the previous config stays\n\n" +
		"config: relay.yaml (sha256 0123456789ab), loaded 0s ago; the file can not be loaded since 0s:\n  relay.yaml:1: a; b\n  relay.yaml:2: c\n\n"
	if !strings.HasPrefix(got, want) {
		t.Errorf("want\n%s\nin\n%s", want, got)
	}
}

func TestAdviceForAStaleUpstreamCountsWhatIsServed(t *testing.T) {
	for want, u := range map[string]upstreams.Status{
		"0 resources served":            {},
		"1 resource served":             {Resources: map[string]int{"a/B": 1}},
		"2 resources served":            {Resources: map[string]int{"a/B": 1, "a/C": 1}},
		"0 resources served, 1 expired": {Status: intake.Status{Expired: map[string]int{"a/B": 1}}},
		"3 resources served, 1 expired": {Resources: map[string]int{"a/B": 3}, Status: intake.Status{Expired: map[string]int{"a/C": 1}}},
	} {
		u.Name, u.Stale, u.StaleSince = "east", true, testNow.Add(-time.Minute)
		if got := adviceOf(u); got != "\neast: last in contact 60s ago, "+want+". Check why the relay can not reach it\n" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestOfAContactThatAKillHasEndedTheBoundsAreTold(t *testing.T) {
	u := upstreams.Status{Name: "east", Status: intake.Status{Stale: true, StaleSince: testNow.Add(-3 * time.Hour), StaleLater: true}}
	if got := adviceOf(u); !strings.Contains(got, "last in contact when the relay was killed, at most 3h ago") {
		t.Error(got)
	}
	if got := admin.StaleSince(u.StaleSince, true); !strings.HasSuffix(got, "Z or later") {
		t.Error(got)
	}
	if got := admin.StaleSince(u.StaleSince, false); !strings.HasSuffix(got, "Z") {
		t.Error(got)
	}
}

func TestHistory(t *testing.T) {
	got := Plain(History([]state.Revision{
		{ID: 12, Time: testNow.Add(-time.Minute), Added: 1, Changed: 2, Removed: 3, Resources: 40, By: "release", Keys: []string{
			"+networking.istio.io/ServiceEntry c/d", "~networking.istio.io/EnvoyFilter c/e", "-a/B c/f", "-a/B c/g",
		}},
		{ID: 9, Time: testNow.Add(-3 * time.Hour), Resources: 42},
	}, testNow))
	want := `REVISION   TIME                   AGE   RESOURCES   ADDED   CHANGED   REMOVED   BY         AMONG THEM
12         2024-02-03T04:04:06Z   60s   40          1       2         3         release    +se c/d, ~envoyfilter c/e, -a/B c/f and 3 more
9          2024-02-03T01:05:06Z   3h    42          0       0         0         upstream   -
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := Plain(History(nil, testNow)); got != "No revisions are kept.\n" {
		t.Errorf("%q", got)
	}
}

func TestSeveralAddressesAreListed(t *testing.T) {
	ups := []upstreams.Status{{
		Name: "east", Type: "xds", State: upstreams.StateSynced, Address: "b:1",
		Addresses: []adsclient.AddressStatus{
			{Address: "a:1", LastError: "refused\n", LastAttempt: testNow.Add(-time.Minute)},
			{Address: "b:1", Active: true},
			{Address: "c:1"},
			{Address: "d:1", HealthySince: testNow.Add(-time.Hour)},
			{Address: "e:1", LastError: "e:1: refused", LastAttempt: testNow.Add(-21 * time.Second)},
		},
	}}
	got := Plain(Status(admin.Version{}, admin.Readiness{Ready: true}, ups, nil, testNow))
	want := "\neast: a:1 down, tried 60s ago: refused\neast: b:1 in use\neast: c:1 not tried\neast: d:1 works since 60m\neast: e:1 on standby, was down 21s ago: refused\n"
	if !strings.Contains(got, want) {
		t.Errorf("want %s in:\n%s", want, got)
	}
}

func TestStatusNamesTheRelay(t *testing.T) {
	v := admin.Version{Info: buildinfo.Info{Version: "v0.2.0"}, Name: "hub", Started: testNow.Add(-time.Hour)}
	v.MemoryInUse = 45 << 20
	r := admin.Readiness{Ready: true, Config: admin.ReloadStatus{LastSuccess: testNow.Add(-time.Minute), File: "/etc/relay/relay.yaml", Hash: "0123456789ab"}}
	for limit, want := range map[uint64]string{
		0:         "ready\n\nrelay:  hub v0.2.0, 45.0 MiB of memory in use, up 60m\nconfig: /etc/relay/relay.yaml (sha256 0123456789ab), loaded 60s ago\n\n",
		512 << 20: "ready\n\nrelay:  hub v0.2.0, 45.0 MiB of 512.0 MiB in use, up 60m\n",
	} {
		v.MemoryLimit = limit
		if got := Plain(Status(v, r, nil, nil, testNow)); !strings.HasPrefix(got, want) {
			t.Errorf("want\n%s\nin\n%s", want, got)
		}
	}
	if got := Plain(Status(v, r, nil, nil, time.Time{})); strings.Contains(got, "MiB") {
		t.Errorf("what is watched changes all the time:\n%s", got)
	}
}

func TestTheStatusOfManyListsThoseThatNeedALook(t *testing.T) {
	ups := make([]upstreams.Status, 250)
	for i := range ups {
		ups[i] = upstreams.Status{Name: fmt.Sprintf("up-%d", i), Type: "xds", State: upstreams.StateSynced, Status: intake.Status{Synced: true}}
	}
	ups[7].State = upstreams.StateDisconnected
	clients := make([]downstream.ClientStatus, 1000)
	for i := range clients {
		clients[i] = downstream.ClientStatus{NodeID: fmt.Sprintf("sidecar~10.0.0.1~istiod-%d.istio-system~istio-system.svc.cluster.local", i), Types: []downstream.TypeStatus{{Synced: i%10 != 0}}}
	}
	got := Plain(Status(admin.Version{}, admin.Readiness{Ready: true}, ups, clients, testNow))
	for _, want := range []string{
		"\nup-7       xds    disconnected ",
		"\n250 upstreams, 249 of them up to date. To list all: relay upstreams\n",
		"\nistiod-10.istio-system ",
		"\nand 80 more with problems\n1000 clients, 900 of them up to date. To list all: relay clients\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if lines := strings.Count(got, "\n"); lines > 40 {
		t.Errorf("%d lines:\n%s", lines, got)
	}
}

func adviceOf(u upstreams.Status) string {
	var p page
	p.advice([]upstreams.Status{u}, testNow)
	return p.String()
}
