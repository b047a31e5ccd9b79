package plan

import (
	"encoding/json"
	"testing"
	"time"

	"meshrelay/mirror"
)

// owning returns a Core with n objects, of which the first ones are desired.
func owning(s Settings, n, desired int) *Core {
	s.Prune = true
	c := core(s)
	for i := range n {
		c.See(keyOf(i), mine(i, 1))
		if i < desired {
			c.Want(keyOf(i), wanted(1))
		}
	}
	return c
}

func verbs(c *Core, n int) (count map[Verb]int) {
	count = map[Verb]int{}
	for i := range n {
		count[c.Next(keyOf(i)).Verb]++
	}
	return count
}

func TestAnEmptyDesiredSetIsAlwaysHeld(t *testing.T) {
	c := owning(Settings{Percent: 100, Count: 1000}, 1, 0)
	c.Judge(time.Unix(0, 0), told)
	if v := verbs(c, 1); v[Hold] != 1 || c.Held().ID == "" {
		t.Errorf("%v, %+v", v, c.Held())
	}
}

func TestAHoldStaysUntilItIsReleasedByItsID(t *testing.T) {
	c, now := owning(Settings{Percent: 10, Count: 2}, 20, 17), time.Unix(0, 0)
	c.Judge(now, told)
	id := c.Held().ID
	if v := verbs(c, 20); v[Hold] != 3 {
		t.Fatal(v)
	}
	c.Want(keyOf(19), wanted(1)) // the rest would pass the guard
	c.Judge(now.Add(time.Hour), told)
	if v := verbs(c, 20); v[Hold] != 2 {
		t.Error("a hold ends because it shrinks:", v)
	}
	if _, err := c.Release(id); err == nil {
		t.Error("the ID of another list releases this one")
	}
	next := New(c.settings, c.Kept(), now) // a restart
	for i := range 20 {
		next.See(keyOf(i), mine(i, 1))
		if i < 17 || i == 19 {
			next.Want(keyOf(i), wanted(1))
		}
	}
	next.Judge(now, told)
	next.SetReady(true)
	next.Judge(now, told)
	if v := verbs(next, 20); v[Hold] != 2 || next.Held().ID != c.Held().ID {
		t.Error("a restart ends the hold:", v)
	}
	if n, err := next.Release(next.Held().ID); n != 2 || err != nil {
		t.Error(n, err)
	}
	if k := next.Kept(); len(k.Released) != 2 {
		t.Error("a release does not outlive a restart:", k)
	}
	next.Judge(now, told)
	if v := verbs(next, 20); v[Delete] != 2 {
		t.Error(v)
	}
	next.See(keyOf(16), mine(16, 1))
	next.Want(keyOf(16), nil)
	next.Judge(now, told)
	if v := verbs(next, 20); v[Delete] != 3 {
		t.Error("the guard holds one deletion after a release:", v)
	}
}

func TestDeletionsThatTrickleCountTogether(t *testing.T) {
	c, now := owning(Settings{Percent: 10, Count: 2}, 20, 20), time.Unix(0, 0)
	for i := range 4 {
		c.Want(keyOf(i), nil)
		c.Judge(now, told)
		if c.Next(keyOf(i)).Verb == Delete {
			c.See(keyOf(i), nil)
		}
	}
	if v := verbs(c, 4); v[Hold] != 2 {
		t.Errorf("%v, %+v", v, c.Held())
	}
	if c.Judge(now.Add(time.Hour), told); c.Held().ID == "" {
		t.Error("time ends a hold")
	}
}

func TestAReleaseIsNotForAnotherObjectOfTheName(t *testing.T) {
	c, now := owning(Settings{Percent: 100, Count: 100}, 1, 0), time.Unix(0, 0)
	c.Judge(now, told)
	if _, err := c.Release(c.Held().ID); err != nil {
		t.Fatal(err)
	}
	other := mine(0, 1)
	other.UID = "new"
	c.See(keyOf(0), other)
	c.Judge(now, told)
	if a := c.Next(keyOf(0)); a.Verb != Hold {
		t.Error(a)
	}
}

// held returns a Core whose guard holds three deletions, because nothing is desired.
func held(t *testing.T) *Core {
	t.Helper()
	c := core(Settings{Prune: true, Percent: 10, Count: 5})
	for n := range 3 {
		c.See(keyOf(n), mine(n, 1))
	}
	if c.Judge(time.Unix(0, 0), told); c.Held().ID == "" {
		t.Fatal("nothing is held")
	}
	return c
}

