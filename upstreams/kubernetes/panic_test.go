package kubernetes

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/ingress"
	"meshrelay/upstreams/kubernetes/object"
)

// Objects of a list are decoded while it comes, in a goroutine of client-go that ends the process when
// it panics.
func TestAPanicOverAnObjectCostsThatObject_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.entry("shop/a", "a.x")
		s.entry("shop/bad", "b.x")
		s.faulty = func(o *object.Object) {
			if o.Name == "bad" {
				panic("over " + o.Name)
			}
		}
		w := s.mirrors("", "")
		w.synced()
		w.serves("ServiceEntry shop/a")
		st := w.status()
		if st.RefusedTotal != 1 || len(st.Refused) != 1 || !strings.Contains(st.Refused[0].Resource, "shop/bad") || !strings.Contains(st.Refused[0].Reason, "internal error of the relay: over bad") || st.Panics != 1 {
			t.Errorf("%d panics, refused: %+v", st.Panics, st.Refused)
		}
		s.entry("shop/c", "c.x")
		s.entry("shop/bad", "b2.x")
		w.until("the change panics, too", func() bool { return w.status().Panics == 2 })
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/c")
		w.synced()
	})
}

func TestAPanicOverIngressesLeavesWhatWasMadeOfThem_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ingressServer(t)
		s.Put(ingressesOf, fakekube.Object("shop", "front", `{"ingressClassName":"ours","rules":[{"host":"a.x","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"a","port":{"number":80}}}}]}}]}`))
		w := s.mirrors(strict, "  guard: {percent: 100}\n")
		w.synced()
		before := w.has()
		if len(before) == 0 {
			t.Fatal("nothing is served")
		}
		l := w.source.ledger
		swap := func(now *ingress.State) (was *ingress.State) {
			l.Do(func() { was, w.source.ingresses.state = w.source.ingresses.state, now })
			return was
		}
		good := swap(&ingress.State{}) // it has no maps: whoever adds something panics
		s.Put(ingressesOf, fakekube.Object("shop", "other", `{"ingressClassName":"ours"}`))
		w.until("it has panicked over the object", func() bool { return w.status().Panics == 1 })
		if i := w.detail().Ingress; i.Refused != 1 || !strings.Contains(strings.Join(i.Problems, "\n"), "Ingress shop/other: internal error of the relay") {
			t.Errorf("refused: %+v", i)
		}
		if !slices.Equal(w.has(), before) {
			t.Errorf("served: %q, want %q", w.has(), before)
		}
		swap(good)
		s.Put(ingressesOf, fakekube.Object("shop", "third", `{"ingressClassName":"ours","rules":[{"host":"c.x","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"a","port":{"number":80}}}}]}}]}`))
		w.until("it goes on", func() bool { return len(w.has()) > len(before) })
		w.synced()
	})
}
