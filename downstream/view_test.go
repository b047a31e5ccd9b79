package downstream

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/views"
	"meshrelay/internal/identity"
	"meshrelay/mirror"
)

// east and west return a resource as the store of that name has it.
func east(r *mirror.Resource) *mirror.Resource { return copyOf(r, "east", "east") }
func west(r *mirror.Resource) *mirror.Resource { return copyOf(r, "west", "west") }

// deltaAs opens a delta stream of a client with this metadata, and subscribes.
func (r *relay) deltaAs(typeURL string, metadata ...string) *deltaStream {
	r.t.Helper()
	d := r.delta()
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node(metadata...), TypeUrl: typeURL})
	return d
}

// derivedView returns the view of a variant, nil when there is none.
func (r *relay) derivedView(x views.Selection) *view {
	r.server.views.mu.Lock()
	defer r.server.views.mu.Unlock()
	return r.server.views.derived[x]
}

// hosts returns the names of a delta response with the source that each comes from, by its
// host.
func hosts(t *testing.T, resp *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	var out []string
	for _, res := range resp.Resources {
		_, host, _ := strings.Cut(string(decode(t, res.Resource).Body.Value), "\n")
		out = append(out, res.Name+"="+host[1:])
	}
	for _, name := range resp.RemovedResources {
		out = append(out, "-"+name)
	}
	return strings.Join(out, " ")
}

func TestOwnClustersCopiesAreLeftOut(t *testing.T) {
	r := startRelay(t, true)
	r.west.Put(west(se("shop", "both", "west")))
	r.put(east(se("shop", "both", "east")), east(se("shop", "own", "east")), se("shop", "unknown", "east"))
	own, other, unknown := r.deltaAs(seV1, "CLUSTER_ID", "east"), r.deltaAs(seV1, "CLUSTER_ID", "north"), r.deltaAs(seV1)
	everyone := func(wantOwn, wantOther string) {
		t.Helper()
		if got := hosts(t, own.next()); got != wantOwn {
			t.Errorf("the client of the cluster east got %q, want %q", got, wantOwn)
		}
		for _, d := range []*deltaStream{other, unknown} {
			if got := hosts(t, d.next()); got != wantOther {
				t.Errorf("another client got %q, want %q", got, wantOther)
			}
		}
	}
	everyone("shop/both=west shop/unknown=east", "shop/both=east shop/own=east shop/unknown=east")
	if !r.server.NeedsCopies() {
		t.Error("shadowed copies do not matter, with a client that sees them")
	}
	base := r.view().snapshot(typeSE)

	// A change of the shadowed copy reaches those who see it alone: the next that others
	// get is the change after it.
	r.west.Put(west(se("shop", "both", "west-2")))
	if got := hosts(t, own.next()); got != "shop/both=west-2" {
		t.Errorf("the client of the cluster east got %q", got)
	}
	if r.view().snapshot(typeSE) != base {
		t.Error("a change of a shadowed copy has changed the base view")
	}
	// The served copy is not the own cluster's client's to see, nor are changes of it.
	r.put(east(se("shop", "both", "east-2")))
	for _, d := range []*deltaStream{other, unknown} {
		if got := hosts(t, d.next()); got != "shop/both=east-2" {
			t.Errorf("another client got %q", got)
		}
	}
	// With the shadowed copy goes what the own cluster's client has.
	r.west.Remove(se("shop", "both", "").Key())
	if got := hosts(t, own.next()); got != "-shop/both" {
		t.Errorf("the client of the cluster east got %q", got)
	}
	r.west.Put(west(se("shop", "both", "west-3")))
	if got := hosts(t, own.next()); got != "shop/both=west-3" {
		t.Errorf("the client of the cluster east got %q", got)
	}
	// The other copy takes over: now it is everybody's.
	r.remove(se("shop", "both", ""))
	for _, d := range []*deltaStream{other, unknown} {
		if got := hosts(t, d.next()); got != "shop/both=west-3" {
			t.Errorf("another client got %q", got)
		}
	}
	r.put(se("shop", "last", "east"))
	everyone("shop/last=east", "shop/last=east")
	for _, d := range []*deltaStream{own, other, unknown} {
		d.cancel()
	}
	r.eventually(t, "nobody sees shadowed copies", func() bool { return !r.server.NeedsCopies() })
}

