package tracker

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/federation/conflicts"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

// TestAResourceWhoseHostIsOfOthersIsListedAndCounted, also with one copy, until it is served.
func TestAResourceWhoseHostIsOfOthersIsListedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, owner, taker, tr := mirror.NewAggregate(), mirror.NewStore(), mirror.NewStore(), New(slog.New(slog.DiscardHandler))
		if err := tr.Follow(a); err != nil {
			t.Fatal(err)
		}
		a.SetSources([]mirror.Source{{Name: "owner", Store: owner}, {Name: "east", Store: taker}}) // claim makes resources of east
		owners, err := merge.OwnersByName("first")
		if err != nil {
			t.Fatal(err)
		}
		a.SetOwners(owners)
		go a.Run(t.Context()) //nolint:errcheck // it returns nil
		mine := claim(t, federation.ServiceEntry, "bank", &networking.ServiceEntry{Hosts: []string{"pay.example"}})
		mine, err = mirror.New(func() mirror.Spec { s := mine.Spec(); s.Source = "owner"; return s }())
		if err != nil {
			t.Fatal(err)
		}
		taken := claim(t, federation.VirtualService, "team", &networking.VirtualService{Hosts: []string{"Pay.example"}, Gateways: []string{"team/gw"}})
		owner.Put(mine)
		taker.Put(taken)
		synctest.Wait()
		all := tr.KeyConflicts()
		if len(all) != 1 || all[0].Outcome != conflicts.Unowned || all[0].Winner != "" || len(all[0].Losers) != 1 || all[0].Losers[0] != "east" ||
			all[0].Reason != "host pay.example is also claimed by networking.istio.io/ServiceEntry bank/x from owner (hostConflicts: first)" {
			t.Errorf("%+v", all)
		}
		want := `
# HELP relay_contested_keys Keys that several upstreams have, by kind and by the outcome for the other copies.
# TYPE relay_contested_keys gauge
relay_contested_keys{kind="networking.istio.io/VirtualService",outcome="unowned"} 1
`
		if err := testutil.CollectAndCompare(tr, strings.NewReader(want), "relay_contested_keys"); err != nil {
			t.Error(err)
		}
		owner.Remove(mine.Key())
		synctest.Wait()
		if all := tr.KeyConflicts(); len(all) != 0 || a.Get(taken.Key()) == nil {
			t.Errorf("without the owner: %+v", all)
		}
	})
}
