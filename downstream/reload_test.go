package downstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
)

// namespaces returns a view of these namespaces, for clients of these node ids.
func namespaces(name, nodeIDs string, shown ...string) views.View {
	v := views.View{Name: name, Accepts: func(r *mirror.Resource) bool {
		for _, ns := range shown {
			if r.Namespace() == ns {
				return true
			}
		}
		return false
	}}
	if nodeIDs == "" {
		v.Default = true
	} else {
		v.Match.NodeIDs = strings.Fields(nodeIDs)
	}
	return v
}

func (r *relay) reload(all ...views.View) {
	r.t.Helper()
	if err := r.server.Reload(r.t.Context(), all, Limits{}, nil); err != nil {
		r.t.Fatal(err)
	}
}

// deltaBy opens a delta stream of the client with this node id, and subscribes.
func (r *relay) deltaBy(id string, typeURLs ...string) *deltaStream {
	r.t.Helper()
	d := r.delta()
	for _, typeURL := range typeURLs {
		n := node()
		n.Id = id
		d.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: typeURL})
	}
	return d
}

func TestReloadMovesClientsByTheDifference(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Views = []views.View{namespaces("a", "a*", "shop", "till"), namespaces("b", "", "shop")}
	})
	r.put(se("shop", "x", "1"), se("till", "y", "1"), se("bank", "z", "1"))
	a, a2, b := r.deltaBy("a", seV1), r.deltaBy("a2", seV1), r.deltaBy("b", seV1)
	full := r.sotw()
	n := node()
	n.Id = "a"
	full.send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: seV1})
	first := full.next()
	full.send(ack(first))
	if got := names(t, first); got != "shop/x till/y" {
		t.Fatalf("got %q", got)
	}
	for d, want := range map[*deltaStream]string{a: "shop/x till/y", a2: "shop/x till/y", b: "shop/x"} {
		if got := deltaNames(d.next()); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	// The clients of one view part, and one of them joins those of another.
	r.reload(namespaces("a", "a", "till", "bank"), namespaces("b", "", "shop"))
	if got := deltaNames(a.next()) + " " + deltaNames(a.next()); got != "bank/z -shop/x" {
		t.Errorf("moved from shop and till to till and bank: got %q", got)
	}
	if got := names(t, full.next()); got != "bank/z till/y" {
		t.Errorf("the SotW client got %q", got)
	}
	if got := deltaNames(a2.next()); got != "-till/y" {
		t.Errorf("moved from shop and till to shop: got %q", got)
	}
	r.put(se("shop", "x", "2"))
	for _, d := range []*deltaStream{a2, b} { // b was sent nothing before
		if got := deltaNames(d.next()); got != "shop/x" {
			t.Errorf("got %q for a change that both clients see", got)
		}
	}
	for _, st := range r.server.Clients() {
		if want := strings.TrimRight(st.NodeID, "2"); st.NodeID == "a2" && st.View != "b" || st.NodeID != "a2" && st.View != want {
			t.Errorf("%s has the view %q", st.NodeID, st.View)
		}
	}
	// Nobody sees less than everything.
	r.reload()
	if got := deltaNames(a.next()); got != "shop/x" {
		t.Errorf("moved to everything: got %q", got)
	}
	for _, d := range []*deltaStream{a2, b} {
		if got := deltaNames(d.next()); got != "bank/z till/y" {
			t.Errorf("moved to everything: got %q", got)
		}
	}
	if got := names(t, full.next()); got != "bank/z shop/x till/y" {
		t.Errorf("the SotW client got %q", got)
	}
	for _, d := range []*deltaStream{a, a2, b} {
		d.cancel()
	}
	full.cancel()
	r.eventually(t, "no view is kept", func() bool {
		vs := r.server.views
		vs.mu.Lock()
		defer vs.mu.Unlock()
		return len(vs.derived)+len(vs.forks) == 0 && vs.base.clients == 0 && !r.server.NeedsCopies()
	})
}

