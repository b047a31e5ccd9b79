package federation

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

var dbKey = mirror.Key{Kind: serviceEntry, Namespace: "team-a", Name: "db"}

func TestLedgerKeepsContestsOnly(t *testing.T) {
	c := &clock{monday}
	l := NewLedger(c.now)
	east, west := copyOf(t, "east", withEndpoints("192.0.2.1")), copyOf(t, "west", withEndpoints("192.0.2.2"))
	north := copyOf(t, "north", func(_ *item, se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS })
	update := func(p mirror.Policy, copies ...mirror.Provider) []Contest {
		c.Time = c.Add(time.Hour)
		v := mirror.Verdict{Winner: -1}
		if len(copies) > 0 {
			v = p.Merge(copies)
		}
		l.Update(dbKey, copies, v)
		return l.List()
	}
	want := func(got []Contest, winner string, united, losers []string, outcome Outcome, reason string, since time.Time) {
		t.Helper()
		if d := cmp.Diff([]Contest{{dbKey, winner, united, losers, outcome, reason, since}}, got); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[mirror.Kind]map[Outcome]int{serviceEntry: {outcome: 1}}, l.Counts()); d != "" {
			t.Error(d)
		}
	}
	if got := update(First{}, east); len(got) > 0 {
		t.Errorf("one copy is a contest: %+v", got)
	}
	got := update(First{}, east, west)
	since := c.Local()
	want(got, "east", nil, []string{"west"}, Shadowed, "first in order", since)
	// The loser has changed, the contest has not.
	want(update(First{}, east, copyOf(t, "west", nil)), "east", nil, []string{"west"}, Shadowed, "first in order", since)
	want(update(First{}, west, east), "west", nil, []string{"east"}, Shadowed, "first in order", c.Local())
	want(update(Union{}, east, west), "east", []string{"west"}, nil, United, "united", c.Local())
	want(update(Union{}, east, north, west), "east", []string{"west"}, []string{"north"}, Shadowed, "united, but north has resolution DNS, not STATIC", c.Local())
	want(update(Reject{}, east, west), "", nil, []string{"east", "west"}, Rejected, "several sources have it", c.Local())
	if got := l.List(virtualService); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	if got := l.List(virtualService, serviceEntry); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	if got := update(First{}); len(got)+len(l.Counts()) > 0 {
		t.Errorf("no copy is a contest: %+v", got)
	}
}

func TestContestInJSON(t *testing.T) {
	c := Contest{Key: dbKey, Winner: "east", United: []string{"west"}, Losers: []string{"north"}, Outcome: Shadowed, Reason: "united", Since: monday}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"networking.istio.io/ServiceEntry","namespace":"team-a","name":"db","winner":"east","united":["west"],` +
		`"losers":["north"],"outcome":"shadowed","reason":"united","since":"2026-03-02T08:00:00Z"}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back Contest
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, back); d != "" {
		t.Error(d)
	}
	if err := json.Unmarshal([]byte(`{"kind":"x"}`), &back); err == nil {
		t.Error("a kind without a group is taken")
	}
}

func TestCountsAreThoseOfTheList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger((&clock{monday}).now)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			copies := randomCopies(t)
			policy := rapid.SampledFrom(allPolicies).Draw(t, "policy")
			key := mirror.Key{Kind: serviceEntry, Namespace: "a", Name: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")}
			l.Update(key, copies, policy.Merge(copies))
			want := map[mirror.Kind]map[Outcome]int{}
			for _, c := range l.List() {
				if want[c.Key.Kind] == nil {
					want[c.Key.Kind] = map[Outcome]int{}
				}
				want[c.Key.Kind][c.Outcome]++
			}
			if d := cmp.Diff(want, l.Counts()); d != "" {
				t.Fatal(d)
			}
		}
		if list := l.List(); !slices.IsSortedFunc(list, func(a, b Contest) int { return cmpStrings(a.Key.Name, b.Key.Name) }) {
			t.Fatalf("not sorted: %+v", list)
		}
	})
}

func cmpStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func TestLedgerIsSafeForConcurrentUse(t *testing.T) {
	l := NewLedger(time.Now)
	copies := []mirror.Provider{copyOf(t, "east", nil), copyOf(t, "west", nil)}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 200 {
				l.Update(dbKey, copies[:1+i%2], First{}.Merge(copies))
				l.List()
				for range maps.Keys(l.Counts()) {
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLedgerUpdate(b *testing.B) {
	l := NewLedger(time.Now)
	copies := []mirror.Provider{copyOf(b, "east", nil), copyOf(b, "west", nil)}
	v := First{}.Merge(copies)
	b.ReportAllocs()
	for b.Loop() {
		l.Update(dbKey, copies, v)
	}
}
