package downstream

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// distributed is a server without goroutines, and its clients.
type distributed struct {
	server  *Server
	copies  *copies
	clients []*holder
	content int
	// removals counts those of each name: a client that has rejected one has not rejected the next.
	removals map[string]int
}

// removal is what a client refuses that rejects the newest removal of a name.
func removal(n int) string { return fmt.Sprint("-", n) }

func (d *distributed) remove(namespace, name string) {
	key := mirror.Key{Kind: kindSE, Namespace: namespace, Name: name}
	if d.copies.Get(key) != nil {
		d.removals[key.FullName()]++
	}
	d.copies.remove(key, "east")
	d.push(namespace, name)
}

// holder is a client with what a brute-force observer knows of it.
type holder struct {
	*conn
	x        views.Selection
	typeURL  string
	names    []string // nil: all
	mayNACK  bool
	first    map[string]string // what the first answer has, nil before
	planned  map[string]string // what it has after all that was sent
	has      map[string]string // acknowledged
	mayHave  map[string]bool
	refused  map[string]string // contents and removals in rejected responses
	removed  map[string]int    // removals before the newest round
	answered bool
	nacked   bool // the newest answer was a NACK
	// between are the names that the view has shown since the last round. A client that owes an ACK is taken to have
	// them after the next one: its rounds are not remembered.
	between map[string]bool
}

var distributedVariants = []views.Selection{
	{},
	{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return r.Namespace() == "shop" }}}},
	{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return strings.Contains(r.FullName(), "3") }}}},
}

func newDistributed() *distributed {
	c := newCopies("east", "west")
	s := must(New(Config{Listeners: []Listener{{Address: "127.0.0.1:0"}}}, Deps{
		Resources: c, Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}))
	s.views.open(time.Now())
	close(s.released)
	return &distributed{server: s, copies: c, removals: map[string]int{}}
}

func (d *distributed) change(namespace, name string) {
	d.content++
	d.copies.put(copyOf(se(namespace, name, fmt.Sprint("host", d.content)), "east", ""))
	d.push(namespace, name)
	for _, h := range d.clients {
		if h.first != nil && d.truth(h)[namespace+"/"+name] != "" {
			h.between[namespace+"/"+name] = true
		}
	}
}

func (d *distributed) push(namespace, name string) {
	key := mirror.Key{Kind: kindSE, Namespace: namespace, Name: name}
	d.server.views.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
}

func (d *distributed) join(delta bool, x views.Selection, names ...string) *holder {
	protocol := protocolSotW
	if delta {
		protocol = protocolDelta
	}
	h := &holder{x: x, typeURL: seV1, names: names, mayNACK: true, has: map[string]string{}, mayHave: map[string]bool{}, refused: map[string]string{}, between: map[string]bool{}, answered: true}
	h.conn = &conn{
		server: d.server, stream: nobody{}, protocol: protocol, use: &admit.Stream{Peer: &admit.Peer{}}, asked: true,
		view: must(d.server.views.acquire(context.Background(), x, viewer{delta: delta})),
		subs: subscription.New(delta, nil, lookup),
	}
	h.number = d.server.lastID.Add(1)
	h.client.NodeID = fmt.Sprintf("sidecar~1.2.3.4~istiod-%d.istio-system~cluster.local", h.number)
	h.ask(&subscription.Request{TypeURL: seV1, Subscribe: names})
	d.clients = append(d.clients, h)
	d.server.add(h.conn)
	return h
}

func (d *distributed) leave(h *holder) {
	d.clients = slices.DeleteFunc(d.clients, func(o *holder) bool { return o == h })
	d.server.remove(h.conn)
	d.server.views.release(h.view, viewer{delta: h.protocol == protocolDelta})
}

func (h *holder) ask(req *subscription.Request) {
	if _, err := h.subs.Request(req, subscription.Limits{Types: 9, Names: 99, NameBytes: 9999}, time.Now()); err != nil {
		panic(err)
	}
}

// truth returns what the client's view shows of what it subscribes to.
func (d *distributed) truth(h *holder) map[string]string {
	all := map[string]string{}
	for _, key := range d.copies.Keys(kindSE) {
		r := d.copies.Get(key)
		if r == nil || h.x.Rule != nil && !h.x.Rule.Accepts(r) || len(h.names) > 0 && !slices.Contains(h.names, key.FullName()) {
			continue
		}
		all[key.FullName()] = r.Version()
	}
	return all
}