// TestReloadThatChangesNothingSendsNothing: what comes next is a change made after it.
func TestReloadThatChangesNothingSendsNothing(t *testing.T) {
	views := func() []views.View { return []views.View{namespaces("v", "", "shop")} }
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = views() })
	r.put(se("shop", "x", "1"), se("bank", "z", "1"))
	d, s := r.deltaBy("a", seV1), r.sotw()
	s.send(subscribe(seV1))
	d.next()
	s.next()
	for range 3 {
		r.reload(views()...)
	}
	r.put(se("shop", "new", "1"))
	if got := deltaNames(d.next()); got != "shop/new" {
		t.Errorf("the delta client got %q", got)
	}
	if got := names(t, s.next()); got != "shop/new shop/x" {
		t.Errorf("the SotW client got %q", got)
	}
}

// TestReloadKeepsTheOrder_S20: of two kinds, what is added comes from the referred towards
// the referring, and what is removed the other way, after it.
func TestReloadKeepsTheOrder_S20(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
	r.put(se("shop", "s", "1"), vs("shop", "v", "1"), se("bank", "s", "1"), vs("bank", "v", "1"))
	d, full := r.deltaBy("a", vsV1, seV1), r.sotw()
	full.send(subscribe(vsV1))
	full.next()
	full.send(subscribe(seV1))
	full.next()
	d.next()
	d.next()
	r.reload(namespaces("v", "", "bank"))
	var got []string
	for range 4 {
		resp := d.next()
		got = append(got, resp.TypeUrl[strings.LastIndex(resp.TypeUrl, "/")+1:]+" "+deltaNames(resp))
	}
	if want := "ServiceEntry bank/s, VirtualService bank/v, VirtualService -shop/v, ServiceEntry -shop/s"; strings.Join(got, ", ") != want {
		t.Errorf("the order is %q, want %q", got, want)
	}
	// Lists that take something away come last, with the referring first.
	if one, two := full.next(), full.next(); one.TypeUrl != vsV1 || two.TypeUrl != seV1 || names(t, one) != "bank/v" || names(t, two) != "bank/s" {
		t.Errorf("got %s, then %s", one, two)
	}
}

func TestReloadRespectsNames_S17(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
	r.put(se("shop", "x", "1"), se("shop", "other", "1"), se("bank", "z", "1"))
	d, s := r.delta(), r.sotw()
	req := subscribeDelta(seV1)
	req.ResourceNamesSubscribe = []string{"shop/x", "bank/z"}
	d.send(req)
	full := subscribe(seV1)
	full.ResourceNames = []string{"shop/x", "bank/z"}
	s.send(full)
	if got := deltaNames(d.next()) + " " + deltaNames(d.next()) + ", " + names(t, s.next()); got != "shop/x -bank/z, shop/x" {
		t.Fatalf("got %q", got)
	}
	r.reload(namespaces("v", "", "bank"))
	if got := deltaNames(d.next()) + " " + deltaNames(d.next()); got != "bank/z -shop/x" {
		t.Errorf("got %q", got)
	}
	if got := names(t, s.next()); got != "bank/z" {
		t.Errorf("the SotW client got %q", got)
	}
}

// TestReloadEndsStreamsThatNoViewIsFor: those, and no other.
func TestReloadEndsStreamsThatNoViewIsFor(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
	r.put(se("shop", "x", "1"))
	in, out := r.deltaBy("in", seV1), r.deltaBy("out", seV1)
	in.next()
	out.next()
	r.reload(namespaces("v", "in", "shop"))
	err := out.end()
	wantCode(t, err, codes.PermissionDenied)
	if !strings.Contains(err.Error(), `"out"`) {
		t.Errorf("the error does not say who is refused: %v", err)
	}
	r.put(se("shop", "y", "1"))
	if got := deltaNames(in.next()); got != "shop/y" {
		t.Errorf("the other client got %q", got)
	}
	wantRefused(t, r, refusal.View, 1)
	r.reload(namespaces("v", "", "shop"))
	if got := deltaNames(r.deltaBy("out", seV1).next()); got != "shop/x shop/y" {
		t.Errorf("let in again, it got %q", got)
	}
}

