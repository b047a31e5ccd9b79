package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
)

const (
	// hostileLimit is limits.maxBytes of a server that is hostile.
	hostileLimit = 512 << 10
	// hostileNames is what a list of namespaces may have of the limit and in addition to it, in bytes: while it is read, an
	// object with a name of 253 bytes takes 384 + 2*253 of twice the limit at least, and 96 + 253 are kept of it.
	hostileNames = 2 * hostileLimit * (96 + 253) / (384 + 2*253)
	// hostileSlack is what the heap may have in addition, in bytes: mainly one object over the limit.
	hostileSlack = 384 << 10
)

// kept is a Feed with an intake. It is what a source keeps in a relay, without the network.
type kept struct {
	*intake.Intake
	now time.Time
}

func (k *kept) Versions(scope records.Scope) map[string]string { return k.Records().Versions(scope) }

func (k *kept) Holds(scope records.Scope, name string, digest xxh3.Uint128, size int) bool {
	return k.Records().Holds(scope, name, digest, size)
}

func (k *kept) Keep(n int) (fits bool) { return k.Records().Keep(n) }

func (k *kept) Tell(e intake.Event) records.Result {
	k.now = k.now.Add(time.Second)
	out, err := k.Step(k.now, e)
	if err != nil {
		panic(err)
	}
	return out.Result
}

// reporter is a test of Go or of rapid.
type reporter interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// hostile is a source whose server sends anything.
type hostile struct {
	*Source
	t        reporter
	feed     *kept
	store    *mirror.Store
	heap     int // before the source
	sources  map[mirror.Kind]*collection
	kinds    []mirror.Kind
	versions int
	most     int // the largest count so far: the maps of Go keep the memory of entries that are gone
	names    int // what the newest list of namespaces takes
}

func newHostile(t reporter) *hostile {
	h := &hostile{t: t, heap: heapOf(), store: mirror.NewStore(), sources: map[mirror.Kind]*collection{}}
	u := configOf()
	u.Limits = config.Limits{MaxBytes: hostileLimit, MaxResourceBytes: 4 << 20}
	u.Guard = config.Guard{Percent: 100, Empty: "pass"}
	u.Import.Revision = "ours"
	section := sectionOf(u)
	section.DiscoverySelectors, section.Ingress.Mode = []string{"mesh=on"}, "default"
	rules, err := records.NewRules(u, config.Provenance{}, false)
	if err != nil {
		t.Fatal(err)
	}
	h.feed = &kept{Intake: intake.New(u, h.store, rules, false), now: time.Now()}
	h.Source = New(u, envOf())
	h.prepare(h.feed)
	for _, of := range append([]discovery.Resource{
		namespaceResource, {Kind: serviceEntry, Version: "v1", Namespaced: true}, {Kind: virtualServiceKind, Version: "v1", Namespaced: true},
	}, inputResources...) {
		h.sources[of.Kind] = h.begin(of)[0]
		h.kinds = append(h.kinds, of.Kind)
	}
	h.ledger.Begin()
	return h
}

func heapOf() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first has finalizers run
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// check compares the count with the limit, and the heap with the largest count.
func (h *hostile) check(when string) {
	h.t.Helper()
	count := h.feed.Records().Size()
	h.most = max(h.most, count)
	if most := hostileLimit + h.names + hostileLimit/8 + 40<<10; h.names > hostileNames || count > most {
		h.t.Fatalf("%s: %d KiB are kept, want %d KiB at most; %d KiB are of a list of namespaces, want %d KiB at most", when, count>>10, most>>10, h.names>>10, hostileNames>>10)
	}
	if heap := heapOf() - h.heap; heap > 2*h.most+hostileSlack {
		h.t.Fatalf("%s: the heap has %d KiB, and the count %d KiB, at most %d KiB", when, heap>>10, count>>10, h.most>>10)
	}
}

// list has the source read a list. streams: it comes as events.
func (h *hostile) list(kind mirror.Kind, streams bool, objects func() []map[string]any) {
	c := h.sources[kind]
	reading := h.lists.Begin(kind == ledger.Namespaces)
	defer reading.Close()
	all, err := h.read(c, reading, streams, objects)
	if err != nil {
		return
	}
	if c.Replace(all); kind == ledger.Namespaces {
		h.names = 0
		for _, o := range all {
			h.names += 96 + len(o.Name)
		}
	}
}