// send sends a round.
func (d *distributed) send(h *holder) {
	round := must(h.plan())
	if now := d.truth(h); h.first == nil {
		h.first, h.planned = now, now
	} else {
		h.planned = now
	}
	for round != nil {
		_, ok, err := h.respond(round, time.Now())
		if err != nil {
			panic(err)
		}
		if !ok {
			break
		}
		h.answered = false
	}
	h.removed = maps.Clone(d.removals)
	for name := range h.planned {
		h.mayHave[name] = true
	}
	maps.Copy(h.mayHave, h.between)
	clear(h.between)
	if h.answered && !h.nacked { // nothing was sent: it has everything
		h.took()
	}
}

func (h *holder) took() {
	if h.protocol == protocolSotW {
		clear(h.refused)
	}
	maps.DeleteFunc(h.refused, func(name, version string) bool { return version != removal(h.removed[name]) && h.planned[name] == "" })
	for name, version := range h.planned {
		if refused, is := h.refused[name]; !is || refused != version {
			h.has[name] = version
			delete(h.refused, name)
		}
	}
	maps.DeleteFunc(h.has, func(name, _ string) bool { return h.planned[name] == "" })
	maps.DeleteFunc(h.mayHave, func(name string, _ bool) bool {
		_, refused := h.refused[name]
		return h.planned[name] == "" && !refused
	})
}

// answer acknowledges or rejects the newest response.
func (h *holder) answer(ack bool) {
	if h.answered {
		return
	}
	h.answered, h.nacked = true, !ack
	req := &subscription.Request{TypeURL: h.typeURL, Nonce: h.subs.Watch(h.typeURL).Status().SentNonce, Rejected: !ack}
	if h.protocol == protocolSotW {
		req.Subscribe = h.names
	}
	if !ack {
		req.Error = "bad\x1bhost"
		for name := range h.mayHave {
			if is := h.planned[name]; is == "" {
				h.refused[name] = removal(h.removed[name])
			} else if h.has[name] != is {
				h.refused[name] = is
			}
		}
	} else {
		h.mayNACK = h.protocol == protocolSotW || len(h.refused) == 0
		h.took()
	}
	h.ask(req)
}

// standing is what the distribution must tell of a client.
func (d *distributed) standing(h *holder, name string) subscription.Standing {
	present := d.truth(h)[name]
	refused, rejects := h.refused[name]
	switch {
	case h.first == nil:
		return subscription.Unconcerned
	case present == "" && (h.first[name] == "" && !h.mayHave[name] || !h.mayHave[name]):
		return subscription.Unconcerned
	case rejects && (refused == present || present == "" && refused == removal(d.removals[name])):
		return subscription.Refuses
	case present == "":
		return subscription.Lacks
	case h.has[name] == present:
		return subscription.Has
	case h.first[name] == present:
		return subscription.Unconcerned
	}
	return subscription.Lacks
}

func (d *distributed) check(t interface {
	Helper()
	Fatalf(string, ...any)
}, namespace, name string) {
	t.Helper()
	key := mirror.Key{Kind: kindSE, Namespace: namespace, Name: name}
	got := d.server.Distribution(key)
	want := Distribution{}
	lacking, refusing := []string{}, []string{}
	for _, h := range d.clients {
		switch d.standing(h, key.FullName()) {
		case subscription.Has:
			want.Has++
		case subscription.Lacks:
			want.Lacks++
			lacking = append(lacking, h.id())
		case subscription.Refuses:
			want.Refuses++
			refusing = append(refusing, h.id())
		}
	}
	slices.Sort(lacking)
	slices.Sort(refusing)
	names := func(all []Holder) (out []string) {
		for _, h := range all {
			out = append(out, h.Connection)
		}
		return out
	}
	if got.Has != want.Has || got.Lacks != want.Lacks || got.Refuses != want.Refuses ||
		!slices.Equal(names(got.Lacking), lacking) || !slices.Equal(names(got.Refusing), refusing) {
		t.Fatalf("%s: has, lacks, refuses: %v, want %v; lacking %v, want %v; refusing %v, want %v", key.FullName(),
			[]int{got.Has, got.Lacks, got.Refuses}, []int{want.Has, want.Lacks, want.Refuses}, got.Lacking, lacking, got.Refusing, refusing)
	}
	if got.Pushing {
		t.Fatalf("%s is not pushed", key.FullName())
	}
}

