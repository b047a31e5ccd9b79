package mirror

import (
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

func TestPanicOfAHandlerCostsThatEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, store := NewAggregate(), NewStore()
		var seen []string
		a.RegisterPanicHandler(func(key Key, p *panics.Panic) { seen = append(seen, key.Name+": "+p.Value+" "+p.Stack) })
		fail := func(name string) {
			if name == "bad" {
				panic("no")
			}
		}
		a.RegisterHandler(func(c Change) { fail(c.Key.Name) })
		a.RegisterHandler(func(c Change) { fail(c.New.Key().Name) })
		journal := &journal{}
		a.RegisterHandler(journal.handle)
		a.SetSources([]Source{{Name: "east", Store: store}})
		go a.Run(t.Context()) //nolint:errcheck // ends with the test
		store.Put(entry(t, "east", "bad", "bad.example"))
		store.Put(entry(t, "east", "good", "good.example"))
		synctest.Wait()
		if got := journal.take(); got != "add bad from east, add good from east" {
			t.Errorf("events: %s", got)
		}
		if len(seen) != 2 || !strings.HasPrefix(seen[0], "bad: no ") || !strings.Contains(seen[0], "panic_test.go") {
			t.Errorf("reported: %q", seen)
		}
	})
}