func (h *hostile) read(c *collection, reading *object.Reading, streams bool, make func() []map[string]any) (all []*object.Object, err error) {
	objects := make()
	if !streams {
		d := decoderOf(textOf(h.t, map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": objects}))
		d.Prepare, d.Admit = c.Prepare, reading.Admit
		l, err := d.List()
		return l.Items, err
	}
	var text strings.Builder
	for _, o := range objects {
		text.WriteString(textOf(h.t, map[string]any{"type": watch.Added, "object": o}))
	}
	d := decoderOf(text.String())
	d.Prepare, d.Admit = c.Prepare, reading.Admit
	store := map[string]*object.Object{} // as client-go has them
	for range objects {
		_, o, err := d.Decode()
		if err != nil {
			return slices.Collect(maps.Values(store)), err
		}
		store[o.(*object.Object).FullName()] = o.(*object.Object)
	}
	return slices.Collect(maps.Values(store)), nil
}

// watch has the source read events.
func (h *hostile) watch(kind mirror.Kind, of watch.EventType, objects ...map[string]any) {
	c := h.sources[kind]
	for _, o := range objects {
		event, one, err := decoderOf(textOf(h.t, map[string]any{"type": of, "object": o})).Decode()
		switch {
		case err != nil:
			return // the stream ends
		case event == watch.Deleted:
			c.Delete(one.(*object.Object))
		default:
			c.Prepare(one.(*object.Object))
			c.Put(one.(*object.Object))
		}
	}
}

func textOf(t reporter, value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// one returns an object. Its version is a new one.
func (h *hostile) one(namespace, name string, labels map[string]string, spec any) map[string]any {
	h.versions++
	return map[string]any{"metadata": map[string]any{"name": name, "namespace": namespace, "resourceVersion": fmt.Sprint(h.versions), "labels": labels}, "spec": spec}
}

// shapes are what may be large of a hostile object. Each changes one that is as usual.
var shapes = map[string]func(h *hostile, r *rand.Rand, meta, spec map[string]any){
	"usual":         func(*hostile, *rand.Rand, map[string]any, map[string]any) {},
	"long name":     func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["name"] = long(r, 250) },
	"longer name":   func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["name"] = long(r, 5000) },
	"new namespace": func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["namespace"] = long(r, 20) },
	"long namespace": func(_ *hostile, r *rand.Rand, meta, _ map[string]any) {
		meta["namespace"] = long(r, 250+r.IntN(2)*3000)
	},
	"long version":   func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["resourceVersion"] = long(r, 1000) },
	"longer version": func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["resourceVersion"] = long(r, 50_000) },
	"labels":         func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["labels"] = many(r, 300) },
	"more labels":    func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["labels"] = many(r, 5000) },
	"annotations":    func(_ *hostile, r *rand.Rand, meta, _ map[string]any) { meta["annotations"] = many(r, 300) },
	"left out": func(_ *hostile, r *rand.Rand, meta, _ map[string]any) {
		meta["labels"] = map[string]string{"istio.io/rev": long(r, 10+r.IntN(2)*1000)}
	},
	"refused": func(_ *hostile, r *rand.Rand, _, spec map[string]any) { spec["hosts"] = long(r, 400) },
	"unknown": func(_ *hostile, r *rand.Rand, _, spec map[string]any) { spec["x"+long(r, 300)] = 1 },
	"large":   func(_ *hostile, r *rand.Rand, _, spec map[string]any) { spec["hosts"] = []string{long(r, 30_000)} },
	"parts": func(_ *hostile, r *rand.Rand, _, spec map[string]any) {
		var rules, ports, tls []any
		for range 50 {
			rules = append(rules, map[string]any{"host": long(r, 3), "http": map[string]any{"paths": []any{map[string]any{}, map[string]any{}}}})
			ports, tls = append(ports, map[string]any{}), append(tls, map[string]any{"hosts": []string{"", ""}})
		}
		spec["rules"], spec["ports"], spec["tls"] = rules, ports, tls
	},
}

func long(r *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	return string(b)
}

func many(r *rand.Rand, n int) map[string]string {
	m := map[string]string{}
	for range n {
		m[long(r, 5)] = ""
	}
	return m
}

