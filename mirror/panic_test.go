package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/internal/panics"
)

// brittle is a Policy that panics over what is called "bad". All others are merged as by
// First, and with sameGroup all keys are of one group.
type brittle struct {
	First
	sameGroup bool
}

func (b brittle) Merge(copies []Copy) Decision {
	for _, c := range copies {
		if c.Resource.Key().Name == "bad" {
			panic("over " + c.Resource.Key().Name)
		}
	}
	return b.First.Merge(copies)
}

func (b brittle) Group(*Resource) string {
	if b.sameGroup {
		return "all"
	}
	return ""
}

func TestPanicWhileMergingCostsThatKey(t *testing.T) {
	for _, sameGroup := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, stores, journal := newAggregate(t.Context(), t, "east", "west")
			a.SetPolicies(nil, brittle{sameGroup: sameGroup})
			stores["east"].Put(entry(t, "east", "bad", "bad.example"))
			stores["east"].Put(entry(t, "east", "good", "good.example"))
			synctest.Wait()
			if got := journal.take(); got != "add good from east" {
				t.Errorf("events: %s", got)
			}
			// The goroutine goes on, and what a view selects does without the key.
			stores["east"].Put(entry(t, "east", "good", "other.example"))
			synctest.Wait()
			stores["west"].Put(entry(t, "west", "later", "later.example"))
			synctest.Wait()
			if got := journal.take(); got != "update good from east, add later from west" {
				t.Errorf("events: %s", got)
			}
			if r := a.Select(entry(t, "east", "bad", "x").Key(), "", everything); r != nil {
				t.Errorf("selected: %v", r.Key())
			}
			// The panic ends with the policy.
			a.SetPolicies(nil, nil)
			synctest.Wait()
			if got := journal.take(); got != "add bad from east" {
				t.Errorf("events: %s", got)
			}
		})
	}
}

// TestAKeyThatPanicsAgainCostsTheOthersNothing: its changes have nothing else merged, until it is sound again.
func TestAKeyThatPanicsAgainCostsTheOthersNothing(t *testing.T) {
	f := newFleet(t, 2, 100)
	f.SetPolicies(nil, First{})
	f.putAll()
	f.merge()
	bad := func(host string) { f.sources[1].Store.Put(entry(t, "cluster-1", "bad", host)) }
	f.SetPolicies(nil, brittle{sameGroup: true})
	bad("a.example")
	if n := f.merge(); n < 100 || f.Get(entry(t, "", "bad", "").Key()) != nil {
		t.Errorf("%d keys merged, and %v served", n, f.Get(entry(t, "", "bad", "").Key()))
	}
	bad("b.example")
	if n := f.merge(); n != 1 {
		t.Errorf("%d keys merged for it again", n)
	}
	f.sources[1].Store.Remove(entry(t, "", "bad", "").Key())
	if f.merge(); len(f.broken) > 0 {
		t.Error("it is still broken")
	}
}

// TestAPanicOfAHandlerEndsTheProcess: nobody catches it, because what the handler keeps may be half changed.
func TestAPanicOfAHandlerEndsTheProcess(t *testing.T) {
	f := newFleet(t, 1, 1)
	f.RegisterHandler(func(Change) { panic("no") })
	f.putAll()
	if p := panics.Try(func() { f.merge() }); p == nil || p.Value != "no" {
		t.Errorf("%v", p)
	}
}

// TestAfterAPanicTheMergeIsAsIfNew: wherever a merge has panicked, what is served, explained and told is then that of an Aggregate
// that has only seen the same sources.
func TestAfterAPanicTheMergeIsAsIfNew(t *testing.T) {
	names := []string{"a", "b", "c", "a-12345678"}
	for _, policy := range []Policy{First{}, brittle{sameGroup: true}} {
		for _, owners := range []Owners{nil, oneHost{}} {
			fresh := func(sources []Source) *fleet {
				f := &fleet{Aggregate: NewAggregate(), sources: sources}
				f.SetPolicies(nil, policy)
				f.SetOwners(owners)
				f.SetSources(sources)
				return f
			}
			for at := 1; ; at++ {
				f := fresh([]Source{{"east", NewStore()}, {"west", NewStore()}})
				told, seen := map[Key]*Resource{}, 0
				f.RegisterPanicHandler(func(_ Key, p *panics.Panic) {
					if seen++; p.Value != "halfway" || !strings.Contains(p.Stack, "panic_test.go") {
						t.Error(p.Value, p.Stack)
					}
				})
				f.RegisterHandler(func(c Change) {
					if !c.Old.Equal(told[c.Key]) {
						t.Errorf("at %d: %s is told to have been %v", at, c.Key, c.Old)
					}
					if told[c.Key] = c.New; c.New == nil {
						delete(told, c.Key)
					}
				})
				put := func(round int) {
					for n, s := range f.sources {
						for i, name := range names {
							if key := (Key{serviceEntries, "shop", name}); (i+n+round)%3 == 0 {
								s.Store.Remove(key)
							} else {
								s.Store.Put(entry(t, s.Name, name, fmt.Sprint("host-", (i+round)%2)))
							}
						}
					}
				}
				put(0)
				f.merge()
				left := at
				f.holders.looked = func() {
					if left--; left == 0 {
						panic("halfway")
					}
				}
				put(1)
				f.merge()
				f.holders.looked = nil
				want := fresh(f.sources)
				want.merge()
				if got, is := shownOf(f.Aggregate), shownOf(want.Aggregate); got != is {
					t.Fatalf("at %d: serves\n%s\nwant\n%s", at, got, is)
				}
				if len(told) != f.Counts()[serviceEntries] {
					t.Fatalf("at %d: told %d", at, len(told))
				}
				for key, r := range told {
					if !r.Equal(f.Get(key)) {
						t.Fatalf("at %d: %s is told as %v", at, key, r)
					}
				}
				if left > 0 {
					break // the merge was over before
				}
				if seen != 1 {
					t.Fatalf("at %d: %d panics reported", at, seen)
				}
			}
		}
	}
}

// shownOf is what an Aggregate serves, and why.
func shownOf(a *Aggregate) string {
	var b strings.Builder
	for _, key := range a.Keys(serviceEntries) {
		r := a.Resolve(key)
		fmt.Fprintln(&b, key, len(r.Copies), r.Decision.Reason, r.Group, r.MergedInto, r.Yields, r.Served.Equal(a.Get(key)))
		if r.Served != nil {
			fmt.Fprintln(&b, r.Served.Version())
		}
	}
	contests := []string{}
	for _, c := range a.Contests(false) {
		contests = append(contests, fmt.Sprint(c.What, len(c.Claims)))
	}
	slices.Sort(contests)
	fmt.Fprintln(&b, contests)
	return b.String()
}
