package kubernetes

import (
	"slices"
	"testing"
	"testing/synctest"

	"meshrelay/federation"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// TestOfTheStatusOfAServiceEntryTheAllocatedAddressesCount_K6: nothing else of it makes a resource.
func TestOfTheStatusOfAServiceEntryTheAllocatedAddressesCount_K6(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		key := mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "a"}
		put := func(more ...string) {
			s.Put(entries, fakekube.Object("shop", "a", `{"hosts":["a.x"],"resolution":"STATIC","ports":[{"name":"tcp","number":1,"protocol":"TCP"}]}`, more...))
		}
		put()
		w := s.mirrors("", "")
		w.synced()
		has := func(want ...string) *mirror.Resource {
			w.until("it has the addresses", func() bool {
				r := w.aggregate.Get(key)
				return r != nil && slices.Equal(wire.Texts(r.BodyValue(), 2), want) && slices.Equal(r.Allocated(), want)
			})
			return w.aggregate.Get(key)
		}
		before := has()
		put(`{"status":{"conditions":[{"type":"Reconciled","status":"True"}]}}`)
		w.arrives("b")
		if now := has(); now != before {
			t.Error("a condition has made a resource")
		}
		put(`{"status":{"addresses":[{"value":"240.240.0.1","host":"a.x"}]}}`)
		before = has("240.240.0.1")
		put(`{"status":{"addresses":[{"value":"240.240.0.1","host":"a.x"}],"conditions":[{"type":"Reconciled","status":"True"}]}}`)
		w.arrives("c")
		if now := has("240.240.0.1"); now != before {
			t.Error("a condition beside addresses has made a resource")
		}
		put(`{"status":{"addresses":"none"}}`)
		has()
	})
}