// TestViewsClusterIsThatOfItsClients_S14: an istiod does not say which it is of.
func TestViewsClusterIsThatOfItsClients_S14(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Views = []views.View{
			{Name: "east", Match: views.Match{Namespaces: []string{"istio-system"}}, ClusterID: "east"},
			{Name: "west", Match: views.Match{NodeIDs: []string{"w"}}, ClusterID: "west"},
		}
	})
	r.west.Put(west(se("shop", "b", "west")))
	r.put(east(se("shop", "a", "east")))
	r.eventually(t, "both are served", func() bool { return r.view().snapshot(typeSE).Count == 2 })
	for id, want := range map[string]string{node().Id: "shop/b=west", "w": "shop/a=east"} {
		n := node("CLUSTER_ID", "west") // a claim that the view overrules, or does not ask for
		n.Id = id
		d := r.delta()
		d.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: seV1})
		if got := hosts(t, d.next()); got != want {
			t.Errorf("%s sees %q, want %q", id, got, want)
		}
	}
}

// TestRevisionOfTheShadowedCopy_S14: the revision is looked at before copies are merged.
func TestRevisionOfTheShadowedCopy_S14(t *testing.T) {
	r := startRelay(t, true)
	r.west.Put(west(se("shop", "a", "west")))
	r.put(east(se("shop", "a", "east", "istio.io/rev", "blue")))
	for revision, want := range map[string]string{"": "shop/a=east", "blue": "shop/a=east", "green": "shop/a=west"} {
		d := r.deltaAs(seV1, "ISTIO_REVISION", revision)
		if got := hosts(t, d.next()); got != want {
			t.Errorf("revision %q sees %q, want %q", revision, got, want)
		}
	}
}

// TestNamesThatAViewExcludesAreNeverSent: not as resources, not as removed names, in
// neither protocol.
func TestNamesThatAViewExcludesAreNeverSent(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Views = []views.View{{Name: "v", Default: true, Accepts: func(r *mirror.Resource) bool { return r.Namespace() != "secret" }}}
	})
	secret := func(i int, host string) *mirror.Resource { return se("secret", fmt.Sprintf("hidden-%d", i%7), host) }
	r.put(se("shop", "a", "0"), secret(0, "x"), dr("secret", "hidden", "x"))
	d, s := r.deltaAs(seV1), r.sotw()
	s.send(subscribe(seV1))
	d.send(subscribeDelta(drV1))
	look := func(m proto.Message) {
		t.Helper()
		if b := must(proto.Marshal(m)); bytes.Contains(b, []byte("hidden")) || bytes.Contains(b, []byte("secret")) {
			t.Errorf("an excluded name was sent: %v", m)
		}
	}
	look(d.next())
	look(d.next()) // of both types
	look(s.next())
	for i := range 20 {
		r.put(secret(i, fmt.Sprint(i)), dr("secret", "hidden", fmt.Sprint(i)))
		if i%3 == 0 {
			r.remove(secret(i, ""))
		}
		r.put(se("shop", "a", fmt.Sprint("h", i)))
		dm, sm := d.next(), s.next()
		look(dm)
		look(sm)
		if deltaNames(dm) != "shop/a" || names(t, sm) != "shop/a" {
			t.Errorf("got %q and %q", deltaNames(dm), names(t, sm))
		}
	}
	// A client that comes back.
	again := subscribeDelta(seV1)
	again.InitialResourceVersions = map[string]string{"shop/gone": "x"}
	back := r.delta()
	back.send(again)
	look(back.next())
	v := r.derivedView(must(r.server.serving.Load().rules.Of(views.Listener{}, views.Client{}, identity.Identity{})).Selection(views.Client{}))
	if v == nil || v.snapshot(typeDR).Count != 0 || v.find(typeDR) != nil {
		t.Error("a kind of which the view has nothing costs something")
	}
}

