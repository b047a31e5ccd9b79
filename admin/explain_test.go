package admin

import (
	"encoding/json"
	"regexp"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
	"meshrelay/upstreams"
)

// times are those that depend on when the test runs.
var times = regexp.MustCompile(`"since": "20[0-9T:.Z-]+"`)

func TestConflictsAreListed(t *testing.T) {
	f := newFixture(t, Config{})
	body := f.get(t, "/debug/conflicts")
	golden(t, "conflicts", times.ReplaceAllString(body, `"since": "*"`))
	if filtered := f.get(t, "/debug/conflicts?kind=vs"); filtered != "{\n  \"keys\": [],\n  \"hosts\": []\n}\n" {
		t.Errorf("conflicts of VirtualServices: %s", filtered)
	}
	if code, _, _ := f.do(t, request{path: "/debug/conflicts?kind=nonsense"}); code != 400 {
		t.Errorf("an unknown kind: %d", code)
	}
}

// explained has two sources of one ServiceEntry: east has reshaped it, west is shadowed, and
// a third leaves its own out.
func explained(t *testing.T) *fixture {
	f := newFixture(t, Config{})
	key := mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "db"}
	original := entry(t, "east", "store", "db", "db.example.com")
	held := entry(t, "east", "shop", "db", "db.example.com")
	f.traces = map[mirror.Key][]upstreams.Trace{key: {
		{Upstream: "east", Original: original.Key(), Key: key, Resource: held, From: original, Since: created},
		{Upstream: "west", Original: key, Key: key, Resource: entry(t, "west", "shop", "db", "other.example.com"), Refused: "body does not decode"},
		{Upstream: "south", Original: key, Key: key, Reason: "namespace", Detail: `namespace "shop" is excluded by "s*"`},
	}}
	return f
}

func TestExplanationNamesEverySourceAndWhatBecameOfIt(t *testing.T) {
	f := explained(t)
	golden(t, "explain", f.get(t, "/debug/explain?kind=se&namespace=shop&name=db"))
}

func TestExplanationOfWhatNobodyHas(t *testing.T) {
	f := explained(t)
	var e Explanation
	if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=Gateway&namespace=shop&name=x")), &e); err != nil {
		t.Fatal(err)
	}
	if e.Outcome != Missing || e.Kind != "networking.istio.io/Gateway" || len(e.Sources) != 0 {
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
		var got []upstreams.LeftOut
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
	want := []string{"name: shop/db became east-shop/db", "label b changed", "label c removed", "label d added", "spec.hosts"}
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