// TestDistributionIsWhatEachClientHas, over random clients, views, changes, ACKs and NACKs.
func TestDistributionIsWhatEachClientHas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := newDistributed()
		d.change("shop", "always-3") // in all views: an answer from before the first change of a view needs no ACK
		namespace := func() string { return rapid.SampledFrom([]string{"shop", "till"}).Draw(t, "namespace") }
		name := func() string { return fmt.Sprint(rapid.IntRange(1, 4).Draw(t, "name")) }
		some := func(f func(*holder)) {
			if len(d.clients) > 0 {
				f(rapid.SampledFrom(d.clients).Draw(t, "client"))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"change": func(*rapid.T) { d.change(namespace(), name()) },
			"remove": func(*rapid.T) {
				d.remove(namespace(), name())
			},
			"join": func(t *rapid.T) {
				var names []string
				if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
					names = []string{"shop/1", "till/3"}
				}
				d.join(rapid.Bool().Draw(t, "delta"), rapid.SampledFrom(distributedVariants).Draw(t, "view"), names...)
			},
			"leave": func(*rapid.T) { some(d.leave) },
			"send":  func(*rapid.T) { some(d.send) },
			"ACK":   func(*rapid.T) { some(func(h *holder) { h.answer(true) }) },
			"NACK":  func(*rapid.T) { some(func(h *holder) { h.answer(!h.mayNACK) }) },
			"": func(t *rapid.T) {
				for _, ns := range []string{"shop", "till"} {
					for n := range 4 {
						d.check(t, ns, fmt.Sprint(n+1))
					}
				}
			},
		})
	})
}

// TestAClientThatConnectsLaterDoesNotEndADistribution: it counts once it has answered, and lacks nothing before.
func TestAClientThatConnectsLaterDoesNotEndADistribution(t *testing.T) {
	d := newDistributed()
	first := d.join(true, views.Selection{})
	d.send(first)
	d.change("shop", "1")
	key := mirror.Key{Kind: kindSE, Namespace: "shop", Name: "1"}
	if got := d.server.Distribution(key); got.Lacks != 1 || got.Lacking[0].Name() != "istiod-1.istio-system" {
		t.Fatalf("%+v", got)
	}
	d.send(first)
	first.answer(true)
	late := d.join(false, views.Selection{})
	for _, step := range []func(){func() {}, func() { d.send(late) }, func() { late.answer(true) }} {
		step()
		if got := d.server.Distribution(key); got.Pushing || got.Lacks+got.Refuses > 0 {
			t.Fatalf("%+v", got)
		}
	}
	if got := d.server.Distribution(key); got.Clients != 2 || got.Has != 2 {
		t.Fatalf("%+v", got)
	}
}

// TestADistributionHasTheErrorOfAClient, abbreviated.
func TestADistributionHasTheErrorOfAClient(t *testing.T) {
	d := newDistributed()
	h := d.join(true, views.Selection{})
	d.send(h)
	d.change("shop", "1")
	d.send(h)
	h.ask(&subscription.Request{TypeURL: seV1, Nonce: h.subs.Watch(seV1).Status().SentNonce, Rejected: true, Error: strings.Repeat("long ", 500)})
	got := d.server.Distribution(mirror.Key{Kind: kindSE, Namespace: "shop", Name: "1"})
	if got.Refuses != 1 || len(got.Refusing[0].Error) > maxRefusal+10 || !strings.HasPrefix(got.Refusing[0].Error, "long") {
		t.Fatalf("%+v", got)
	}
}

// TestAChangeThatWasNotPushedIsNotDistributed.
func TestAChangeThatWasNotPushedIsNotDistributed(t *testing.T) {
	d := newDistributed()
	d.copies.put(copyOf(se("shop", "1", "a"), "east", ""))
	key := mirror.Key{Kind: kindSE, Namespace: "shop", Name: "1"}
	if got := d.server.Distribution(key); !got.Pushing {
		t.Fatalf("%+v", got)
	}
	d.push("shop", "1")
	if got := d.server.Distribution(key); got.Pushing || got.Lacks+got.Refuses > 0 {
		t.Fatalf("%+v", got)
	}
}

// TestADistributionIsToldOfViewsThatHaveTheSame: while a change has reached some views only, nobody of the others has it.
func TestADistributionIsToldOfViewsThatHaveTheSame(t *testing.T) {
	d := newDistributed()
	told := make(chan Distribution, 1)
	asks := false
	x := views.Selection{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool {
		if asks && r.Namespace() == "shop" { // the base view has the change
			asks = false
			go func() { told <- d.server.Distribution(r.Key()) }()
			for n := 0; n < 1000 && len(told) == 0; n++ { // it waits for the other views, however often it gets the CPU
				runtime.Gosched()
			}
		}
		return true
	}}}}
	d.change("shop", "1")
	client := d.join(true, x)
	d.send(client)
	client.answer(true)
	asks = true
	d.change("shop", "1")
	if got := <-told; asks || got.Has > 0 || got.Lacks != 1 {
		t.Errorf("%+v", got)
	}
}
