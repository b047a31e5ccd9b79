package admin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/sink"
)

func arrival(t *testing.T, f *fixture, query string) *Arrival {
	t.Helper()
	a := &Arrival{}
	if err := json.Unmarshal([]byte(f.get(t, "/debug/distribution?kind=se&namespace=shop&name=db"+query)), a); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestADistributionAsksForWhatItNeeds: sinks, and tells what to configure without them.
func TestADistributionAsksForWhatItNeeds(t *testing.T) {
	f := newFixture(t, Config{})
	if code, body, _ := f.do(t, request{path: "/debug/distribution?kind=se&namespace=shop&name=db&applied=true"}); code != 400 || !strings.Contains(body, "the relay has no sinks") {
		t.Errorf("%d %s", code, body)
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
	alone := Arrival{Distribution: downstream.Distribution{Version: "v1"}}
	if why := alone.Unmet(Distributed); why != "no client that sees it is connected" {
		t.Errorf("without a client: %q", why)
	}
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
