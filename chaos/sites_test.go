package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
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
	const logPath = "configmaps/istio-system/relay-decisions"
	log := func(numbers ...string) any {
		text := `{"seq": 0}`
		for i, n := range numbers {
			text += fmt.Sprintf(`{"seq": %d, "id": %q, "kind": "freeze", "upstream": "east"}`, i+1, n)
		}
		return map[string]any{"data": map[string]string{"log": text}}
	}
	s := newStore(t)
	s.put(storePath(0), storedObject("a", sinkName, "", 1), "")
	s.put(logPath, log("a", "b"), "")
	s.phase(promoted)
	s.put("configmaps/"+donePath, map[string]any{}, "")
	s.h.forget()
	s.revision = 0
	s.put(storePath(1), storedObject("b", sinkName, "", 1), "")
	s.put(storePath(1), nil, "")
	s.put(logPath, log("a"), "")
	s.phase("")
	s.h.judge(int64(s.revision))
	if len(s.h.objects) > 0 || !s.h.stands() || !s.h.lacks {
		t.Errorf("it has %v, stands: %t, lacks decisions: %t", s.h.objects, s.h.stands(), s.h.lacks)
	}
	s.put(logPath, log("a", "c"), "") // a replica that has seen less
	s.put(logPath, log("a", "c", "b"), "")
	if s.h.lacks {
		t.Error("the log lacks nothing any more")
	}
	s.put(logPath, log("a", "c"), forgotten)
	s.phase(promoted)
	s.put(storePath(0), storedObject("a", sinkName, "", 2), afterPromotion)
}

func TestALogOfDecisionsOnlyGrows(t *testing.T) {
	log := func(lines ...string) any {
		return map[string]any{"data": map[string]string{"log": strings.Join(lines, "\n")}}
	}
	const (
		path    = "configmaps/istio-system/relay-decisions"
		base0   = `{"seq": 0}`
		first   = `{"seq": 1, "id": "a", "kind": "freeze", "upstream": "east", "reason": "order-1"}`
		second  = `{"seq": 2, "id": "b", "kind": "unfreeze", "upstream": "east", "reason": "order-2"}`
		instead = `{"seq": 2, "id": "c", "kind": "unfreeze", "upstream": "east", "reason": "order-3"}`
	)
	for name, tc := range map[string]struct {
		then any
		want string
	}{
		"one more":        {log(base0, first, second, `{"seq": 3, "id": "d", "kind": "hold", "upstream": "west"}`), ""},
		"the oldest fold": {log(`{"seq": 1}`, second), ""},
		"one is lost":     {log(base0, first), forgotten},
		"another instead": {log(base0, first, instead), forgotten},
		"nothing is left": {nil, forgotten},
	} {
		s := newStore(t)
		s.put(path, log(base0, first), "")
		s.put(path, log(base0, first, second), "")
		t.Log(name)
		s.put(path, tc.then, tc.want)
		if !s.h.seen["order-1"] || !s.h.seen["order-2"] {
			t.Errorf("%s: it has seen %v", name, s.h.seen)
		}
	}
}
