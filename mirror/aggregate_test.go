package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func newAggregate(ctx context.Context, t *testing.T, names ...string) (*Aggregate, map[string]*Store, *journal) {
	t.Helper()
	a, stores, j := NewAggregate(), map[string]*Store{}, &journal{}
	var sources []Source
	for _, n := range names {
		stores[n] = NewStore()
		sources = append(sources, Source{n, stores[n]})
	}
	a.SetSources(sources)
	a.RegisterHandler(j.handle)
	start(ctx, t, a.Run)
	return a, stores, j
}

func TestEventsSpeakOfTheMergedView(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s, j := newAggregate(ctx, t, "east", "west")
		key := Key{serviceEntries, "shop", "a"}
		for _, step := range []struct {
			name string
			do   func()
			want string
		}{
			{"the second source has it first", func() { s["west"].Put(entry(t, "west", "a", "w.example")) }, "add a from west"},
			{"the first source takes over", func() { s["east"].Put(entry(t, "east", "a", "e.example")) }, "update a from east"},
			{"a shadowed change is no event", func() { s["west"].Put(entry(t, "west", "a", "w2.example")) }, ""},
			{"a shadowed addition is none", func() {
				s["west"].Remove(key)
				synctest.Wait()
				s["west"].Put(entry(t, "west", "a", "w3.example"))
			}, ""},
			{"the winner goes: an update", func() { s["east"].Remove(key) }, "update a from west"},
			{"the last goes: a delete", func() { s["west"].Remove(key) }, "delete a"},
		} {
			step.do()
			synctest.Wait()
			if got := j.take(); got != step.want {
				t.Errorf("%s: told %q, want %q", step.name, got, step.want)
			}
		}
		if got := a.Get(key); got != nil {
			t.Errorf("left over: %v", got.Key())
		}
	})
}

// A copy that is there for a moment only may have been merged.
func TestCopyThatIsRemovedAtOnceLeavesTheMergedView(t *testing.T) {
	a, east, west := NewAggregate(), NewStore(), NewStore()
	a.SetSources([]Source{{"east", east}, {"west", west}})
	key := Key{serviceEntries, "shop", "a"}
	step := func() { a.deliver(a.next(make([]change, 0, 1))) }
	west.Put(entry(t, "west", "a", "w"))
	east.Put(entry(t, "east", "a", "e")) // one place in the queue for both
	step()
	east.Remove(key)
	step()
	if got := a.Get(key); got == nil || got.Source() != "west" {
		t.Errorf("served: %v", got)
	}
}

func TestCopiesAreInOrderOfPriority(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s, _ := newAggregate(ctx, t, "east", "west", "north")
		s["north"].Put(entry(t, "north", "a", "n"))
		s["east"].Put(entry(t, "east", "a", "e"))
		synctest.Wait()
		p := a.Resolve(Key{serviceEntries, "shop", "a"}).Copies
		if len(p) != 2 || p[0].Source != "east" || p[1].Source != "north" {
			t.Errorf("copies %v", p)
		}
		if len(a.Kinds()) != 1 || a.Counts()[serviceEntries] != 1 || len(a.List(serviceEntries, "shop")) != 1 {
			t.Error("the merged view counts it otherwise than once")
		}
	})
}

// TestFirstSourceWithAMeshConfigIsServed_C22: it is kept for each, and not merged.
func TestFirstSourceWithAMeshConfigIsServed_C22(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s, _ := newAggregate(ctx, t, "east", "west")
		key := Key{Kind: MeshConfig, Name: MeshConfigName}
		put := func(source string) {
			s[source].Put(buildMeshConfig("", []byte{0x0a, 1, source[0]}, from{source: source}))
			synctest.Wait()
		}
		put("west")
		if got := a.Get(key).Source(); got != "west" {
			t.Errorf("served from %s", got)
		}
		put("east")
		if got := a.Get(key).Source(); got != "east" || len(a.Resolve(key).Copies) != 2 {
			t.Errorf("served from %s of %d", got, len(a.Resolve(key).Copies))
		}
	})
}