// TestBadReloadChangesNothing: neither views nor limits.
func TestBadReloadChangesNothing(t *testing.T) {
	bound := namespaces("bound", "nobody", "shop")
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Views = []views.View{bound}
		c.Listeners[0].View = "bound"
		c.MaxStreams = 7
	})
	r.put(se("shop", "x", "1"), se("bank", "z", "1"))
	d := r.deltaBy("a", seV1)
	d.next()
	rules := r.server.serving.Load().rules
	for name, tc := range map[string]struct {
		views []views.View
		says  string
	}{
		"a bad pattern":          {[]views.View{bound, {Name: "x", Match: views.Match{Identities: []string{"x"}}}}, "view x"},
		"the view of a listener": {[]views.View{namespaces("other", "", "bank")}, "127.0.0.1:0: there is no view bound"},
		"none at all":            {nil, "there is no view bound"},
	} {
		if err := r.server.Reload(t.Context(), tc.views, Limits{Limits: admit.Limits{MaxStreams: 9}}, nil); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, tc.says)
		}
	}
	if r.server.serving.Load().rules != rules || r.server.limits.Load().MaxStreams != 7 {
		t.Error("something has changed")
	}
	// A listener's view is found again by its name.
	r.reload(namespaces("bound", "nobody", "bank"))
	if got := deltaNames(d.next()) + " " + deltaNames(d.next()); got != "bank/z -shop/x" {
		t.Errorf("got %q", got)
	}
}

// TestReloadOfClientsThatWait_S4: who has been sent nothing yet is moved all the same.
func TestReloadOfClientsThatWait_S4(t *testing.T) {
	r := startRelay(t, false, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop")} })
	d, s := r.deltaBy("a", seV1), r.sotw()
	s.send(subscribe(seV1))
	r.eventually(t, "both are there", func() bool { return len(r.server.Clients()) == 2 })
	r.reload(namespaces("v", "a", "bank"), namespaces("w", "", "shop", "bank"))
	r.put(se("shop", "x", "1"), se("bank", "z", "1"))
	r.store.SetSynced()
	if got := deltaNames(d.next()); got != "bank/z" {
		t.Errorf("the delta client got %q", got)
	}
	if got := names(t, s.next()); got != "bank/z shop/x" {
		t.Errorf("the SotW client got %q", got)
	}
}

// TestReceiptsAfterAReload: no client counts as having acknowledged a resource that it was not
// sent, and its ACKs of before stay.
func TestReceiptsAfterAReload(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{namespaces("v", "", "shop", "till")} })
	r.put(se("shop", "x", "1"), se("till", "y", "1"), se("bank", "z", "1"))
	d := r.deltaBy("a", seV1)
	resp := d.next()
	state := func(namespace, name string) ReceiptState {
		rc := r.server.Receipts(se(namespace, name, "").Key())
		if len(rc) != 1 {
			t.Fatalf("receipts %v", rc)
		}
		return rc[0].State
	}
	if got := state("shop", "x"); got != subscription.Sent {
		t.Errorf("before it is acknowledged: %s", got)
	}
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: resp.Nonce})
	r.eventually(t, "it is acknowledged", func() bool { return state("shop", "x") == subscription.Acknowledged })
	r.reload(namespaces("v", "", "shop", "bank"))
	added := d.next()
	d.next() // of what is removed
	for name, want := range map[string]ReceiptState{"shop/x": subscription.Acknowledged, "bank/z": subscription.Sent, "till/y": subscription.NotForIt} {
		ns, n, _ := strings.Cut(name, "/")
		if got := state(ns, n); got != want {
			t.Errorf("%s after the reload: %s, want %s", name, got, want)
		}
	}
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: added.Nonce})
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: "2"})
	r.eventually(t, "all is acknowledged", func() bool { return state("bank", "z") == subscription.Acknowledged })
}