func TestClientsOfOneVariantShare(t *testing.T) {
	r := startRelay(t, true)
	r.put(many(2000, "s-%05d", func(int) string { return "x" })...)
	r.put(east(se("shop", "own", "east")))
	var clients []*sotwStream
	for range 3 {
		s := r.sotw()
		s.send(&discoveryv3.DiscoveryRequest{Node: node("CLUSTER_ID", "east"), TypeUrl: seV1})
		if n := len(s.next().Resources); n != 2000 {
			t.Fatalf("%d resources", n)
		}
		clients = append(clients, s)
	}
	v := r.derivedView(views.Selection{Cluster: "east"})
	pages := len(v.snapshot(typeSE).Pages)
	if n := testutil.ToFloat64(r.server.metrics.pages); int(n) != pages {
		t.Errorf("%v pages encoded for 3 clients, of %d", n, pages)
	}
	// A client of everything needs what is different only.
	s := r.sotw()
	s.send(subscribe(seV1))
	if n := len(s.next().Resources); n != 2001 {
		t.Fatalf("%d resources", n)
	}
	if n := int(testutil.ToFloat64(r.server.metrics.pages)); n != pages+1 {
		t.Errorf("%d pages encoded, want one more than %d", n, pages)
	}
	encoded := func(v *view) (n int) {
		for _, p := range v.snapshot(typeSE).Pages {
			if p.Encoded(snapshot.Short) {
				n++
			}
		}
		return n
	}
	// Pages stay encoded as long as any view with SotW clients has them.
	for i, c := range clients {
		c.cancel()
		r.eventually(t, "a client is gone", func() bool { return len(r.server.Clients()) == 3-i })
	}
	r.eventually(t, "the own page is not encoded any more", func() bool { return encoded(v) == pages-1 })
	if n := encoded(r.view()); n != pages {
		t.Errorf("%d of %d pages are encoded, with a client that needs them", n, pages)
	}
	if r.derivedView(views.Selection{Cluster: "east"}) != nil {
		t.Error("a view without clients is kept")
	}
	s.cancel()
	r.eventually(t, "nothing is encoded any more", func() bool { return encoded(r.view()) == 0 })
}

// TestSharedPagesStayEncodedForDerivedViews: also when nobody looks at the base view.
func TestSharedPagesStayEncodedForDerivedViews(t *testing.T) {
	c := newCopies("east", "west")
	for _, res := range many(1000, "s-%03d", func(int) string { return strings.Repeat("x", 200) }) {
		c.put(res)
	}
	for _, name := range []string{"s-100", "s-900"} {
		c.put(east(se("shop", name, "own")))
	}
	vs := newViews(c)
	vs.open(time.Now())
	m := newMetrics(prometheus.NewRegistry())
	encode := func(v *view) {
		v.snapshot(typeSE).Frames(snapshot.Full, m.pageEncoded)
	}
	encoded := func(v *view) (n int) {
		for _, p := range v.snapshot(typeSE).Pages {
			if p.Encoded(snapshot.Full) {
				n++
			}
		}
		return n
	}
	one := must(acquire(vs, views.Selection{Cluster: "east"}, protocolSotW))
	two := must(acquire(vs, views.Selection{Cluster: "east", Revision: "blue"}, protocolSotW))
	// Of the page that the base view gets something new in, both keep the old form.
	key := c.put(east(se("shop", "s-500-own", "own")))
	vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
	if n, _ := vs.ownPages(one, typeSE); n != 3 {
		t.Fatalf("%d own pages", n)
	}
	encode(one)
	encode(two)
	pages := len(one.snapshot(typeSE).Pages)
	vs.release(one, viewer{})
	if n := encoded(two); n != pages {
		t.Errorf("%d of %d pages stay encoded for a view that shares them", n, pages)
	}
	if n := encoded(one); n != pages-2 {
		t.Errorf("%d of %d pages stay encoded; two were the view's alone", n, pages)
	}
	vs.release(two, viewer{})
	if n := encoded(vs.base); n != 0 {
		t.Errorf("%d pages stay encoded for nobody", n)
	}
}