// objects returns hostile objects of one shape.
func (h *hostile) objects(kind mirror.Kind, shape string, r *rand.Rand, n int) (all []map[string]any) {
	for range n {
		spec := map[string]any{"hosts": []string{long(r, 8)}}
		switch kind {
		case serviceKind:
			spec = map[string]any{"ports": []any{map[string]any{"name": "http", "port": 80}}}
		case ingressKind:
			spec = map[string]any{"rules": []any{map[string]any{"host": long(r, 8), "http": map[string]any{"paths": []any{map[string]any{"path": "/", "backend": map[string]any{"service": map[string]any{"name": "a", "port": map[string]any{"number": 80}}}}}}}}}
		}
		o := h.one([]string{"shop", "shop", "other"}[r.IntN(3)], long(r, 6), nil, spec)
		if kind == ledger.Namespaces {
			o = h.one("", long(r, 6), []map[string]string{{"mesh": "on"}, {"mesh": "off"}, nil}[r.IntN(3)], map[string]any{})
		}
		shapes[shape](h, r, o["metadata"].(map[string]any), o["spec"].(map[string]any))
		all = append(all, o)
	}
	return all
}

// always returns objects of a kind that the server never deletes.
func (h *hostile) always(kind mirror.Kind) func() []map[string]any {
	return func() []map[string]any { return h.neighbours(kind) }
}

func (h *hostile) neighbours(kind mirror.Kind) []map[string]any {
	switch kind {
	case ledger.Namespaces:
		return []map[string]any{h.one("", "shop", map[string]string{"mesh": "on"}, nil), h.one("", "other", nil, nil)}
	case serviceEntry, virtualServiceKind:
		return []map[string]any{h.one("shop", "neighbour", nil, map[string]any{"hosts": []string{"a.example"}})}
	}
	return nil
}

// A server that sends anything, in lists and events: what the source keeps is counted, the count is within the
// limit, and what the server has not deleted is served.
func TestTheHeapIsAtMostTwiceTheCountWhateverAServerSends_K7(t *testing.T) {
	names := slices.Sorted(maps.Keys(shapes))
	warm := newHostile(t) // what libraries keep for ever is no part of what a source keeps
	for _, kind := range warm.kinds {
		for _, shape := range names {
			warm.list(kind, false, func() []map[string]any {
				return append(warm.neighbours(kind), warm.objects(kind, shape, rand.New(rand.NewPCG(1, 1)), 3)...)
			})
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		h := newHostile(rt)
		for _, kind := range h.kinds {
			h.list(kind, false, h.always(kind))
		}
		before := h.feed.Records().Size()
		sent, of := func() []map[string]any { return nil }, h.kinds[0] // what may be deleted
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			kind, shape := rapid.SampledFrom(h.kinds).Draw(rt, "kind"), rapid.SampledFrom(names).Draw(rt, "shape")
			seed := rapid.Uint64().Draw(rt, "seed")
			n := rapid.SampledFrom([]int{1, 30, 1000}).Draw(rt, "objects")
			switch shape { // a step of these takes its time, and some times the limit is enough
			case "labels", "annotations":
				n = min(n, 300)
			case "longer version", "large", "parts":
				n = min(n, 60)
			case "more labels":
				n = min(n, 20)
			}
			objects := func() []map[string]any { return h.objects(kind, shape, rand.New(rand.NewPCG(seed, 1)), n) }
			when := fmt.Sprintf("%d of %s, %s", n, kind.Kind, shape)
			switch step := rapid.SampledFrom([]string{"list", "stream", "watch", "change", "delete"}).Draw(rt, "step"); step {
			case "list", "stream":
				all := func() []map[string]any { return append(h.neighbours(kind), objects()...) }
				h.list(kind, step == "stream", all)
			case "watch":
				h.watch(kind, watch.Added, objects()...)
			case "change":
				h.watch(kind, watch.Modified, objects()...)
				h.watch(kind, watch.Modified, objects()...)
			case "delete":
				h.watch(of, watch.Deleted, sent()...)
			}
			sent, of = objects, kind
			h.check(when)
			for _, k := range []mirror.Kind{serviceEntry, virtualServiceKind} {
				if h.store.Get(mirror.Key{Kind: k, Namespace: "shop", Name: "neighbour"}) == nil {
					rt.Fatalf("%s: the neighbour %s is gone", when, k.Kind)
				}
			}
		}
		for _, kind := range h.kinds {
			h.list(kind, false, h.always(kind))
		}
		if after := h.feed.Records().Size(); after > before+100 {
			rt.Fatalf("%d bytes are counted for what %d were counted for before", after, before)
		}
		h.check("the usual")
	})
}