func TestAReleaseConcernsOnlyTheObjectsThatWereShown(t *testing.T) {
	c := held(t)
	id := c.Held().ID
	c.See(keyOf(0), nil)
	other := mine(1, 1)
	other.UID = "another"
	c.See(keyOf(1), other)
	if _, err := c.Release(id); err != nil {
		t.Fatal(err)
	}
	c.Judge(time.Unix(0, 0), told)
	if a, b := c.Next(keyOf(1)), c.Next(keyOf(2)); a.Verb != Hold || b.Verb != Delete {
		t.Errorf("%+v, %+v", a, b)
	}
}

func TestAReleaseEndsWhenTheObjectIsDesiredAgain(t *testing.T) {
	c := held(t)
	if _, err := c.Release(c.Held().ID); err != nil {
		t.Fatal(err)
	}
	c.Want(keyOf(0), wanted(1))
	c.Judge(time.Unix(0, 0), told)
	c.Want(keyOf(0), nil)
	c.Judge(time.Unix(0, 0), told)
	if a := c.Next(keyOf(0)); a.Verb != Hold {
		t.Errorf("%+v", a)
	}
}

func TestAnEmptyDesiredStateHoldsAtOnceWhatMightHaveGone(t *testing.T) {
	c := core(Settings{Prune: true, Percent: 10, Count: 5})
	c.See(keyOf(0), mine(0, 1))
	c.Want(keyOf(1), wanted(1))
	if c.Judge(time.Unix(0, 0), told); c.Next(keyOf(0)).Verb != Delete {
		t.Fatal(c.Next(keyOf(0)))
	}
	c.Want(keyOf(1), nil)
	if a := c.Next(keyOf(0)); a.Verb != Hold {
		t.Errorf("%+v", a)
	}
}

func TestObjectsThatOthersHaveLabelledDoNotWidenTheGuard(t *testing.T) {
	c := core(Settings{Prune: true, Percent: 10, Count: 5})
	for n := range 1020 {
		l := mine(n, 1)
		if n < 13 {
			c.Want(keyOf(n), wanted(1))
		} else if n >= 20 {
			l.Fields = 0
		}
		c.See(keyOf(n), l)
	}
	c.Judge(time.Unix(0, 0), told)
	if h := c.Held(); h.Removals != 7 || h.Reason != "7 of 20 objects within 10m0s" {
		t.Errorf("%+v", h)
	}
}

func TestAVerdictIsNotForAnObjectThatHasChangedSince(t *testing.T) {
	for name, change := range map[string]func(*Live){
		"another object of the name":     func(l *Live) { l.UID = "new" },
		"the manager is another one":     func(l *Live) { l.Fields = 0 },
		"its upstreams are other ones":   func(l *Live) { l.Sources = "west" },
		"another relay has written it":   func(l *Live) { l.Sources = "" },
		"it is about to be deleted once": func(l *Live) { l.Deleting = true },
	} {
		c := core(Settings{Prune: true, Percent: 100, Count: 100})
		c.Want(keyOf(1), wanted(1))
		c.See(keyOf(0), mine(0, 1))
		c.Judge(time.Unix(0, 0), told)
		if a := c.Next(keyOf(0)); a.Verb != Delete {
			t.Fatal(a)
		}
		l := mine(0, 1)
		change(l)
		c.See(keyOf(0), l)
		if a := c.Next(keyOf(0)); a.Verb.Writes() {
			t.Errorf("%s: %v", name, a)
		}
	}
}

func TestPruneDoesNotReleaseWhatAnUpstreamMayHave(t *testing.T) {
	for _, prune := range []bool{false, true} {
		c := core(Settings{Prune: prune, Percent: 10, Count: 0})
		for n := range 10 {
			c.See(keyOf(n), mine(n, 1))
		}
		c.Want(keyOf(20), wanted(1))
		silent := func(k mirror.Key) string {
			if k == keyOf(0) {
				return ""
			}
			return "it has told nothing"
		}
		c.Judge(time.Unix(0, 0), silent)
		if n := c.Prune(); n != 1 {
			t.Errorf("%d are released", n)
		}
		c.Judge(time.Unix(0, 0), told) // the upstream has told everything, and lacks the others
		for n := range 10 {
			if a := c.Next(keyOf(n)); (a.Verb == Delete) != (n == 0) {
				t.Errorf("%d: %v", n, a)
			}
		}
	}
}

