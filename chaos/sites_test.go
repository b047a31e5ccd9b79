package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"
)

func TestARoundOfSitesFollowsFromTheDice(t *testing.T) {
	round := func(seed uint64) []siteFault { return siteRound(rand.New(rand.NewPCG(seed, 1)), sitesScenario()) }
	if !reflect.DeepEqual(round(7), round(7)) {
		t.Error("the same dice give another round")
	}
	if reflect.DeepEqual(round(7), round(8)) {
		t.Error("other dice give the same round")
	}
	began := map[string]int{}
	for seed := range uint64(20) {
		for _, f := range round(seed) {
			if f.at > sitesScenario().round {
				t.Errorf("seed %d: %s is at %v, after the round", seed, f.kind, f.at)
			}
			if f.ends {
				began[f.kind]--
			} else if f.lasts > 0 {
				began[f.kind]++
			}
		}
	}
	for kind, n := range began {
		if n != 0 {
			t.Errorf("%d faults %s more begin than end", n, kind)
		}
	}
}

// store is an etcd for a history.
type store struct {
	t        *testing.T
	h        *siteHistory
	revision int
}

func newStore(t *testing.T) *store {
	t.Helper()
	w := newWorld([]string{"east", "west"}, 40, 1, newJournal(io.Discard))
	h := newSiteHistory(w)
	h.slack = 0
	return &store{t: t, h: h}
}

// put stores a value, nil deletes it, and checks which invariant is violated.
func (s *store) put(path string, value any, want string) {
	s.t.Helper()
	s.revision++
	e := storeEvent{}
	e.KV.Key, e.KV.Revision = []byte("/registry/"+path), strconv.Itoa(s.revision)
	if value != nil {
		text, err := json.Marshal(value)
		if err != nil {
			s.t.Fatal(err)
		}
		e.KV.Value = text
	}
	got := ""
	if bad := s.h.take(e); bad != nil {
		got = bad.invariant
	}
	if got != want {
		s.t.Fatalf("%s = %v: %q is violated, want %q", path, value, got, want)
	}
}

func storePath(key int) string {
	k := kinds[key%len(kinds)]
	return k.group + "/" + pluralOf(k) + "/" + keyName(key)
}

func storedObject(uid, sink, by string, version int) map[string]any {
	labels := map[string]string{}
	if sink != "" {
		labels[sinkLabel] = sink
	}
	return map[string]any{
		"metadata": map[string]any{"uid": uid, "labels": labels, "annotations": map[string]string{byAnnotation: by}},
		"spec":     map[string]any{"version": version},
	}
}

const leasePath = "leases/istio-system/meshrelay-sink-dr"

func (s *store) phase(name string) {
	s.t.Helper()
	s.leased(name, "")
}

func (s *store) leased(phase, want string) {
	s.t.Helper()
	annotations, holder := map[string]string{}, "relay-1"
	switch phase {
	case promoted:
		holder = promoted
	case adopted:
		annotations = map[string]string{"meshrelay.io/frozen-since": "now", "meshrelay.io/deletions": "held"}
	case "held":
		annotations = map[string]string{"meshrelay.io/deletions": "held"}
	}
	s.put(leasePath, map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"holderIdentity": holder}}, want)
}

func TestADeletionByASinkNeedsThatOfTheUpstream(t *testing.T) {
	s := newStore(t)
	w := s.h.world
	if err := w.put(0, 0); err != nil {
		t.Fatal(err)
	}
	tell := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		it := w.sources[0].items[0]
		w.sources[0].record(0, it.seq, it.present)
	}
	tell()
	s.put(storePath(0), storedObject("a", sinkName, "", 1), "")
	s.put(storePath(0), nil, lostObject)

	s.put(storePath(0), storedObject("b", sinkName, "", 1), "")
	w.remove(0, 0, 0)
	s.put(storePath(0), nil, lostObject) // it has not told it
	s.put(storePath(0), storedObject("c", sinkName, "", 1), "")
	tell()
	s.put(storePath(0), nil, "")
	if err := w.put(0, 0); err != nil {
		t.Fatal(err)
	}
	tell()
	s.put(storePath(0), storedObject("d", sinkName, "", 1), "")
	s.h.mine("d")
	s.put(storePath(0), nil, "") // somebody else has deleted it
	s.put(storePath(0), storedObject("e", sinkName, "", 1), "")
	s.h.release(0, []int{0}, time.Now().Add(time.Hour))
	s.put(storePath(0), nil, "") // a person has
}

func TestOnlyObjectsOfTheSinkAreWrittenAndDeleted(t *testing.T) {
	s := newStore(t)
	s.h.mine("change-1")
	s.put(storePath(0), storedObject("a", "", "change-1", 1), "")
	s.put(storePath(0), storedObject("a", sinkName, "change-1", 2), notOurs)
	s = newStore(t)
	s.h.mine("change-1")
	s.put(storePath(0), storedObject("a", "", "change-1", 1), "")
	s.put(storePath(0), nil, lostObject)
}

