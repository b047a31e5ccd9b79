package admin

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation/conflicts"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// times matches times that depend on when the test runs.
var times = regexp.MustCompile(`"since": "20[0-9T:.Z-]+"`)

func TestConflictsAreListed(t *testing.T) {
	f := newFixture(t, Config{})
	body := f.get(t, "/debug/conflicts")
	checkJSON(t, "conflicts", times.ReplaceAllString(body, `"since": "*"`))
	if filtered := f.get(t, "/debug/conflicts?kind=vs"); filtered != "{\n  \"keys\": [],\n  \"hosts\": []\n}\n" {
		t.Errorf("conflicts of VirtualServices: %s", filtered)
	}
	if code, _, _ := f.do(t, request{path: "/debug/conflicts?kind=nonsense"}); code != 400 {
		t.Errorf("an unknown kind: %d", code)
	}
}

// TestHybridsAreListedByTheKindsOfTheirParts.
func TestHybridsAreListedByTheKindsOfTheirParts(t *testing.T) {
	f := newFixture(t, Config{})
	rules := mirror.Kind{Group: "networking.istio.io", Kind: "DestinationRule"}
	f.deps.Debug.views.Hybrids = func() []conflicts.Hybrid {
		return []conflicts.Hybrid{{Host: "db.example", Parts: []conflicts.Part{
			{Key: mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}, Source: "east"}, {Key: mirror.Key{Kind: rules, Namespace: "shop", Name: "db"}, Source: "west"},
		}}}
	}
	for query, want := range map[string]int{"": 1, "?kind=dr": 1, "?kind=se": 1, "?kind=vs": 0} {
		var all Conflicts
		if err := json.Unmarshal([]byte(f.get(t, "/debug/conflicts"+query)), &all); err != nil || len(all.Hybrids) != want {
			t.Errorf("%q: %+v, %v", query, all.Hybrids, err)
		}
	}
}

// explained has three upstreams with copies of one ServiceEntry. East's copy is rewritten, west's is shadowed, and the
// third is left out.
func explained(t *testing.T) *fixture {
	f := newFixture(t, Config{})
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	original := entry(t, "east", "store", "db", "db.example.com")
	held := entry(t, "east", "shop", "db", "db.example.com")
	f.traces = map[mirror.Key][]records.Trace{key: {
		{Upstream: "east", Original: original.Key(), Key: key, Resource: held, From: original, Since: created},
		{Upstream: "west", Original: key, Key: key, Resource: entry(t, "west", "shop", "db", "other.example.com"), Refused: "body does not decode"},
		{Upstream: "south", Original: key, Key: key, Reason: "namespace", Detail: `namespace "shop" is excluded by "s*"`},
	}}
	return f
}

func TestExplanationNamesEverySourceAndWhatBecameOfIt(t *testing.T) {
	f := explained(t)
	checkJSON(t, "explain", f.get(t, "/debug/explain?kind=se&namespace=shop&name=db"))
}

// because returns the fields of a copy that explain its outcome.
func because(c SourceCopy) string {
	b, _ := json.Marshal(SourceCopy{Frozen: c.Frozen, Pending: c.Pending, Unconfirmed: c.Unconfirmed, StaleSince: c.StaleSince}) // it always encodes
	return string(b)
}

// TestWhatASourceHasAndDoesNotGiveIsNotCalledShadowed: a copy that is missing because of a freeze, or expired, is not
// shadowed.
func TestWhatASourceHasAndDoesNotGiveIsNotCalledShadowed(t *testing.T) {
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "new"}
	for name, tc := range map[string]struct {
		source upstreams.Status
		want   Outcome
		copied SourceCopy
	}{
		"frozen":      {upstreams.Status{Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}}, Frozen, SourceCopy{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}},
		"rolled back": {upstreams.Status{Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created, Revision: 7}}}}, Frozen, SourceCopy{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created, Revision: 7}}}},
		"expired": {
			upstreams.Status{Status: intake.Status{Stale: true, StaleSince: created, Expired: map[string]int{serviceEntry.String(): 1}}}, Expired, SourceCopy{StaleSince: created},
		},
		"expired, before the source is stale": {upstreams.Status{Status: intake.Status{Expired: map[string]int{serviceEntry.String(): 1}}}, Expired, SourceCopy{}},
		"of another kind that has expired":    {upstreams.Status{Status: intake.Status{Stale: true, Expired: map[string]int{"a/B": 1}}}, Changing, SourceCopy{}},
		"just now":                            {upstreams.Status{}, Changing, SourceCopy{}},
	} {
		f := newFixture(t, Config{})
		f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "east", Original: key, Key: key, Resource: entry(t, "east", "shop", "new", "new.example.com")}}}
		tc.source.Name = "east"
		f.sources = []upstreams.Status{tc.source}
		var e Explanation
		if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=new")), &e); err != nil {
			t.Fatal(err)
		}
		if len(e.Sources) != 1 || e.Outcome != tc.want || e.Sources[0].Outcome != tc.want || because(e.Sources[0]) != because(tc.copied) {
			t.Errorf("%s: %s, %+v", name, e.Outcome, e.Sources)
		}
	}
}