func TestAForeignObjectIsForgottenWithWhatWasDesired(t *testing.T) {
	c := core(Settings{Adopt: true})
	c.Want(keyOf(0), wanted(1))
	c.See(keyOf(0), &Live{UID: "u"})
	c.Want(keyOf(0), nil)
	c.Keys(func(k mirror.Key) { t.Errorf("%v is kept", k) })
}

func TestAReleaseIsForgottenWithItsObject(t *testing.T) {
	c := held(t)
	if _, err := c.Release(c.Held().ID); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		c.See(keyOf(n), nil)
	}
	c.Judge(time.Unix(0, 0), told)
	if len(c.guard.released) != 0 {
		t.Error(c.guard.released)
	}
}

// kept returns what a Core has kept, as it is read from a file.
func kept(t *testing.T, c *Core) (k Kept) {
	t.Helper()
	text, err := json.Marshal(c.Kept())
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// lose has objects not be desired any more, and carries out what is to be deleted. It returns how many were deleted.
func lose(c *Core, now time.Time, ns ...int) (deleted int) {
	for _, n := range ns {
		c.Want(keyOf(n), nil)
	}
	c.Judge(now, told)
	for _, n := range ns {
		if c.Next(keyOf(n)).Verb == Delete {
			c.See(keyOf(n), nil)
			deleted++
		}
	}
	return deleted
}

// A relay that restarts again and again must not empty a site in parts.
func TestDeletionsThatHavePassedCountAfterARestart(t *testing.T) {
	start := time.Unix(1e9, 0)
	for name, test := range map[string]struct {
		jump time.Duration // of the clock, over the restart
		runs time.Duration // afterwards
		held bool
	}{
		"at once":                      {0, 0, true},
		"the clock has jumped back":    {-100 * time.Hour, window / 2, true},
		"the clock has jumped forward": {100 * time.Hour, window / 3, true},
		"back, and the window is over": {-100 * time.Hour, window + 2*time.Second, false},
		"forward, and it is over":      {100 * time.Hour, window + 2*time.Second, false},
	} {
		for _, judged := range []bool{true, false} { // whether the relay noticed that the objects were gone
			c := owning(Settings{Percent: 10, Count: 2}, 20, 20)
			if n := lose(c, start, 0, 1); n != 2 {
				t.Fatal(n)
			}
			if judged {
				c.Judge(start.Add(time.Second), told)
			}
			now := start.Add(test.jump)
			next := New(c.settings, kept(t, c), now)
			for i := 2; i < 20; i++ {
				next.See(keyOf(i), mine(i, 1))
				next.Want(keyOf(i), wanted(1))
			}
			next.SetReady(true)
			next.Judge(now, told)
			deleted := lose(next, now.Add(test.runs), 2)
			if (deleted == 0) != test.held {
				t.Errorf("%s: %d deleted, held: %+v", name, deleted, next.Held())
			}
		}
	}
}

func TestADeletionThatWaitedOverARestartCountsOnce(t *testing.T) {
	c := owning(Settings{Percent: 10, Count: 2}, 20, 18)
	c.Judge(time.Unix(0, 0), told)
	next := New(c.settings, kept(t, c), time.Unix(0, 0))
	for i := range 20 {
		if next.See(keyOf(i), mine(i, 1)); i < 18 {
			next.Want(keyOf(i), wanted(1))
		}
	}
	next.Judge(time.Unix(0, 0), told)
	next.SetReady(true)
	next.Judge(time.Unix(1, 0), told)
	if v := verbs(next, 20); v[Delete] != 2 {
		t.Errorf("%v, %+v", v, next.Held())
	}
}

func TestReleasedDeletionsDoNotCountForTheNextHold(t *testing.T) {
	c, now := owning(Settings{Percent: 10, Count: 2}, 40, 30), time.Unix(0, 0)
	c.Judge(now, told)
	if n, err := c.Release(c.Held().ID); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	if n := lose(c, now, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39); n != 10 {
		t.Fatal(n)
	}
	if n := lose(c, now.Add(time.Second), 0); n != 1 {
		t.Errorf("a person decided about the others: %+v", c.Held())
	}
}

func TestAHoldDoesNotEndWhileAnUpstreamIsAway(t *testing.T) {
	c, now := owning(Settings{Percent: 10, Count: 2}, 20, 17), time.Unix(0, 0)
	c.Judge(now, told)
	c.Want(keyOf(19), wanted(1)) // the rest would pass the guard
	away := func(mirror.Key) string { return "it is away" }
	c.Judge(now, away)
	next := New(c.settings, kept(t, c), now)
	for i := range 20 {
		if next.See(keyOf(i), mine(i, 1)); i < 17 || i == 19 {
			next.Want(keyOf(i), wanted(1))
		}
	}
	next.SetReady(true)
	next.Judge(now, away)
	for _, one := range []*Core{c, next} {
		one.Judge(now, told)
		if v := verbs(one, 20); v[Hold] != 2 {
			t.Error("nobody has decided, and it goes:", v)
		}
	}
}

func TestAHoldEndsWithWhatOthersHaveTakenOver(t *testing.T) {
	c, now := owning(Settings{Percent: 10, Count: 2}, 20, 17), time.Unix(0, 0)
	c.Judge(now, told)
	for i := 17; i < 20; i++ {
		l := mine(i, 1)
		l.Fields = 0
		c.See(keyOf(i), l)
	}
	c.Judge(now, told)
	if n := lose(c, now, 0); n != 1 {
		t.Errorf("%+v", c.Held())
	}
}

// TestAllObjectsOfAKindAreHeld, of three or more, also one after another, and over a restart. The guard's figures let them pass.
func TestAllObjectsOfAKindAreHeld(t *testing.T) {
	const others = 20
	policyOf := func(n int) mirror.Key {
		return mirror.Key{Kind: mirror.Kind{Group: "security.istio.io", Kind: "AuthorizationPolicy"}, Namespace: "shop", Name: keyOf(n).Name}
	}
	for _, test := range []struct {
		name  string
		has   int
		steps []int // how many are gone after each step
		after time.Duration
		held  int
	}{
		{"all at once", 5, []int{5}, 0, 5},
		{"all but one", 5, []int{4}, 0, 0},
		{"two of two", 2, []int{2}, 0, 0},
		{"one after another", 3, []int{1, 2, 3}, time.Minute, 1},
		{"slowly", 3, []int{1, 2, 3}, 11 * time.Minute, 0},
	} {
		for _, restarts := range []bool{false, true} {
			c, now := owning(Settings{Percent: 100, Count: 1000}, others, others), time.Unix(0, 0)
			for i := range test.has {
				c.See(policyOf(i), mine(100+i, 1))
				c.Want(policyOf(i), wanted(1))
			}
			for _, gone := range test.steps {
				for i := range gone {
					c.Want(policyOf(i), nil)
				}
				c.Judge(now, told)
				for i := range gone {
					if c.Next(policyOf(i)).Verb == Delete {
						c.See(policyOf(i), nil)
					}
				}
				c.Judge(now, told)
				if restarts {
					next := New(c.settings, c.Kept(), now)
					c.Keys(func(key mirror.Key) {
						next.See(key, c.Live(key))
						next.Want(key, c.Wanted(key))
					})
					next.SetReady(true)
					c = next
					c.Judge(now, told)
				}
				now = now.Add(test.after)
			}
			if c.Held().Removals != test.held {
				t.Errorf("%s, restarts %t: held are %+v, want %d", test.name, restarts, c.Held(), test.held)
			}
		}
	}
}

// TestObjectsThatStayDoNotHideTheLastOfAKind: one that somebody has labelled, or that waits for its finalizers.
func TestObjectsThatStayDoNotHideTheLastOfAKind(t *testing.T) {
	for name, stays := range map[string]func(*Live){
		"labelled": func(l *Live) { l.Fields = 0 },
		"deleting": func(l *Live) { l.Deleting = true },
	} {
		c := owning(Settings{Percent: 100, Count: 1000}, 4, 0)
		other := mirror.Key{Kind: mirror.Kind{Group: "a.b", Kind: "Other"}, Name: "other"}
		c.Want(other, wanted(1)) // else all go because nothing is desired
		l := mine(3, 1)
		stays(l)
		c.See(keyOf(3), l)
		c.Judge(time.Unix(0, 0), told)
		if v := verbs(c, 3); v[Hold] != 3 {
			t.Errorf("%s: %v", name, v)
		}
	}
}
