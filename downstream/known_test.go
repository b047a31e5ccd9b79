package downstream

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"meshrelay/downstream/views"
)

// TestMadeUpClustersAndRevisionsShareAView: they take no view from clients that need one.
func TestMadeUpClustersAndRevisionsShareAView(t *testing.T) {
	r := startRelay(t, true)
	r.put(east(se("shop", "a", "east")), se("shop", "b", "b", "istio.io/rev", "blue"))
	vs := r.server.views
	for i := range 2 * maxViews {
		for _, x := range []views.Selection{{Cluster: fmt.Sprint("c", i)}, {Revision: fmt.Sprint("r", i)}, {Cluster: fmt.Sprint("c", i), Revision: fmt.Sprint("r", i)}} {
			must(vs.admit(context.Background(), x, viewer{delta: true}))
		}
	}
	if n := len(vs.derived) + len(vs.forks); n != 3 {
		t.Errorf("%d views for clients of made-up clusters and revisions", n)
	}
	var clients []*deltaStream
	for i := range 20 {
		clients = append(clients, r.deltaAs(seV1, "CLUSTER_ID", fmt.Sprint("other", i)))
	}
	own := r.deltaAs(seV1, "CLUSTER_ID", "east", "ISTIO_REVISION", "blue")
	if got := hosts(t, own.next()); got != "shop/b=b" {
		t.Errorf("the client of a cluster that there is got %q", got)
	}
	for _, d := range clients {
		if got := hosts(t, d.next()); got != "shop/a=east shop/b=b" {
			t.Errorf("a client of a cluster that there is not got %q", got)
		}
	}
	red := r.deltaAs(seV1, "ISTIO_REVISION", "red")
	if got := hosts(t, red.next()); got != "shop/a=east" {
		t.Errorf("a client of a revision that there is not got %q", got)
	}
}

// TestClusterThatBecomesKnownIsKeptFromItsOwnClients: they are never sent what came from it,
// also when it was the first.
func TestClusterThatBecomesKnownIsKeptFromItsOwnClients(t *testing.T) {
	for _, synced := range []bool{true, false} {
		t.Run(fmt.Sprint("synced ", synced), func(t *testing.T) {
			r := startRelay(t, synced)
			if synced {
				r.put(se("shop", "a", "1"))
			} else {
				r.store.Put(se("shop", "a", "1"))
			}
			own, other, blue, green := r.deltaAs(seV1, "CLUSTER_ID", "west"), r.deltaAs(seV1, "CLUSTER_ID", "north"),
				r.deltaAs(seV1, "ISTIO_REVISION", "blue"), r.deltaAs(seV1, "ISTIO_REVISION", "green")
			all := []*deltaStream{own, other, blue, green}
			if synced {
				for _, d := range all {
					if got := hosts(t, d.next()); got != "shop/a=1" {
						t.Errorf("got %q", got)
					}
				}
			} else {
				r.eventually(t, "they wait", func() bool { return len(r.server.Clients()) == len(all) })
			}
			r.west.Put(west(se("shop", "from-west", "w")))
			r.west.Put(west(se("shop", "blue-west", "w", "istio.io/rev", "blue")))
			if !synced {
				r.store.SetSynced()
			}
			until := func(d *deltaStream, last string) (seen map[string]bool) {
				seen = map[string]bool{}
				for !seen[last] {
					for _, res := range d.next().Resources {
						seen[res.Name] = true
					}
				}
				return seen
			}
			until(other, "shop/from-west")
			if seen := until(blue, "shop/blue-west"); !seen["shop/from-west"] {
				until(blue, "shop/from-west")
			}
			r.put(se("shop", "z", "1"))
			for d, name := range map[*deltaStream]string{own: "the client of the cluster", green: "the client of another revision"} {
				seen := until(d, "shop/z")
				if seen["shop/blue-west"] || d == own && seen["shop/from-west"] {
					t.Errorf("%s was sent %v", name, seen)
				}
			}
			if r.derivedView(views.Selection{Cluster: "west"}) == nil || r.derivedView(views.Selection{Revision: "blue"}) == nil {
				t.Error("the clients of what has become known have no view of their own")
			}
		})
	}
}

// TestAClusterWithTwoIDsIsSentNothingOfItsOwn, under either ID, also to clients that were there before.
func TestAClusterWithTwoIDsIsSentNothingOfItsOwn(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "1"))
	r.west.Put(west(se("shop", "from-west", "w")))
	before := r.deltaAs(seV1, "CLUSTER_ID", "west-old")
	for seen := map[string]bool{}; !seen["shop/from-west"]; {
		for _, res := range before.next().Resources {
			seen[res.Name] = true
		}
	}
	r.server.Same(map[string]string{"west-old": "west"})
	if resp := before.next(); !slices.Equal(resp.RemovedResources, []string{"shop/from-west"}) {
		t.Errorf("removed %v, changed %s", resp.RemovedResources, hosts(t, resp))
	}
	for _, id := range []string{"west", "west-old"} {
		if got := hosts(t, r.deltaAs(seV1, "CLUSTER_ID", id).next()); got != "shop/a=1" {
			t.Errorf("%s: got %q", id, got)
		}
	}
}
