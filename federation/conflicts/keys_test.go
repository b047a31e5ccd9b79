package conflicts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

var dbKey = mirror.Key{Kind: federation.ServiceEntry, Namespace: "team-a", Name: "db"}

// copyOf returns a source's copy of team-a/db, changed by edit.
func copyOf(t testing.TB, source string, edit func(*networking.ServiceEntry)) mirror.Copy {
	body := &networking.ServiceEntry{
		Hosts: []string{"db.example"}, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{{Number: 443, Name: "https", Protocol: "TLS"}, {Number: 80, Name: "http", Protocol: "HTTP"}},
	}
	if edit != nil {
		edit(body)
	}
	return mirror.Copy{Source: source, Resource: build(t, federation.ServiceEntry, "team-a", "db", source, body)}
}

func withEndpoint(address string) func(*networking.ServiceEntry) {
	return func(se *networking.ServiceEntry) { se.Endpoints = []*networking.WorkloadEntry{{Address: address}} }
}

// randomCopies draws copies that agree in some respects and differ in others.
func randomCopies(t *rapid.T) (out []mirror.Copy) {
	for i := range rapid.IntRange(1, 5).Draw(t, "n") {
		out = append(out, copyOf(failer{t: t}, fmt.Sprintf("source-%d", i), func(se *networking.ServiceEntry) {
			withEndpoint(fmt.Sprintf("192.0.2.%d", rapid.IntRange(0, 4).Draw(t, "endpoint")))(se)
			if rapid.IntRange(0, 3).Draw(t, "resolution") == 0 {
				se.Resolution = networking.ServiceEntry_DNS
			}
		}))
	}
	return out
}

var allPolicies = []mirror.Policy{mirror.First{}, merge.Newest{}, merge.Reject{}, merge.Union{}}

func TestKeysKeepsConflictsOnly(t *testing.T) {
	c := &clock{monday}
	l := NewKeys(c.now)
	east, west := copyOf(t, "east", withEndpoint("192.0.2.1")), copyOf(t, "west", withEndpoint("192.0.2.2"))
	north := copyOf(t, "north", func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS })
	update := func(p mirror.Policy, copies ...mirror.Copy) []KeyConflict {
		c.Time = c.Add(time.Hour)
		v := mirror.Decision{Winner: -1}
		if len(copies) > 0 {
			v = p.Merge(copies)
		}
		l.Update(dbKey, copies, v, false)
		return l.List()
	}
	want := func(got []KeyConflict, winner string, united, losers []string, outcome Outcome, reason string, since time.Time) {
		t.Helper()
		if d := cmp.Diff([]KeyConflict{{dbKey, winner, united, losers, outcome, reason, since}}, got); d != "" {
			t.Error(d)
		}
		if l.Len() != 1 {
			t.Errorf("%d are counted", l.Len())
		}
	}
	if got := update(mirror.First{}, east); len(got) > 0 {
		t.Errorf("one copy is a conflict: %+v", got)
	}
	got := update(mirror.First{}, east, west)
	since := c.Local()
	want(got, "east", nil, []string{"west"}, Shadowed, "first in order", since)
	// The loser has changed, the contest has not.
	want(update(mirror.First{}, east, copyOf(t, "west", nil)), "east", nil, []string{"west"}, Shadowed, "first in order", since)
	want(update(mirror.First{}, west, east), "west", nil, []string{"east"}, Shadowed, "first in order", c.Local())
	want(update(merge.Union{}, east, west), "east", []string{"west"}, nil, United, "united", c.Local())
	want(update(merge.Union{}, east, north, west), "east", []string{"west"}, []string{"north"}, Shadowed, "united, but north has resolution DNS, not STATIC", c.Local())
	want(update(merge.Reject{}, east, west), "", nil, []string{"east", "west"}, Rejected, "several upstreams have it", c.Local())
	if got := l.List(federation.VirtualService); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	if got := l.List(federation.VirtualService, federation.ServiceEntry); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	if got := update(mirror.First{}); len(got)+l.Len() > 0 {
		t.Errorf("no copy is a conflict: %+v", got)
	}
}

func TestKeyConflictInJSON(t *testing.T) {
	c := KeyConflict{Key: dbKey, Winner: "east", United: []string{"west"}, Losers: []string{"north"}, Outcome: Shadowed, Reason: "united", Since: monday}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"networking.istio.io/ServiceEntry","namespace":"team-a","name":"db","winner":"east","united":["west"],` +
		`"losers":["north"],"outcome":"shadowed","reason":"united","since":"2026-03-02T08:00:00Z"}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back KeyConflict
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

func TestKeysAreCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewKeys((&clock{monday}).now)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			copies := randomCopies(t)
			policy := rapid.SampledFrom(allPolicies).Draw(t, "policy")
			key := mirror.Key{Kind: federation.ServiceEntry, Namespace: "a", Name: rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")}
			l.Update(key, copies, policy.Merge(copies), false)
			if n := len(l.List()); n != l.Len() {
				t.Fatalf("%d are counted of %d", l.Len(), n)
			}
		}
		if list := l.List(); !slices.IsSortedFunc(list, func(a, b KeyConflict) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatalf("not sorted: %+v", list)
		}
	})
}

func TestKeysIsSafeForConcurrentUse(t *testing.T) {
	l := NewKeys(time.Now)
	copies := []mirror.Copy{copyOf(t, "east", nil), copyOf(t, "west", nil)}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 200 {
				l.Update(dbKey, copies[:1+i%2], mirror.First{}.Merge(copies), false)
				l.List()
				l.Len()
			}
		})
	}
	wg.Wait()
}

func BenchmarkKeysUpdate(b *testing.B) {
	l := NewKeys(time.Now)
	copies := []mirror.Copy{copyOf(b, "east", nil), copyOf(b, "west", nil)}
	v := mirror.First{}.Merge(copies)
	b.ReportAllocs()
	for b.Loop() {
		l.Update(dbKey, copies, v, false)
	}
}
