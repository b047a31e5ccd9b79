package events

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
)

var began = time.Date(2026, 11, 22, 3, 12, 0, 0, time.UTC)

func entry(name string) mirror.Key {
	return mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, Namespace: "shop", Name: name}
}

func changed(upstream string, names ...string) Event {
	r := &Resources{}
	for _, n := range names {
		r.Note(Modification, entry(n))
	}
	return Event{Type: Changed, Upstream: upstream, By: ByUpstream, Resources: r}
}

// TestChangesThatComeFastAreOneEvent: the first change is an event at once, those of the next
// second are one event.
func TestChangesThatComeFastAreOneEvent(t *testing.T) {
	b := newBook()
	for i := range 1000 {
		b.record(began.Add(time.Duration(i)*time.Millisecond/2), changed("east", fmt.Sprint(i)))
	}
	if b.n != 1 || b.at(0).Resources.Changed != 1 {
		t.Fatalf("%d events at once", b.n)
	}
	if next := b.tick(began.Add(600*time.Millisecond), false); !next.Equal(began.Add(time.Second)) {
		t.Errorf("the next is due at %v", next)
	}
	if b.tick(began.Add(time.Second), false); b.n != 2 {
		t.Fatalf("%d events", b.n)
	}
	e := b.at(1)
	if e.Count != 999 || e.Resources.Changed != 999 || len(e.Resources.Names) != maxNames || e.Text != "999 changed" {
		t.Errorf("%+v %+v", e, e.Resources)
	}
	if g := e.Resources.Groups; len(g) != 1 || g[0].Changed != 999 || g[0].Namespace != "shop" {
		t.Errorf("%+v", g)
	}
	if next := b.tick(began.Add(10*time.Second), false); !next.IsZero() {
		t.Errorf("something is due at %v", next)
	}
	for i := range 10_000 {
		b.record(began.Add(time.Duration(i)*time.Minute), changed(fmt.Sprint(i), "a"))
	}
	if len(b.buckets) > maxBuckets {
		t.Errorf("%d buckets are kept", len(b.buckets))
	}
}

// TestCausesAndUpstreamsAreNotMixed: each has an event of its own, and each order.
func TestCausesAndUpstreamsAreNotMixed(t *testing.T) {
	b := newBook()
	for range 3 {
		b.record(began, changed("east", "a"))
		b.record(began, changed("west", "a"))
		byOperator := changed("east", "b")
		byOperator.By = ByOperator
		b.record(began, byOperator)
	}
	b.tick(began, true)
	got := map[string]int{}
	for i := range b.n {
		e := b.at(i)
		got[e.Upstream+" "+string(e.By)] += e.Resources.Changed
	}
	if len(got) != 3 || got["east upstream"] != 3 || got["west upstream"] != 3 || got["east operator"] != 3 || b.n != 8 { // what waits of east comes before each order
		t.Errorf("%v in %d events", got, b.n)
	}
}

// TestOrdersAreNeverMergedIntoOneEvent: two orders within a second are two events.
func TestOrdersAreNeverMergedIntoOneEvent(t *testing.T) {
	b := newBook()
	for uid := range 3 {
		e := changed("east", fmt.Sprint(uid))
		e.By, e.Operator, e.Reason = ByOperator, &Operator{UID: uid}, fmt.Sprint("INC-", uid)
		b.record(began, e)
	}
	b.tick(began, true)
	if b.n != 3 {
		t.Fatalf("%d events of 3 orders", b.n)
	}
	for i := range b.n {
		if e := b.at(i); e.Operator.UID != i || e.Reason != fmt.Sprint("INC-", i) || e.Resources.Changed != 1 {
			t.Errorf("%+v by %v", e, e.Operator)
		}
	}
}

