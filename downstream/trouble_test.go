package downstream

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshrelay/downstream/views"
	"meshrelay/mirror"
	"meshrelay/trouble"
)

func problems(names ...string) (all []Trouble) {
	for _, name := range names {
		all = append(all, Trouble{trouble.Problem{What: trouble.Held, Upstream: name, Cluster: "c-" + name, Relays: []string{"hub"}, N: 3, Of: 4}, name})
	}
	return all
}

// TestTroubleIsToldToThoseWhoseViewShowsIt_S28: to a delta client that asks, if its view shows the upstream, and once for each change.
func TestTroubleIsToldToThoseWhoseViewShowsIt_S28(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		all := func(*mirror.Resource) bool { return true }
		c.Listeners = nil
		for _, v := range []views.View{
			{Name: "all"}, {Name: "west", Accepts: all, Sources: []string{"west"}}, {Name: "some", Accepts: all, Picks: true}, {Name: "strange", Accepts: all},
			{Name: "own", ClusterID: "c-west"},
		} {
			c.Views = append(c.Views, v)
			c.Listeners = append(c.Listeners, Listener{Address: "127.0.0.1:0", View: v.Name})
		}
	})
	hasEast := func(upstream string, _ func(*mirror.Resource) bool) bool { return upstream == "east" }
	r.server.Tell(problems("east", "west"), hasEast)
	addrs := must(r.server.Addrs(t.Context()))
	for i, want := range []string{"east:3 west:3", "west:3", "east:0", "", "east:3"} {
		r.addr = addrs[i].String()
		s := r.delta()
		s.send(subscribeDelta(trouble.TypeURL))
		if got := nextTrouble(t, s); got != want {
			t.Errorf("the view %d is told %q, want %q", i, got, want)
		}
	}
	r.addr = addrs[0].String()
	s := r.delta()
	s.send(subscribeDelta(trouble.TypeURL))
	nextTrouble(t, s)
	r.server.Tell(problems("east", "west"), hasEast) // no change
	r.server.Tell(problems("east"), hasEast)
	if got := nextTrouble(t, s); got != "east:3" {
		t.Errorf("after the change it is told %q", got)
	}
	sotw := r.sotw()
	sotw.send(subscribe(trouble.TypeURL))
	if got := sotw.next(); len(got.Resources) != 0 {
		t.Errorf("a SotW client is told %v", got)
	}
}

// nextTrouble returns the upstreams with their numbers in the next response.
func nextTrouble(t *testing.T, s *deltaStream) string {
	t.Helper()
	resp := s.next()
	var value wrapperspb.StringValue
	if resp.TypeUrl != trouble.TypeURL || len(resp.Resources) != 1 || resp.Resources[0].Resource.UnmarshalTo(&value) != nil {
		t.Fatalf("response %v", resp)
	}
	report, err := trouble.Decode(value.GetValue(), "me")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range report.Problems {
		out = append(out, p.Upstream+":"+string(rune('0'+p.N)))
	}
	return strings.Join(out, " ")
}
