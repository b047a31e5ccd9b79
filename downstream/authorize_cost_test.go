package downstream

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/internal/identity"
)

// TestAuthorizationCostsAChangeNothing: against the same listener with identities in views, a change makes as many
// responses, and at most 5 % more allocations.
func TestAuthorizationCostsAChangeNothing(t *testing.T) {
	const clients, changes, rounds = 10, 20, 5
	view := viewOf("shop", "shop")
	measure := func(views []View, rules []AuthorizationRule) (allocations uint64, responses float64) {
		g := startGuarded(t, true, views, rules)
		defer g.stop()
		var streams []*deltaStream
		for i := range clients {
			d := g.open(seV1, g.as("shop", fmt.Sprint("a", i)))
			d.next()
			streams = append(streams, d)
		}
		change := func(i int) {
			g.store.Put(se("shop", "a", fmt.Sprint(i)))
			for _, d := range streams {
				d.next()
			}
		}
		change(0)
		pushes := func() float64 {
			return testutil.ToFloat64(g.server.metrics.of(typeSE).pushes)
		}
		sent := pushes()
		for round := range rounds { // the least is that without the work of others
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range changes {
				change(1 + round*changes + i)
			}
			runtime.ReadMemStats(&after)
			if n := after.Mallocs - before.Mallocs; round == 0 || n < allocations {
				allocations = n
			}
		}
		return allocations, pushes() - sent
	}
	matched := view
	matched.Match.Identities = []string{"spiffe://cluster.local/**"}
	without, sentWithout := measure([]View{matched}, nil)
	with, sentWith := measure([]View{view}, []AuthorizationRule{
		{Name: "never", Identities: []string{"spiffe://other/**"}, View: "shop", Accepts: onlyKind(kindSE)},
		{Name: "all", Identities: []string{"spiffe://cluster.local/**"}, View: "shop"},
	})
	if sentWith != sentWithout || sentWith != clients*changes*rounds {
		t.Errorf("%v responses with rules, %v without", sentWith, sentWithout)
	}
	if float64(with) > 1.05*float64(without) {
		t.Errorf("%d allocations with rules, %d without", with, without)
	}
	t.Logf("%d allocations for %d changes to %d clients with rules, %d without", with, changes, clients, without)
}

// TestAThousandRulesAreFoundWithoutReadingThemAll: identities without wildcards take one look, and no allocation.
func TestAThousandRulesAreFoundWithoutReadingThemAll(t *testing.T) {
	var rules []AuthorizationRule
	for i := range 1000 {
		rules = append(rules, AuthorizationRule{Name: fmt.Sprint("r", i), Identities: []string{account("shop", fmt.Sprint("a", i))}})
	}
	rs := must(newRules(Access{Authorization: rules}, []Listener{{Address: "a"}}))
	who, l := identity.Claimed([]string{account("shop", "a999")}), Listener{Address: "a"}
	if n := testing.AllocsPerRun(100, func() { must(rs.authorize(l, client{}, who)) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
