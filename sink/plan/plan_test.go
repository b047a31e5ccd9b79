package plan

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"meshrelay/mirror"
)

var se = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}

func keyOf(n int) mirror.Key {
	return mirror.Key{Kind: se, Namespace: "shop", Name: fmt.Sprint("n", n)}
}

func told(mirror.Key) string { return "" }

func mine(n int, digest uint64) *Live {
	return &Live{UID: fmt.Sprint("u", n), Version: "1", Sink: "dr", Digest: Digest{Lo: digest}, Fields: 1, Sources: "east"}
}

func wanted(digest uint64) *Digest { return &Digest{Lo: digest} }

func core(s Settings) *Core {
	s.Name = "dr"
	c := New(s, Kept{}, time.Unix(0, 0))
	c.SetReady(true)
	return c
}

// world is a cluster, and what shall be in it.
type world struct {
	want map[mirror.Key]*Digest
	live map[mirror.Key]*Live
}

func drawWorld(t *rapid.T) world {
	w := world{map[mirror.Key]*Digest{}, map[mirror.Key]*Live{}}
	for n := range rapid.IntRange(0, 30).Draw(t, "keys") {
		if rapid.Bool().Draw(t, "wanted") {
			w.want[keyOf(n)] = wanted(rapid.Uint64Range(1, 2).Draw(t, "digest"))
		}
		if rapid.Bool().Draw(t, "live") {
			l := mine(n, rapid.Uint64Range(1, 2).Draw(t, "digest"))
			l.Sink = rapid.SampledFrom([]string{"dr", "dr", "dr", "", "other"}).Draw(t, "sink")
			l.Fields = rapid.SampledFrom([]uint64{1, 1, 0}).Draw(t, "fields")
			l.Sources = rapid.SampledFrom([]string{"east", "west", "east,west", ""}).Draw(t, "sources")
			l.Drifted = rapid.Bool().Draw(t, "drifted")
			w.live[keyOf(n)] = l
		}
	}
	return w
}

// tell tells a Core of the world, in some order.
func (w world) tell(c *Core, seed uint64) {
	var calls []func()
	for k, d := range w.want {
		calls = append(calls, func() { c.Want(k, d) })
	}
	for k, l := range w.live {
		calls = append(calls, func() { c.See(k, l) })
	}
	rand.New(rand.NewPCG(seed, 1)).Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, call := range calls {
		call()
	}
}

func drawSettings(t *rapid.T) Settings {
	return Settings{
		Name: "dr", Prune: rapid.Bool().Draw(t, "prune"), Adopt: rapid.Bool().Draw(t, "adopt"), Take: rapid.Bool().Draw(t, "take"),
		Percent: rapid.SampledFrom([]int{0, 10, 100}).Draw(t, "percent"), Count: rapid.IntRange(0, 5).Draw(t, "count"),
		Frozen: rapid.IntRange(0, 9).Draw(t, "frozen") == 0,
	}
}

func (w world) keys() []mirror.Key {
	all := map[mirror.Key]bool{}
	for k := range w.want {
		all[k] = true
	}
	for k := range w.live {
		all[k] = true
	}
	var keys []mirror.Key
	for k := range all {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b mirror.Key) int { return cmp.Compare(a.String(), b.String()) })
	return keys
}

// carryOut does an action to the world and tells the Core.
func (w world) carryOut(c *Core, k mirror.Key, a Action) {
	switch a.Verb {
	case Create, Apply:
		l := &Live{UID: "new " + k.Name, Version: "2", Sink: "dr", Digest: *w.want[k], Fields: 2, Sources: "east"}
		if a.Verb == Apply {
			l.UID = a.UID
		}
		w.live[k] = l
		c.See(k, l)
	case Delete:
		delete(w.live, k)
		c.See(k, nil)
	}
}

func TestThePlanConvergesAndThenDoesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, s := drawWorld(t), drawSettings(t)
		s.Frozen = false
		c := core(s)
		w.tell(c, 0)
		for round := 0; ; round++ {
			c.Judge(time.Unix(0, 0), told)
			acted := false
			for _, k := range w.keys() {
				if a := c.Next(k); a.Verb == Create || a.Verb == Apply || a.Verb == Delete {
					w.carryOut(c, k, a)
					acted = true
					if again := c.Next(k); again.Verb != Nothing {
						t.Fatalf("%v again after %v of %v", again, a, k)
					}
				}
			}
			if !acted {
				break
			}
			if round > 30 {
				t.Fatal("it never ends")
			}
		}
		for k, d := range w.want {
			l := w.live[k]
			switch {
			case l == nil:
				t.Errorf("%v is missing", k)
			case l.Sink == "dr" && (l.Digest != *d || l.Drifted):
				t.Errorf("%v is not as desired: %+v", k, l)
			case l.Sink == "" && s.Adopt:
				t.Errorf("%v was not adopted", k)
			}
		}
	})
}

func TestNothingWithoutTheLabelIsTouchedUnlessAdopted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, s := drawWorld(t), drawSettings(t)
		c := core(s)
		w.tell(c, 0)
		c.Judge(time.Unix(0, 0), told)
		for k, l := range w.live {
			a := c.Next(k)
			acts := a.Verb == Create || a.Verb == Apply || a.Verb == Delete
			switch {
			case l.Sink == "other" && acts, l.Sink == "" && acts && (!s.Adopt || a.Verb != Apply || w.want[k] == nil):
				t.Errorf("%v of %+v", a, l)
			case acts && (a.UID != l.UID || a.Version != l.Version):
				t.Errorf("%v has not the preconditions of %+v", a, l)
			case l.Sink == "dr" && a.Force && !s.Take:
				t.Errorf("%v takes fields from others", a)
			case acts && s.Frozen:
				t.Errorf("%v while frozen", a)
			}
		}
	})
}

func TestNothingIsDeletedThatAnUpstreamMayStillHave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, s := drawWorld(t), drawSettings(t)
		silent := rapid.SampledFrom([]string{"east", "west", "none"}).Draw(t, "silent")
		ready := rapid.Bool().Draw(t, "ready")
		c := core(s)
		c.SetReady(ready)
		w.tell(c, 0)
		of := c.Gone()
		c.Judge(time.Unix(0, 0), func(k mirror.Key) string {
			if slices.Contains(of[k], silent) {
				return "it is silent"
			}
			return ""
		})
		for k, l := range w.live {
			if c.Next(k).Verb != Delete {
				continue
			}
			if !ready || !s.Prune || w.want[k] != nil || l.Fields == 0 || l.Sink != "dr" || slices.Contains(of[k], silent) || len(of[k]) == 0 || len(w.want) == 0 {
				t.Errorf("%v is deleted: %+v", k, l)
			}
		}
	})
}

func TestTheOrderOfInputsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, s := drawWorld(t), drawSettings(t)
		a, b := core(s), core(s)
		w.tell(a, 1)
		w.tell(b, rapid.Uint64().Draw(t, "seed"))
		a.Judge(time.Unix(0, 0), told)
		b.Judge(time.Unix(0, 0), told)
		for _, k := range w.keys() {
			if a.Next(k) != b.Next(k) {
				t.Errorf("%v: %v and %v", k, a.Next(k), b.Next(k))
			}
		}
		if a.Held().ID != b.Held().ID {
			t.Errorf("%v and %v", a.Held(), b.Held())
		}
	})
}