func TestNothingIsWrittenWhileASinkIsPromoted(t *testing.T) {
	for name, write := range map[string]func(s *store){
		"a change":   func(s *store) { s.put(storePath(0), storedObject("a", sinkName, "", 2), afterPromotion) },
		"a label":    func(s *store) { s.put(storePath(1), storedObject("b", sinkName, "", 1), afterPromotion) },
		"a creation": func(s *store) { s.put(storePath(2), storedObject("c", sinkName, "", 1), afterPromotion) },
		"a deletion": func(s *store) { s.put(storePath(0), nil, afterPromotion) },
		"somebody": func(s *store) {
			s.h.mine("change-1")
			s.put(storePath(0), storedObject("a", sinkName, "change-1", 2), "")
		},
		"after the Lease was deleted": func(s *store) {
			s.put(leasePath, nil, "")
			s.put(storePath(0), storedObject("a", sinkName, "", 2), afterPromotion)
		},
		"adopted, and frozen": func(s *store) {
			s.phase(adopted)
			s.put(storePath(0), storedObject("a", sinkName, "", 2), afterPromotion)
		},
		"a deletion that nobody has released": func(s *store) {
			s.phase(adopted)
			s.phase("held")
			s.put(storePath(0), storedObject("a", sinkName, "", 2), "")
			s.put(storePath(0), nil, afterPromotion)
		},
		"a Lease that is taken": func(s *store) { s.leased("", afterPromotion) },
		"the way back": func(s *store) {
			s.phase(adopted)
			s.phase("")
			s.put(storePath(1), storedObject("b", sinkName, "", 2), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.put(storePath(0), storedObject("a", sinkName, "", 1), "")
			s.put(storePath(1), storedObject("b", sinkName, "", 1), "")
			s.phase(promoted)
			s.put(storePath(1), storedObject("b", sinkName, "", 1), "") // the last writer has its term
			s.put("configmaps/"+donePath, map[string]any{}, "")
			write(s)
		})
	}
}

func TestALeaseThatIsLostNeedsAnOrder(t *testing.T) {
	for name, then := range map[string]func(s *store){
		"a relay makes one": func(s *store) { s.leased("", afterPromotion) },
		"a relay writes":    func(s *store) { s.put(storePath(0), storedObject("a", sinkName, "", 3), afterPromotion) },
		"it is promoted":    func(s *store) { s.phase(promoted); s.put(storePath(0), nil, afterPromotion) },
		"it is adopted":     func(s *store) { s.phase(adopted); s.put(storePath(0), nil, afterPromotion) },
		"it is unfrozen, too": func(s *store) {
			s.phase(adopted)
			s.phase("")
			s.put(storePath(0), storedObject("a", sinkName, "", 3), "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.put(storePath(0), storedObject("a", sinkName, "", 1), "")
			s.phase("")
			s.put(leasePath, nil, "")
			s.put(storePath(0), storedObject("a", sinkName, "", 2), "") // the last writer has not noticed
			s.put("configmaps/"+donePath, map[string]any{}, "")
			then(s)
		})
	}
}

// TestARestoredEtcdIsNotJudged for what it was told before, and ends no promotion.
func TestARestoredEtcdIsNotJudged(t *testing.T) {
	const ordersPath = "configmaps/istio-system/relay-orders"
	s := newStore(t)
	s.put(storePath(0), storedObject("a", sinkName, "", 1), "")
	s.put(ordersPath, storedOrders(`{"east": {"counter": 2}}`), "")
	s.phase(promoted)
	s.put("configmaps/"+donePath, map[string]any{}, "")
	s.h.forget()
	s.revision = 0
	s.put(storePath(1), storedObject("b", sinkName, "", 1), "")
	s.put(storePath(1), nil, "")
	s.put(ordersPath, storedOrders(`{"east": {"counter": 1, "frozen": {}}}`), "")
	s.phase("")
	s.h.judge(int64(s.revision))
	if len(s.h.objects) > 0 || !s.h.stands() || !s.h.lacks {
		t.Errorf("it has %v, stands: %t, lacks orders: %t", s.h.objects, s.h.stands(), s.h.lacks)
	}
	s.put(ordersPath, storedOrders(`{"east": {"counter": 1}}`), "") // a replica that has seen less
	s.put(ordersPath, storedOrders(`{"east": {"counter": 3}}`), "")
	if s.h.lacks {
		t.Error("the orders lack nothing any more")
	}
	s.put(ordersPath, storedOrders(`{"east": {"counter": 2}}`), forgotten)
	s.phase(promoted)
	s.put(storePath(0), storedObject("a", sinkName, "", 2), afterPromotion)
}

// storedOrders returns a ConfigMap with the orders about upstreams.
func storedOrders(upstreams string) any {
	return map[string]any{"data": map[string]string{"orders": `{"version": 1, "upstreams": ` + upstreams + `}`}}
}

func TestNoOrderIsLostOrComesBack(t *testing.T) {
	const path = "configmaps/istio-system/relay-orders"
	for name, tc := range map[string]struct {
		then any
		want string
	}{
		"a later one":        {storedOrders(`{"east": {"counter": 3, "frozen": {"reason": "order-3"}}, "west": {"released": [{"reason": "order-4"}]}}`), ""},
		"the same":           {storedOrders(`{"east": {"counter": 2}, "west": {"counter": 1}}`), ""},
		"one is lost":        {storedOrders(`{"east": {"counter": 1, "frozen": {}}}`), forgotten},
		"one freezes, too":   {storedOrders(`{"east": {"counter": 2, "frozen": {}}}`), ""},
		"nothing is left":    {nil, forgotten},
		"it can not be read": {map[string]any{"data": map[string]string{"orders": "{"}}, forgotten},
	} {
		s := newStore(t)
		s.put(path, storedOrders(`{"east": {"counter": 1, "frozen": {"reason": "order-1"}}}`), "")
		s.put(path, storedOrders(`{"east": {"counter": 2}}`), "")
		t.Log(name)
		s.put(path, tc.then, tc.want)
		if !s.h.seen["order-1"] {
			t.Errorf("%s: it has seen %v", name, s.h.seen)
		}
		if name == "one freezes, too" {
			s.put(path, storedOrders(`{"east": {"counter": 2}}`), forgotten)
		}
	}
}