// TestNumbersFollowTheTimesOfAnUpstream: a change that is gathered stands before what came after it,
// whatever comes, and none is lost.
func TestNumbersFollowTheTimesOfAnUpstream(t *testing.T) {
	b := newBook()
	now := began
	record := func(e Event) {
		now = now.Add(time.Millisecond)
		b.record(now, e)
	}
	record(changed("east", "a"))
	record(changed("east", "b"))
	record(changed("west", "c"))
	record(changed("west", "d"))
	record(Event{Type: Held, Upstream: "east", By: ByGuard})
	record(Event{Type: Ordered, Upstream: "east", By: ByOperator, Text: "release refused"})
	var got []string
	for i := range b.n {
		got = append(got, fmt.Sprint(b.at(i).Upstream, " ", b.at(i).Type))
	}
	if want := []string{"east changed", "west changed", "east changed", "east held", "east ordered"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q: the second change of west waits", got, want)
	}

	random := rand.New(rand.NewPCG(1, 2))
	types, causes := []Type{Changed, Refused, Lost, Held, Frozen, Ordered}, []By{ByUpstream, ByGuard, ByOperator}
	recorded := map[string]int{}
	for i := range 5000 {
		now = now.Add(time.Duration(random.IntN(100)) * time.Millisecond)
		e := changed([]string{"lab", "edge", "hub"}[random.IntN(3)], fmt.Sprint(i))
		e.Type, e.By = types[random.IntN(len(types))], causes[random.IntN(len(causes))]
		recorded[e.Upstream]++
		b.record(now, e)
		if random.IntN(10) == 0 {
			b.tick(now, false)
		}
	}
	b.tick(now, true)
	kept, last := map[string]int{}, map[string]*Event{}
	for i := range b.n {
		e := b.at(i)
		kept[e.Upstream] += max(e.Count, 1)
		if before := last[e.Upstream]; before != nil && (e.Time.Before(before.Time) || e.Seq <= before.Seq) {
			t.Fatalf("%s of %s has number %d, after %s of %s with %d", e.Type, e.Time, e.Seq, before.Type, before.Time, before.Seq)
		}
		last[e.Upstream] = e
	}
	for name, n := range recorded {
		if kept[name] != n {
			t.Errorf("%s: %d of %d events are kept", name, kept[name], n)
		}
	}
	if len(b.waits) > 0 || len(b.closing) > 0 {
		t.Errorf("something waits at the end: %v %v", b.waits, b.closing)
	}
}

// TestAnUpstreamDoesNotFloodTheJournalByAlternation: events of two types, each of which ends the batch of
// the other, are as few as without that.
func TestAnUpstreamDoesNotFloodTheJournalByAlternation(t *testing.T) {
	b := newBook()
	now := began
	for range 10_000 { // ten seconds
		now = now.Add(time.Millisecond)
		b.record(now, changed("east", "a"))
		b.record(now, Event{Type: Refused, Upstream: "east", By: ByUpstream})
		b.tick(now, false)
	}
	if most := 2 * (floodBurst + 12); b.n > most {
		t.Errorf("%d events of ten seconds, want %d at most", b.n, most)
	}
}

// TestAFloodOfClientsIsCounted: of events that clients cause, some are taken one by one, and of the
// others one in a second with their number. What operators do is never put together.
func TestAFloodOfClientsIsCounted(t *testing.T) {
	b := newBook()
	for i := range 10_000 {
		b.record(began, Event{Type: Connected, Client: fmt.Sprint("istiod-", i)})
		b.record(began, Event{Type: Ordered, Text: "reload"})
	}
	b.tick(began.Add(time.Second), false)
	clients, orders, n := 0, 0, 0
	for i := range b.n {
		switch e := b.at(i); e.Type {
		case Connected:
			clients++
			n += max(e.Count, 1)
		case Ordered:
			orders++
		}
	}
	if clients != floodBurst+1 || n != 10_000 || orders != 10_000 {
		t.Errorf("%d events of %d clients, %d orders", clients, n, orders)
	}
}