func TestSourcesCanBeReorderedAndRemoved(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s, j := newAggregate(ctx, t, "east", "west")
		s["east"].Put(entry(t, "east", "a", "e"))
		s["west"].Put(entry(t, "west", "a", "w"))
		s["east"].Put(entry(t, "east", "b", "e"))
		synctest.Wait()
		j.take()
		set := func(names ...string) string {
			var sources []Source
			for _, n := range names {
				sources = append(sources, Source{n, s[n]})
			}
			a.SetSources(sources)
			synctest.Wait()
			return j.take()
		}
		if got := set("west", "east"); got != "update a from west" {
			t.Errorf("reordered: %q", got)
		}
		if got := set("west"); got != "delete b" {
			t.Errorf("removed: %q", got)
		}
		s["east"].Put(entry(t, "east", "c", "e"))
		synctest.Wait()
		if got := j.take(); got != "" || len(s["east"].followers) != 0 {
			t.Errorf("a store that was removed is followed: %q", got)
		}
		if got := set("west", "east"); got != "add b from east, add c from east" && got != "add c from east, add b from east" {
			t.Errorf("added again: %q", got)
		}
		s["east"].Put(entry(t, "east", "d", "e"))
		synctest.Wait()
		if got := j.take(); got != "add d from east" {
			t.Errorf("a store that was added again: %q", got)
		}
	})
}

func TestAggregateHasSyncedWhenInitialContentIsMerged_C21(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s, j := newAggregate(ctx, t, "east", "west")
		s["east"].Put(entry(t, "east", "a", "e"))
		s["east"].SetSynced()
		synctest.Wait()
		if IsClosed(a.Synced()) {
			t.Error("synced without west")
		}
		s["west"].SetSynced()
		synctest.Wait()
		if !IsClosed(a.Synced()) || j.take() != "add a from east" {
			t.Error("not synced, or not told")
		}
	})
}

// TestMergedViewAgreesWithAModel: after any changes of three sources, in any interleaving
// with the merging, the merged view is the first source's copy of each key, and the
// events, applied to a map, give the same.
func TestMergedViewAgreesWithAModel(t *testing.T) {
	names := []string{"east", "west", "north"}
	rapid.Check(t, func(rt *rapid.T) {
		a := NewAggregate()
		stores := map[string]*Store{}
		var sources []Source
		for _, n := range names {
			stores[n] = NewStore()
			sources = append(sources, Source{n, stores[n]})
		}
		told := map[Key]*Resource{}
		handler := func(c Change) {
			if !c.Visible() {
				return
			}
			if !told[c.Key].Equal(c.Old) {
				rt.Fatalf("change of %v from what was not told", c.Key)
			}
			if told[c.Key] = c.New; c.New == nil {
				delete(told, c.Key)
			}
		}
		a.SetSources(sources)
		a.RegisterHandler(handler)
		// The queue is drained by hand, so that rapid decides on the interleaving.
		step := func() bool {
			batch := a.next(make([]change, 0, rapid.IntRange(1, 3).Draw(rt, "batch")))
			a.deliver(batch)
			return len(batch) > 0
		}
		order := slices.Clone(names)
		check := func() {
			for step() {
			}
			want := map[Key]*Resource{}
			for _, n := range slices.Backward(order) {
				for _, r := range stores[n].List(serviceEntries, "") {
					want[r.Key()] = r
				}
			}
			same := func(x, y *Resource) bool { return x.Equal(y) }
			if !maps.EqualFunc(told, want, same) {
				rt.Fatalf("events give %v, want %v", told, want)
			}
			got := map[Key]*Resource{}
			for _, r := range a.List(serviceEntries, "") {
				got[r.Key()] = r
			}
			if !maps.EqualFunc(got, want, same) {
				rt.Fatalf("merged %v, want %v", got, want)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				n := rapid.SampledFrom(names).Draw(rt, "source")
				stores[n].Put(entry(t, n, fmt.Sprint(rapid.IntRange(0, 4).Draw(rt, "name")), fmt.Sprint(rapid.IntRange(0, 2).Draw(rt, "host"))))
			},
			"remove": func(rt *rapid.T) {
				n := rapid.SampledFrom(names).Draw(rt, "source")
				stores[n].Remove(Key{serviceEntries, "shop", fmt.Sprint(rapid.IntRange(0, 4).Draw(rt, "name"))})
			},
			"merge some": func(rt *rapid.T) { step() },
			"reorder or leave out": func(rt *rapid.T) {
				order = rapid.Permutation(names).Draw(rt, "order")[:rapid.IntRange(1, 3).Draw(rt, "how many")]
				var sources []Source
				for _, n := range order {
					sources = append(sources, Source{n, stores[n]})
				}
				a.SetSources(sources)
			},
			"": func(*rapid.T) {},
		})
		check()
	})
}