// TestReloadWhileEverythingHappens: views and limits are replaced while sources change and
// clients come and go; those who stay arrive at what their view shows, and lose nothing on
// the way that each of the views shows that they can have had. A stream that has a response of the
// view of before on its way ends, and its client connects again.
func TestReloadWhileEverythingHappens(t *testing.T) {
	rules := [][]views.View{
		{namespaces("a", "client-0", "shop", "till"), namespaces("b", "client-1 client-2", "shop"), namespaces("c", "", "shop", "till", "bank")},
		{namespaces("c", "", "shop", "bank")},
		{namespaces("b", "client-2", "shop", "till"), {Name: "everything", Default: true}},
		nil,
		{namespaces("x", "client-0", "shop"), namespaces("y", "client-1", "shop"), namespaces("z", "", "shop")},
	}
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = rules[0] })
	spaces := []string{"shop", "till", "bank"}
	const stable = 40 // of shop, which every view shows: they never change
	for i := range stable {
		r.put(se("shop", fmt.Sprintf("stable-%d", i), "1"))
	}
	const clients = 6
	var deltas []*deltaStream
	var fulls []*sotwStream
	delta := func(i int) *deltaStream { return r.deltaBy(fmt.Sprintf("client-%d", i%3), seV1) }
	full := func(i int) *sotwStream {
		s := r.sotw()
		n := node()
		n.Id = fmt.Sprintf("client-%d", i%3)
		s.send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: seV1})
		return s
	}
	for i := range clients {
		deltas, fulls = append(deltas, delta(i)), append(fulls, full(i))
	}
	outdated := func(err error) bool {
		if err != nil && status.Convert(err).Message() != status.Convert(errOutdated).Message() {
			t.Fatal(err)
		}
		return err != nil
	}
	var busy sync.WaitGroup
	for i, store := range []*mirror.Store{r.store, r.west} {
		busy.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(i)))
			for n := range 1500 {
				res := se(spaces[rnd.IntN(3)], fmt.Sprintf("s-%02d", rnd.IntN(60)), fmt.Sprint(n))
				if rnd.IntN(3) == 0 {
					store.Remove(res.Key())
				} else {
					store.Put(copyOf(res, []string{"east", "west"}[i], "elsewhere"))
				}
			}
		})
	}
	busy.Go(func() {
		for n := range 60 {
			if err := r.server.Reload(t.Context(), rules[n%len(rules)], Limits{Limits: admit.Limits{MaxStreams: 1000 + n, RequestsPerSecond: 100 + n}}, nil); err != nil {
				t.Error(err)
			}
		}
		if err := r.server.Reload(t.Context(), rules[0], Limits{}, nil); err != nil {
			t.Error(err)
		}
	})
	busy.Go(func() {
		for range 3 {
			if err := r.server.Reload(t.Context(), []views.View{{Match: views.Match{Identities: []string{"x"}}}}, Limits{}, nil); err == nil {
				t.Error("a bad pattern is no error")
			}
		}
	})
	for i := range 30 {
		d := r.deltaBy(fmt.Sprintf("client-%d", i%4), seV1, drV1)
		outdated(await.Value(t, "a message", d.recvd).err)
		d.cancel()
	}
	busy.Wait()
	shows := [][]string{{"shop", "till"}, {"shop"}, {"shop"}}
	want := func(i int) map[string]string {
		out := map[string]string{}
		for _, store := range []*mirror.Store{r.west, r.store} { // the first wins
			for _, res := range store.List(kindSE, "") {
				for _, ns := range shows[i%3] {
					if res.Namespace() == ns {
						out[res.FullName()] = res.Version()
					}
				}
			}
		}
		return out
	}
	for i, d := range deltas {
		holds := map[string]string{}
		for final := want(i); !maps.Equal(holds, final); {
			got := await.Value(t, "a message", d.recvd)
			if outdated(got.err) {
				d, holds = delta(i), map[string]string{}
				continue
			}
			resp := got.msg
			for _, res := range resp.Resources {
				holds[res.Name] = res.Version
			}
			for _, name := range resp.RemovedResources {
				if strings.HasPrefix(name, "shop/stable") {
					t.Fatalf("client %d was told that %s is gone", i, name)
				}
				delete(holds, name)
			}
		}
	}
	for i, s := range fulls {
		for final := want(i); ; {
			got := await.Value(t, "a message", s.recvd)
			if outdated(got.err) {
				s = full(i)
				continue
			}
			holds, kept := map[string]string{}, 0
			for _, a := range got.msg.Resources {
				md := decode(t, a).Metadata
				holds[md.Name] = md.Version
				if strings.HasPrefix(md.Name, "shop/stable") {
					kept++
				}
			}
			if kept != stable {
				t.Fatalf("client %d was sent %d of %d resources that all views show", i, kept, stable)
			}
			if maps.Equal(holds, final) {
				break
			}
		}
	}
}

// TestReloadWhileTheServerDrains ends, with or without effect.
func TestReloadWhileTheServerDrains(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "x", "1"))
	for i := range 5 {
		r.deltaBy(fmt.Sprint(i), seV1).next()
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 50 {
			r.reload(namespaces("v", "", fmt.Sprint("ns-", i)))
		}
	})
	r.stop()
	wg.Wait()
}