// TestTheRingIsBounded, by events and by bytes, and an event by its texts, names and groups.
func TestTheRingIsBounded(t *testing.T) {
	b := newBook()
	b.maxEvents, b.maxBytes = 100, 1<<20
	for i := range 1000 {
		b.record(began, Event{Type: Ordered, Text: fmt.Sprint(i)})
	}
	if b.n != 100 || len(b.ring) != 100 || b.at(0).Text != "900" || b.at(99).Text != "999" {
		t.Errorf("%d events, the oldest %q", b.n, b.at(0).Text)
	}
	b = newBook()
	b.maxBytes = 64 << 10
	long := strings.Repeat("x", 10_000)
	for i := range 1000 {
		e := Event{Type: Ordered, Text: long, Reason: long, Command: long, Client: long, Resources: &Resources{}}
		for k := range 100 {
			key := entry(fmt.Sprint(i, k))
			key.Namespace = fmt.Sprint(k)
			e.Resources.Note(Addition, key)
		}
		b.record(began, e)
	}
	last := b.at(b.n - 1)
	if b.bytes > 64<<10 || b.n == 0 || last.size() > 8<<10 {
		t.Errorf("%d bytes in %d events, the last has %d", b.bytes, b.n, last.size())
	}
	if r := last.Resources; r.Added != 100 || len(r.Names) != maxNames || len(r.Groups) != maxGroups || r.Elsewhere != 100-maxGroups {
		t.Errorf("%d added, %d names, %d groups, %d elsewhere", r.Added, len(r.Names), len(r.Groups), r.Elsewhere)
	}
}

// TestTheLongestEventIsBounded: upstreams choose names, also of characters that JSON writes in six bytes.
// The journal knows how much an event takes up, and the disk reads its line.
func TestTheLongestEventIsBounded(t *testing.T) {
	for _, tc := range []struct {
		character             string
		namespace, bytesOfOne int
	}{{"x", 1000, 1}, {"<", 500, 6}} {
		long := strings.Repeat(tc.character, 1000)
		e := Event{Type: Changed, Reason: long, Command: long, Client: long, Resources: &Resources{}}
		for i := range 100 {
			key := entry(fmt.Sprint(i))
			key.Namespace = fmt.Sprint(long[:tc.namespace], i)
			e.Resources.Note(Addition, key)
		}
		j := New()
		j.Record(e)
		line, size := len(j.Take()), j.book.bytes
		if line > state.MaxJournalLine || line > 2*size*tc.bytesOfOne {
			t.Errorf("of %s: an event that takes up %d bytes has a line of %d", tc.character, size, line)
		}
	}
}

// TestAnEventCostsFewAllocations: a change that is put together with others none but for new names.
func TestAnEventCostsFewAllocations(t *testing.T) {
	b := newBook()
	now := began
	step := func() {
		now = now.Add(time.Millisecond)
		r := &Resources{}
		r.Note(Modification, entry("a"))
		b.record(now, Event{Time: now, Type: Changed, Upstream: "east", By: ByUpstream, Resources: r})
		b.tick(now, false)
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(2000, step); n > 5 {
		t.Errorf("%v allocations for a change, want 5 at most", n)
	}
}

// BenchmarkChange is what one change costs that is put together with others, as at 1,000 a second.
func BenchmarkChange(b *testing.B) {
	j := New()
	key := entry("a")
	for b.Loop() {
		r := &Resources{}
		r.Note(Modification, key)
		j.Record(Event{Type: Changed, Upstream: "east", By: ByUpstream, Resources: r})
	}
}

// TestALineTellsHowManyChangesAreOfServicesAndOfEndpointsAlone, also when changes are put together, and whoever searches
// for the words finds it.
func TestALineTellsHowManyChangesAreOfServicesAndOfEndpointsAlone(t *testing.T) {
	b := newBook()
	for i, r := range []Resources{{Services: 1}, {Services: 2, Endpoints: 1}, {Endpoints: 1}, {}} {
		e := changed("east", fmt.Sprint(i))
		e.Resources.Added, e.Resources.Services, e.Resources.Endpoints = i, r.Services, r.Endpoints
		b.record(began, e)
	}
	b.tick(began, true)
	for i, want := range []string{"1 changed (1 service)", "6 added, 3 changed (2 service, 2 endpoint)"} {
		if e := b.at(i); e.Text != want || (&Filter{Text: "endpoint"}).Picks(e) != (i == 1) {
			t.Errorf("event %d: %q, want %q", i, e.Text, want)
		}
	}
}
