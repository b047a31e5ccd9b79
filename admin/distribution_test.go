package admin

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/sink"
)

// TestAnExplanationNamesWhatSinksHaveWritten.
func TestAnExplanationNamesWhatSinksHaveWritten(t *testing.T) {
	f := newFixture(t, Config{})
	want := []sink.Applied{{Sink: "dr", State: "refused", Reason: "quota"}, {Sink: "lab", State: "applied"}}
	f.deps.Debug.views.Applied = func(mirror.Key) []sink.Applied { return want }
	e := &Explanation{}
	if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=shop&name=db")), e); err != nil || !slices.Equal(e.Sinks, want) {
		t.Errorf("%+v, %v", e.Sinks, err)
	}
}

// TestWhatADistributionLacksIsNamed, with the first clients and their errors.
func TestWhatADistributionLacksIsNamed(t *testing.T) {
	holders := func(n int, text string) (all []downstream.Holder) {
		for i := range n {
			all = append(all, downstream.Holder{NodeID: fmt.Sprintf("sidecar~1.2.3.4~istiod-%d.istio-system~x", i), Error: text})
		}
		return all
	}
	served := func(d downstream.Distribution) downstream.Distribution {
		d.Version, d.Clients = "v1", 1
		return d
	}
	for _, row := range []struct {
		d    downstream.Distribution
		want string
	}{
		{served(downstream.Distribution{Has: 3}), ""},
		{downstream.Distribution{}, "it is not served"},
		{downstream.Distribution{Version: "v1"}, "no client that sees it is connected"},
		{served(downstream.Distribution{Pushing: true}), "the newest change was not pushed yet"},
		{served(downstream.Distribution{Lacks: 5, Lacking: holders(5, "")}), "not acknowledged by istiod-0.istio-system, istiod-1.istio-system, istiod-2.istio-system, 2 more"},
		{served(downstream.Distribution{Refuses: 1, Refusing: holders(1, "bad")}), "rejected by istiod-0.istio-system: bad"},
	} {
		if got := Undistributed(row.d); got != row.want {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
}