func TestOfAFrozenSourceIsSaidThatWhatItSaysNowWaits(t *testing.T) {
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	for host, want := range map[string]bool{"db.example.com": false, "new.example.com": true} {
		f := newFixture(t, Config{})
		f.sources = []upstreams.Status{{Name: "east", Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}}}
		f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "east", Original: key, Key: key, Resource: entry(t, "east", "shop", "db", host)}}}
		var e Explanation
		if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=db")), &e); err != nil {
			t.Fatal(err)
		}
		if c := e.Sources[0]; c.Pending != want || (c.Frozen != nil) != want || c.Outcome != Served {
			t.Errorf("%s: %+v", host, e.Sources[0])
		}
	}
}

func TestOfASourceWithoutAnyEndpointIsSaidSo(t *testing.T) {
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	f := newFixture(t, Config{})
	f.sources = []upstreams.Status{{Name: "east", Endpoints: &upstreams.EndpointsStatus{None: "the server gives none"}}}
	f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "east", Original: key, Key: key, Resource: entry(t, "east", "shop", "db", "db.example.com")}}}
	var e Explanation
	if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=db")), &e); err != nil {
		t.Fatal(err)
	}
	if c := e.Sources[0]; c.Outcome != Served || c.Detail != "the server gives none" {
		t.Errorf("%+v", c)
	}
}

func TestOfAStaleSourceIsSaidSinceWhenItsCopyIsKept(t *testing.T) {
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	for state, want := range map[upstreams.State]time.Time{
		upstreams.StateConnecting: created,
		upstreams.StateSyncing:    {}, // it may have sent it again
	} {
		f := newFixture(t, Config{})
		f.sources = []upstreams.Status{{Name: "east", State: state, Status: intake.Status{Stale: true, StaleSince: created}}}
		f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "east", Original: key, Key: key, Resource: entry(t, "east", "shop", "db", "db.example.com")}}}
		var e Explanation
		if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=db")), &e); err != nil {
			t.Fatal(err)
		}
		if c := e.Sources[0]; c.Outcome != Served || !c.StaleSince.Equal(want) {
			t.Errorf("%s: %+v", state, c)
		}
	}
}

// TestWhatIsFrozenAndLeftOutByNewerRulesIsSaidToBeBoth: the relay serves the old copy, and does not import the new
// one.
func TestWhatIsFrozenAndLeftOutByNewerRulesIsSaidToBeBoth(t *testing.T) {
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	f := newFixture(t, Config{})
	f.sources = []upstreams.Status{{Name: "east", Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}}}
	f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "east", Original: key, Key: key, Reason: "namespace"}}}
	var e Explanation
	if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=db")), &e); err != nil {
		t.Fatal(err)
	}
	if len(e.Sources) != 3 || e.Sources[0].Outcome != LeftOut || e.Sources[1].Outcome != Served || !e.Sources[1].Unconfirmed || e.Sources[1].Frozen == nil {
		t.Errorf("%+v", e.Sources)
	}
}

// TestWhatIsServedFromBeforeIsSaidToBeKept: a resource from disk has no trace in its upstream.
func TestWhatIsServedFromBeforeIsSaidToBeKept(t *testing.T) {
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	for name, tc := range map[string]struct {
		source upstreams.Status
		copied SourceCopy
	}{
		"from disk": {upstreams.Status{Status: intake.Status{Stale: true, StaleSince: created}}, SourceCopy{Unconfirmed: true, StaleSince: created}},
		"frozen":    {upstreams.Status{Status: intake.Status{Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}}, SourceCopy{Unconfirmed: true, Frozen: &intake.Frozen{Frozen: state.Frozen{Since: created}}}},
		"changed":   {upstreams.Status{}, SourceCopy{Unconfirmed: true}},
	} {
		f := newFixture(t, Config{})
		tc.source.Name = "east"
		f.sources = []upstreams.Status{tc.source, {Name: "west"}}
		f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "west", Original: key, Key: key, Resource: entry(t, "west", "shop", "db", "other.example.com")}}}
		var e Explanation
		if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=db")), &e); err != nil {
			t.Fatal(err)
		}
		if len(e.Sources) != 2 || e.Outcome != Served || e.Sources[0].Upstream != "east" || e.Sources[0].Outcome != Served || because(e.Sources[0]) != because(tc.copied) ||
			e.Sources[0].Version != e.Version || e.Sources[1].Outcome != Shadowed {
			t.Errorf("%s: %s, %+v", name, e.Outcome, e.Sources)
		}
	}
}