// BenchmarkMerge is what one change of a source costs until the merged view has told of
// it, but for the goroutines in between.
func BenchmarkMerge(b *testing.B) {
	a, east, west := NewAggregate(), NewStore(), NewStore()
	a.SetSources([]Source{{"east", east}, {"west", west}})
	told := 0
	a.RegisterHandler(func(Change) { told++ })
	two := []*Resource{entry(b, "east", "a", "1.example"), entry(b, "east", "a", "2.example")}
	west.Put(entry(b, "west", "a", "w"))
	batch := make([]change, 0, batchLen)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		east.Put(two[n%2])
		n++
		a.deliver(a.next(batch[:0]))
	}
	if told != n {
		b.Errorf("%d changes, %d events", n, told)
	}
}

// TestCaughtUpWaitsUntilTheSourcesContentIsMergedAndDelivered: also content that the listeners do
// not know yet, and its merge with other sources or under other policies.
func TestCaughtUpWaitsUntilTheSourcesContentIsMergedAndDelivered(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, s, j := newAggregate(ctx, t, "east", "west")
		const n = 3 * batchLen
		for i := range n {
			for name, store := range s {
				store.Put(entry(t, name, fmt.Sprint("e", i), name+".example"))
			}
		}
		from := func(want string) {
			t.Helper()
			if err := a.CaughtUp(ctx); err != nil {
				t.Fatal(err)
			}
			of := map[string]int{}
			for _, r := range a.List(serviceEntries, "") {
				of[r.Source()]++
			}
			if len(of) != 1 || of[want] != n {
				t.Errorf("served: %v, want %d of %s", of, n, want)
			}
		}
		from("east")
		a.SetSources([]Source{{"west", s["west"]}, {"east", s["east"]}})
		from("west")
		j.take()
		a.SetSources([]Source{{"east", s["east"]}})
		from("east")
		if got := strings.Count(j.take(), "update e"); got != n {
			t.Errorf("%d events, want %d", got, n)
		}
		from("east") // of nothing new
	})
}

// TestCaughtUpForgetsAWaiterThatGaveUp when that takes too long.
func TestCaughtUpForgetsAWaiterThatGaveUp(t *testing.T) {
	inBubble(t, func(ctx context.Context, t *testing.T) {
		a, store, resume := NewAggregate(), NewStore(), make(chan struct{})
		a.SetSources([]Source{{"east", store}})
		a.RegisterHandler(func(Change) { <-resume })
		start(ctx, t, a.Run)
		store.Put(entry(t, "east", "a", "a.example"))
		late, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := a.CaughtUp(late); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, although a handler was not done", err)
		}
		synctest.Wait()
		if n := len(a.queue.waiters); n != 0 {
			t.Errorf("%d wait still", n)
		}
		close(resume)
		if err := a.CaughtUp(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A store that begins with many resources, some of which wait already, gives the same as one that is
// given them one by one; what leaves before it is merged is not served.
func TestAStoreThatBeginsWithResourcesServesThem(t *testing.T) {
	east, west := NewStore(), NewStore()
	a := NewAggregate()
	a.SetSources([]Source{{"east", east}, {"west", west}})
	west.Put(entry(t, "west", "both", "west.example"))
	east.Begin([]*Resource{entry(t, "east", "both", "east.example"), entry(t, "east", "gone", "x.example"), entry(t, "east", "one", "1.example")})
	east.Remove(entry(t, "east", "gone", "x.example").Key())
	east.SetSynced()
	west.SetSynced()
	last := map[string]string{}
	a.RegisterHandler(func(c Change) {
		if c.Visible() {
			last[c.New.FullName()] = c.New.Source()
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx) }) //nolint:errcheck // it ends with ctx
	<-a.Synced()
	stop()
	running.Wait()
	want := map[string]string{"shop/both": "east", "shop/one": "east"}
	if !maps.Equal(last, want) {
		t.Errorf("the last events are of %v, want %v", last, want)
	}
	if n := a.Counts()[serviceEntries]; n != len(want) {
		t.Errorf("%d resources are served, want %d", n, len(want))
	}
}
