package kubernetes

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/internal/panics"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
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

// brittle is a maker that panics over the content of an object.
type brittle struct{ maker }

func (b brittle) decode(kind mirror.Kind, o *object.Object) (func(), error) {
	if o.Name == "bad" {
		panic("over " + o.Name)
	}
	return b.maker.decode(kind, o)
}

// front is an Ingress of shop/a.
func front(name, host string) map[string]any {
	return fakekube.Object("shop", name, `{"ingressClassName":"ours","rules":[{"host":"`+host+`","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"a","port":{"number":80}}}}]}}]}`)
}

func TestAPanicOverAnIngressCostsThatIngress_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ingressServer(t)
		s.Put(ingressesOf, front("front", "a.x"))
		w := s.mirrors(strict, "  guard: {percent: 100}\n")
		w.synced()
		before := w.has()
		g := w.source.ingresses
		w.source.ledger.Do(func() { g.maker = brittle{g.maker} })
		s.Put(ingressesOf, front("bad", "b.x"))
		w.until("it has panicked over the object", func() bool { return w.status().Panics == 1 })
		if i := w.detail().Ingress; i.Refused != 1 || !strings.Contains(strings.Join(i.Problems, "\n"), "Ingress shop/bad: internal error of the relay") {
			t.Errorf("refused: %+v", i)
		}
		if !slices.Equal(w.has(), before) {
			t.Errorf("served: %q, want %q", w.has(), before)
		}
		s.Put(ingressesOf, front("third", "c.x"))
		w.until("it goes on", func() bool { return len(w.has()) > len(before) })
		w.synced()
	})
}

func TestAPanicOverAnInputOfServicesIsAnErrorOfIt_C7(t *testing.T) {
	if _, err := decodeInput(serviceKind, nil); !errors.As(err, new(*panics.Panic)) {
		t.Errorf("error: %v", err)
	}
}

// What a panic leaves half changed is not used again: a new source begins with new state.
func TestAPanicWithinTheStateOfIngressesBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ingressServer(t)
		s.Put(ingressesOf, front("front", "a.x"))
		w := s.mirrors(strict, "  guard: {percent: 100}\n")
		w.synced()
		before, g := w.has(), w.source.ingresses
		if len(before) == 0 {
			t.Fatal("nothing is served")
		}
		w.source.ledger.Do(func() { g.state = &ingress.State{} }) // it has no maps: whoever adds something panics
		s.Put(ingressesOf, front("other", "b.x"))
		w.until("the source has failed", func() bool { return strings.Contains(w.status().LastError, "internal error of the relay") })
		if !slices.Equal(w.has(), before) {
			t.Errorf("served: %q, want %q", w.has(), before)
		}
		w.until("a new source goes on", func() bool { return len(w.has()) > len(before) && w.status().LastError == "" })
		w.synced()
	})
}