func TestExplanationOfWhatNobodyHas(t *testing.T) {
	f := explained(t)
	var e Explanation
	if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=Gateway&namespace=shop&name=x")), &e); err != nil {
		t.Fatal(err)
	}
	if e.Outcome != Missing || e.Kind.String() != "networking.istio.io/Gateway" || len(e.Sources) != 0 {
		t.Errorf("%+v", e)
	}
	for _, path := range []string{"/debug/explain", "/debug/explain?kind=se", "/debug/explain?kind=nonsense&name=x"} {
		if code, body, _ := f.do(t, request{path: path}); code != 400 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

func TestWhatIsLeftOutIsListed(t *testing.T) {
	f := newFixture(t, Config{})
	for query, want := range map[string]int{"": 2, "?upstream=east": 1, "?kind=vs": 1, "?upstream=east&kind=vs": 0} {
		var got []records.LeftOut
		if err := json.Unmarshal([]byte(f.get(t, "/debug/leftout"+query)), &got); err != nil || len(got) != want {
			t.Errorf("%q: %v, %v", query, got, err)
		}
	}
}

func TestChangesNameWhatRewritingChanged(t *testing.T) {
	spec := func(host string) mirror.Spec {
		return mirror.Spec{
			Key: mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}, Source: "east",
			Labels:      map[string]string{"a": "1", "b": "1", "c": "1"},
			Annotations: map[string]string{mirror.ProvenanceAnnotation: "east via x"},
			Body:        packed(t, &networking.ServiceEntry{Hosts: []string{host}, Location: networking.ServiceEntry_MESH_INTERNAL}),
		}
	}
	build := func(s mirror.Spec) *mirror.Resource {
		r, err := mirror.New(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	from, to := spec("a.example"), spec("b.example")
	to.Namespace, to.Labels, to.Annotations = "east-shop", map[string]string{"a": "1", "b": "2", "d": "1"}, nil
	got, err := changesOf(build(from), build(to))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"label b", "label c", "label d", "spec.hosts"}
	if len(got) != len(want) {
		t.Fatalf("%q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
	if same, err := changesOf(build(from), build(from)); err != nil || len(same) > 0 {
		t.Errorf("what is the same has changed: %q %v", same, err)
	}
}

func TestConflictsTellWhyAHostIsNotUnited(t *testing.T) {
	entry := func(namespace, source string) *mirror.Resource {
		body, err := anypb.New(&networking.ServiceEntry{Hosts: []string{"db.example"}, Ports: []*networking.ServicePort{{Number: 1, Name: "a"}}})
		if err != nil {
			t.Fatal(err)
		}
		kind := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
		r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: namespace, Name: "db"}, Source: source, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, register := mergedAndRegistered(t, entry("payments", "east"), entry("attacker", "tenant"))
	conflicts := func() Conflicts {
		leftOut := func() []records.LeftOut {
			return []records.LeftOut{{Upstream: "east", Name: "a", Reason: "kind"}, {Upstream: "east", Name: "b", Reason: "hosts"}}
		}
		debug := NewDebug(Views{Resources: a, Contests: register.KeyConflicts, HostConflicts: register.HostConflicts, Hybrids: register.Hybrids, LeftOut: leftOut}, nil)
		all, err := debug.conflicts(nil)
		if err != nil || len(all.Hosts) != 1 {
			t.Fatalf("%v, %+v", err, all)
		}
		return all
	}
	if got := conflicts().Hosts[0].Apart; got != "" {
		t.Errorf("without a union: %q", got)
	}
	if refused := conflicts().Refused; len(refused) != 1 || refused[0].Name != "b" {
		t.Errorf("refused because of a host: %+v", refused)
	}
	a.SetPolicies(map[mirror.Kind]mirror.Policy{{Group: "networking.istio.io", Kind: "ServiceEntry"}: merge.Union{SameHost: true}}, nil)
	if got := conflicts().Hosts[0].Apart; !strings.Contains(got, "payments/db is of another namespace") {
		t.Errorf("with one: %q", got)
	}
}
