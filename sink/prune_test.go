package sink

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/events"
	"meshrelay/internal/testing/collecting"
	"meshrelay/mirror"
	"meshrelay/sink/plan"
)

func pruning(t *testing.T, n int) *world {
	t.Helper()
	w := newWorld(t, func(w *world) { w.spec.Prune = true })
	w.many(n)
	w.start().settled()
	return w
}

func TestWhatTheViewLosesIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		w.remove("east", "n03")
		w.until("it is gone", func() bool { return w.object("n03") == nil && w.sent("DELETE") == 1 })
		w.settled()
	})
}

func TestWithoutPruneNothingIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.many(20)
		w.start().settled()
		w.remove("east", "n03")
		w.until("it is left", func() bool {
			s := w.status()
			return s.Todo["left"] == 1 && s.Examples[0].Reason == plan.ReasonPrune
		})
		n, err := w.order("prune", "")
		if n != 1 || err != nil {
			t.Error(n, err)
		}
		w.until("it is gone by order", func() bool { return w.object("n03") == nil })
	})
}

func TestNothingIsDeletedWhileAnUpstreamIsNotHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		w.mu.Lock()
		w.blocked = "the upstream east is stale"
		w.mu.Unlock()
		w.remove("east", "n03")
		w.until("it is left", func() bool {
			s := w.status()
			return s.Todo["left"] == 1 && s.Examples[0].Reason == "the upstream east is stale"
		})
		if w.object("n03") == nil {
			t.Error("it is gone")
		}
		w.mu.Lock()
		w.blocked = ""
		w.mu.Unlock()
		w.until("it is gone", func() bool { return w.object("n03") == nil })
	})
}

// westMayBe has west be away while away is set.
func westMayBe(away *atomic.Bool) func(*world) {
	return func(w *world) {
		w.deps.Blocked = func() func(string, mirror.Key) string {
			return func(upstream string, _ mirror.Key) string {
				if upstream == "west" && away.Load() {
					return "west is away"
				}
				return ""
			}
		}
	}
}

// A relay that starts without its disk does not know what an upstream has that is away.
func TestAnObjectOfSeveralUpstreamsWaitsForTheOneThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		w := newWorld(t, westMayBe(&away), func(w *world) { w.spec.Prune = true })
		w.many(20)
		w.put("west", "n03", "a.x")
		w.start().settled()
		away.Store(true)
		w.remove("west", "n03")
		w.put("east", "n03", "b.x")
		w.until("it is written again", func() bool { return host(w.object("n03")) == "b.x" })
		w.settled()
		w.remove("east", "n03")
		w.until("it is left", func() bool {
			s := w.status()
			return s.Todo["left"] == 1 && s.Examples[0].Reason == "west is away"
		})
		if w.object("n03") == nil {
			t.Error("it is gone")
		}
		away.Store(false)
		w.until("it is gone", func() bool { return w.object("n03") == nil })
	})
}

// What is desired names the upstreams that may have it, and the last of them may be heard between reading and writing.
func TestAnObjectIsWrittenAlthoughAnUpstreamIsHeardAgainBeforeTheWrite(t *testing.T) {
	for name, end := range map[string]struct {
		deleted bool // somebody deletes the object before: it has no upstreams any more
	}{"changed": {}, "created again": {deleted: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var away atomic.Bool
				w := newWorld(t, westMayBe(&away))
				w.many(20)
				w.put("west", "n03", "a.x")
				w.start().settled()
				w.lease.held.Store(false)
				away.Store(true)
				w.remove("west", "n03")
				w.put("east", "n03", "b.x")
				w.until("it is to be written", func() bool { return w.status().Todo["apply"] == 1 })
				if end.deleted {
					w.Remove(entries, "shop/n03")
					w.until("it is to be created", func() bool { return w.status().Todo["create"] == 1 })
				}
				away.Store(false)
				w.lease.held.Store(true)
				w.until("it is written", func() bool { return host(w.object("n03")) == "b.x" })
				w.settled()
			})
		})
	}
}

func TestTheGuardHoldsUntilARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		for _, name := range []string{"n00", "n01", "n02", "n03", "n04", "n05", "n06"} {
			w.remove("east", name)
		}
		w.until("it is held", func() bool { return w.status().Held != nil })
		if _, err := w.order("release", "wrong"); !errors.Is(err, ErrNotPossible) || w.objects() != 20 {
			t.Error(err, w.objects())
		}
		w.stop()
		w.start().until("it is held after a restart", func() bool { return w.status().Held != nil && w.status().Held.Removals == 7 })
		if w.objects() != 20 {
			t.Error(w.objects())
		}
		if n, err := w.order("release", w.status().Held.ID); n != 7 || err != nil {
			t.Fatal(n, err)
		}
		w.until("they are gone", func() bool { return w.objects() == 13 })
		w.settled()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.happened) == 0 || w.happened[0].Type != events.Held || !strings.Contains(w.happened[0].Text, "7 deletions") {
			t.Errorf("%+v", w.happened)
		}
	})
}

func TestAnEmptyViewDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 2)
		w.remove("east", "n00")
		w.remove("east", "n01")
		w.until("it is held", func() bool { s := w.status(); return s.Held != nil && strings.Contains(s.Held.Reason, "empty") })
		if w.objects() != 2 {
			t.Error(w.objects())
		}
	})
}

func TestFreezeOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		if _, err := w.order("freeze", ""); err != nil {
			t.Fatal(err)
		}
		w.stop()
		before := w.wrote()
		w.put("east", "n01", "changed.x")
		w.remove("east", "n02")
		w.start().until("it is frozen", func() bool {
			s := w.status()
			return s.State == "frozen" && s.Frozen.Reason == "test" && s.Todo["left"] == 2
		})
		if n := w.wrote() - before; n != 0 {
			t.Error(n)
		}
		if _, err := w.order("freeze", ""); !errors.Is(err, ErrNotPossible) {
			t.Error(err)
		}
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		w.until("it goes on", func() bool { return host(w.object("n01")) == "changed.x" && w.object("n02") == nil })
	})
}

func TestSinksAreFrozenAfterTheirStateIsDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		if err := os.WriteFile(fileOf(w.deps.Dir, "dr"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.many(3)
		w.start().until("it is frozen", func() bool { s := w.status(); return s.State == "frozen" && s.Todo["left"] == 3 })
		if n := w.wrote(); n != 0 {
			t.Error(n)
		}
		w.stop()
		w.start().until("it is frozen after a restart", func() bool { return w.status().State == "frozen" })
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		w.settled()
		w.stop()
		w.start().settled()
	})
}

func TestASinkThatLeavesTheConfigLeavesItsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 3)
		before := w.wrote()
		w.set.Apply(nil)
		w.until("it has ended", func() bool { return len(w.set.Status("")) == 0 })
		if _, err := w.order("prune", ""); !errors.Is(err, ErrUnknown) || w.objects() != 3 || w.wrote() != before {
			t.Error(err, w.objects())
		}
	})
}

func TestAChangedSinkStartsAloneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.many(1)
		other := w.spec
		other.Name, other.Mode = "other", "dryRun"
		w.start()
		w.set.Apply([]Spec{w.spec, other})
		w.until("both run", func() bool { return len(w.set.Status("")) == 2 })
		running := func(name string) *engine { e, _ := w.set.find(name); return e }
		dr, two := running("dr"), running("other")
		changed := other
		changed.View = "else"
		w.set.Apply([]Spec{w.spec, changed})
		w.until("one has started again", func() bool { e := running("other"); return e != nil && e != two })
		if running("dr") != dr {
			t.Error("the other one as well")
		}
	})
}

func TestMetricsAreSentWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 3)
		e, err := w.set.find("dr")
		if err != nil {
			t.Fatal(err)
		}
		collecting.Unlocked(t, w.set, func() { e.status(); w.set.running() })
		if err := prometheus.NewPedanticRegistry().Register(w.set); err != nil {
			t.Error(err)
		}
	})
}

func TestAHoldStaysWhileItsUpstreamIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		blocked := func(why string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.blocked = why
		}
		for i := range 7 {
			w.remove("east", fmt.Sprintf("n%02d", i))
		}
		w.until("it is held", func() bool { return w.status().Held != nil })
		for i := range 4 {
			w.put("east", fmt.Sprintf("n%02d", i), "a.x") // the rest would pass the guard
		}
		w.until("three are held", func() bool { h := w.status().Held; return h != nil && h.Removals == 3 })
		blocked("east is away")
		w.until("they are left", func() bool { return w.status().Todo["left"] == 3 })
		w.stop()
		w.start().until("they are left after a restart", func() bool { return w.status().Todo["left"] == 3 && w.status().State == "writing" })
		blocked("")
		w.until("they are held again", func() bool { h := w.status().Held; return h != nil && h.Removals == 3 })
		if w.objects() != 20 {
			t.Error(w.objects())
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, e := range w.happened {
			if e.Type == events.Returned {
				t.Errorf("nobody has decided: %+v", e)
			}
		}
	})
}

func TestWhatTheGuardLetsPassIsKeptBeforeItIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		var kept atomic.Int64
		w.fault(func(_ http.ResponseWriter, r *http.Request) bool {
			if k, err := load(w.deps.Dir, "dr"); r.Method == http.MethodDelete && err == nil {
				kept.Store(int64(len(k.Passed)))
			}
			return false
		})
		w.remove("east", "n03")
		w.until("it is gone", func() bool { return w.object("n03") == nil })
		if n := kept.Load(); n != 1 {
			t.Errorf("%d are kept", n)
		}
		w.settled()
		w.stop()
		for i := 4; i < 9; i++ {
			w.remove("east", fmt.Sprintf("n%02d", i)) // five pass, but not six
		}
		w.start().until("they are held", func() bool { h := w.status().Held; return h != nil && h.Removals == 5 })
		if w.objects() != 19 {
			t.Error(w.objects())
		}
	})
}

func TestNothingIsDeletedWhileWhatTheGuardLetsPassCanNotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pruning(t, 20)
		if err := os.Rename(w.deps.Dir, w.deps.Dir+".away"); err != nil { // at once: the sink writes there
			t.Fatal(err)
		}
		w.remove("east", "n03")
		w.until("the status tells it", func() bool { return len(w.status().Problems) > 0 })
		for i := 30; i < 33; i++ { // writes go on, and take their turn behind the deletion
			name := fmt.Sprintf("n%02d", i)
			w.put("east", name, name+".example")
			w.until("a new one is written", func() bool { return w.object(name) != nil })
		}
		if w.object("n03") == nil {
			t.Error("it is deleted, and a restart would not know")
		}
		if err := os.Mkdir(w.deps.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		w.until("it is gone", func() bool { return w.object("n03") == nil && len(w.status().Problems) == 0 })
	})
}
