package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/peers"
	"meshrelay/sink"
)

// replicas are other replicas, with the documents that they answer.
type replicas struct {
	documents map[string]string
	failures  []peers.Failure
	asked     string
}

func (r *replicas) Each(_ context.Context, path string, most int64, f func(peer string, body io.Reader) error) (failures []peers.Failure) {
	r.asked = path
	for peer, text := range r.documents {
		if err := f(peer, io.LimitReader(strings.NewReader(text), most)); err != nil {
			failures = append(failures, peers.Failure{Peer: peer, Err: err})
		}
	}
	return append(failures, r.failures...)
}

func arrival(t *testing.T, f *fixture, query string) *Arrival {
	t.Helper()
	a := &Arrival{}
	if err := json.Unmarshal([]byte(f.get(t, "/debug/distribution?kind=se&namespace=shop&name=db"+query)), a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestTheDistributionOfAllReplicas has the answer of each, and names those that can not be asked.
func TestTheDistributionOfAllReplicas(t *testing.T) {
	f := newFixture(t, Config{})
	others := &replicas{
		documents: map[string]string{"10.0.0.2": `{"version":"v1","clients":2,"has":2,"distributed":true}`, "10.0.0.3": "no JSON"},
		failures:  []peers.Failure{{Peer: "10.0.0.4", Err: errors.New("connection refused")}},
	}
	f.deps.Debug.views.AskReplicas = others.Each
	a := arrival(t, f, "&all=true&applied=false")
	if len(a.Replicas) != 3 || a.Replicas["10.0.0.2"].Has != 2 || a.Replicas["10.0.0.4"].Error != "connection refused" {
		t.Errorf("%+v", a)
	}
	name, query, _ := strings.Cut(others.asked, "?")
	q, err := url.ParseQuery(query)
	if name != "distribution" || err != nil || q.Get("kind") != "se" || q.Get("all") != "" {
		t.Errorf("replicas are asked for %s", others.asked)
	}
	if why := a.Unmet(Distributed); !strings.HasPrefix(why, "replica 10.0.0.3: it can not be asked: ") {
		t.Error(why)
	}
}

// TestADistributionAsksForWhatItNeeds: sinks and replicas, and tells what to configure without them.
func TestADistributionAsksForWhatItNeeds(t *testing.T) {
	f := newFixture(t, Config{})
	for query, want := range map[string]string{
		"&all=true": "set replicas.peers", "&applied=true": "the relay has no sinks",
	} {
		if code, body, _ := f.do(t, request{path: "/debug/distribution?kind=se&namespace=shop&name=db" + query}); code != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	if code, body, _ := f.do(t, request{path: "/debug/distribution?kind=se"}); code != 400 || !strings.Contains(body, "kind and name are required") {
		t.Error(code, body)
	}
	f.deps.Debug.views.Applied = func(mirror.Key) []sink.Applied {
		return []sink.Applied{{Sink: "dr", State: "refused", Reason: "quota"}, {Sink: "lab", State: Applied}}
	}
	for want, states := range map[string][]string{"": {"absent", Applied}, "sink 0: pending": {"pending", "absent"}, "no sink has it in its view": {"absent", "absent"}} {
		a := Arrival{Distribution: downstream.Distribution{Version: "1"}}
		for i, state := range states {
			a.Sinks = append(a.Sinks, sink.Applied{Sink: fmt.Sprint(i), State: state})
		}
		if got := a.Unmet(Applied); got != want {
			t.Errorf("%v: %q, want %q", states, got, want)
		}
	}
	if a := arrival(t, f, "&applied=true"); a.Unmet(Applied) != "sink dr: refused: quota" {
		t.Errorf("%+v", a)
	}
}

// TestWhatAnArrivalLacksIsNamed, with the first clients and their errors.
func TestWhatAnArrivalLacksIsNamed(t *testing.T) {
	holders := func(n int, text string) (all []downstream.Holder) {
		for i := range n {
			all = append(all, downstream.Holder{NodeID: fmt.Sprintf("sidecar~1.2.3.4~istiod-%d.istio-system~x", i), Error: text})
		}
		return all
	}
	served := func(d downstream.Distribution) Arrival {
		d.Version, d.Clients = "v1", 1
		return Arrival{Distribution: d}
	}
	gone := func(d downstream.Distribution) Arrival { return Arrival{Distribution: d} }
	behind := served(downstream.Distribution{})
	behind.Replicas = map[string]*Arrival{"b": {Distribution: downstream.Distribution{Version: "v1", Lacks: 1, Lacking: holders(1, "")}}}
	alone := Arrival{Distribution: downstream.Distribution{Version: "v1"}}
	if why := alone.Unmet(Distributed); why != "no client that sees it is connected" {
		t.Errorf("without a client: %q", why)
	}
	alone.Replicas = map[string]*Arrival{"b": {Distribution: downstream.Distribution{Version: "v1", Clients: 1}}}
	if why := alone.Unmet(Distributed); why != "" {
		t.Errorf("with a client of another replica: %q", why)
	}
	other := served(downstream.Distribution{})
	other.Replicas = map[string]*Arrival{"b": {Distribution: downstream.Distribution{Version: "v2"}}}
	for _, row := range []struct {
		a               Arrival
		condition, want string
	}{
		{served(downstream.Distribution{Has: 3}), Distributed, ""},
		{gone(downstream.Distribution{}), Distributed, "it is not served"},
		{served(downstream.Distribution{Pushing: true}), Distributed, "the newest change was not pushed yet"},
		{served(downstream.Distribution{Lacks: 5, Lacking: holders(5, "")}), Distributed, "not acknowledged by istiod-0.istio-system, istiod-1.istio-system, istiod-2.istio-system, 2 more"},
		{served(downstream.Distribution{Refuses: 1, Refusing: holders(1, "bad")}), Distributed, "rejected by istiod-0.istio-system: bad"},
		{served(downstream.Distribution{}), Deleted, "it is served"},
		{gone(downstream.Distribution{}), Deleted, ""},
		{gone(downstream.Distribution{Lacks: 1, Lacking: holders(1, "")}), Deleted, "still at istiod-0.istio-system"},
		{gone(downstream.Distribution{}), Applied, "it is not served"},
		{served(downstream.Distribution{Lacks: 1}), Applied, ""},
		{behind, Distributed, "replica b: not acknowledged by istiod-0.istio-system"},
		{other, Distributed, "replica b: it serves other content"},
	} {
		if got := row.a.Unmet(row.condition); got != row.want {
			t.Errorf("%s: %q, want %q", row.condition, got, row.want)
		}
	}
}

// TestAWordForSeveralKindsMeansTheOneThatIsServedOrThatAClientStillHas.
func TestAWordForSeveralKindsMeansTheOneThatIsServedOrThatAClientStillHas(t *testing.T) {
	kinds, err := mirror.ParseKinds("gateway")
	if err != nil || len(kinds) < 2 {
		t.Fatal(kinds, err)
	}
	f := newFixture(t, Config{})
	for _, kind := range kinds {
		for _, is := range []downstream.Distribution{{Lacks: 1, Clients: 1}, {Version: "v1"}, {Pushing: true}} {
			f.distribution = func(key mirror.Key) downstream.Distribution {
				out := downstream.Distribution{}
				if key.Kind == kind {
					out = is
				}
				out.Key = key
				return out
			}
			a := &Arrival{}
			if err := json.Unmarshal([]byte(f.get(t, "/debug/distribution?kind=gateway&namespace=shop&name=web")), a); err != nil {
				t.Fatal(err)
			}
			if a.Kind != kind || a.Unmet(Deleted) == "" {
				t.Errorf("%v, %+v: %+v", kind, is, a)
			}
		}
	}
}
