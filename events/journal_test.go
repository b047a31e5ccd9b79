package events

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func texts(all []Event) (out []string) {
	for _, e := range all {
		out = append(out, e.Text)
	}
	return out
}

func order(text string) Event { return Event{Type: Ordered, Text: text} }

// TestPagesFollowOneAnother, forwards from a number and backwards from the newest.
func TestPagesFollowOneAnother(t *testing.T) {
	j := New()
	start := j.Newest().Seq
	for i := range 10 {
		j.Record(order(fmt.Sprint(i)))
	}
	p := j.Read(Query{Limit: 3})
	if got := texts(p.Events); !slices.Equal(got, []string{"7", "8", "9"}) || !p.More {
		t.Errorf("newest: %v %v", got, p.More)
	}
	p = j.Read(Query{Limit: 3, Before: p.Events[0].Seq})
	if got := texts(p.Events); !slices.Equal(got, []string{"4", "5", "6"}) || !p.More {
		t.Errorf("before: %v %v", got, p.More)
	}
	var all []string
	for q := (Query{After: start, Limit: 4}); ; q.After = p.Next {
		p = j.Read(q)
		if all = append(all, texts(p.Events)...); !p.More {
			break
		}
	}
	if len(all) != 10 || all[9] != "9" || p.Missed {
		t.Errorf("after: %v, missed %v", all, p.Missed)
	}
	if p = j.Read(Query{After: p.Next}); len(p.Events) != 0 || p.More || p.Next != p.Newest {
		t.Errorf("at the end: %+v", p)
	}
}

// TestAReaderLearnsThatItHasMissedEvents.
func TestAReaderLearnsThatItHasMissedEvents(t *testing.T) {
	j := New()
	j.book.maxEvents = 5
	j.Record(order("first"))
	first := j.Newest().Seq
	for i := range 10 {
		j.Record(order(fmt.Sprint(i)))
	}
	if p := j.Read(Query{After: first}); !p.Missed || len(p.Events) != 5 {
		t.Errorf("%+v", p)
	}
	if p := j.Read(Query{After: p64(j) - 5}); p.Missed || len(p.Events) != 5 {
		t.Errorf("%+v", p)
	}
	if p := j.Read(Query{After: p64(j) + 1000}); !p.Missed || len(p.Events) != 5 {
		t.Errorf("after the end: %+v", p)
	}
}

func p64(j *Journal) uint64 { return j.Newest().Seq }

// TestFiltersPickEvents.
func TestFiltersPickEvents(t *testing.T) {
	j := New()
	j.Record(Event{Time: began, Type: Held, Upstream: "east", Text: "a", Reason: "40 of 100", Hold: "7f3a"})
	e := changed("west", "db")
	e.Time = began.Add(time.Minute)
	j.Record(e)
	j.Record(Event{Time: began.Add(2 * time.Minute), Type: NACK, Client: "istiod-7d9", Text: "c"})
	j.Record(Event{Time: began.Add(3 * time.Minute), Type: Frozen, Upstream: "east", Text: "d", Operator: &Operator{UID: 1000, User: "eve"}})
	all := &Resources{}
	for i := range 100 {
		key := entry("x")
		key.Namespace = fmt.Sprint(i)
		all.Note(Removal, key)
	}
	j.Record(Event{Time: began.Add(4 * time.Minute), Type: Expired, Upstream: "lab", Text: "e", Resources: all})
	j.Record(Event{Time: began.Add(5 * time.Minute), Type: Ordered, Text: "f", Operator: &Operator{UID: 1000, User: "eve"}})
	for name, tc := range map[string]struct {
		Filter
		want string
	}{
		"type":              {Filter{Types: []Type{Held, NACK}}, "[a c]"},
		"upstream":          {Filter{Upstream: "east"}, "[a d]"},
		"client":            {Filter{Client: "istiod"}, "[c]"},
		"since":             {Filter{Since: began.Add(2 * time.Minute)}, "[c d e f]"},
		"until":             {Filter{Until: began.Add(time.Minute)}, "[a]"},
		"kind":              {Filter{Kinds: []mirror.Kind{entry("").Kind}}, "[1 changed e]"},
		"another kind":      {Filter{Kinds: []mirror.Kind{mirror.MeshConfig}}, "[e]"},
		"namespace":         {Filter{Namespace: "shop"}, "[1 changed e]"},
		"text in a name":    {Filter{Text: "SHOP/db"}, "[1 changed]"},
		"text in a reason":  {Filter{Text: "40 OF"}, "[a]"},
		"orders":            {Filter{Orders: true}, "[f]"},
		"several at a time": {Filter{Upstream: "east", Types: []Type{Frozen}}, "[d]"},
	} {
		if got := fmt.Sprint(texts(j.Read(Query{Filter: tc.Filter}).Events)); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestToolsAreLeftOutAndCounted: only that they came and went, and once over all pages. A client that takes
// their name hides nobody else.
func TestToolsAreLeftOutAndCounted(t *testing.T) {
	j := New()
	start := j.Newest().Seq
	client := func(kind Type, tool bool, text string) {
		j.Record(Event{Type: kind, By: ByClient, Client: "c", Tool: tool, Text: text})
	}
	j.Record(order("a"))
	for range 3 {
		client(Connected, true, "tool")
		client(Gone, true, "tool")
	}
	j.Record(order("b"))
	client(Connected, false, "c")
	client(NACK, true, "d")
	client(Connected, true, "tool")
	hidden := Filter{NoTools: true}
	for name, q := range map[string]Query{
		"backwards": {Filter: hidden, Limit: 2},
		"forwards":  {Filter: hidden, Limit: 2, After: start},
		"at once":   {Filter: hidden},
	} {
		var all []string
		tools := 0
		for more := true; more; {
			p := j.Read(q)
			tools += p.Tools
			if q.After > 0 {
				all, q.After = append(all, texts(p.Events)...), p.Next
			} else {
				all, q.Before = append(texts(p.Events), all...), p.Events[0].Seq
			}
			more = p.More
		}
		if !slices.Equal(all, []string{"a", "b", "c", "d"}) || tools != 7 {
			t.Errorf("%s: %q, and %d left out", name, all, tools)
		}
	}
	if p := j.Read(Query{}); len(p.Events) != 11 || p.Tools != 0 {
		t.Errorf("with tools: %d events, %d left out", len(p.Events), p.Tools)
	}

	b := newBook()
	for i := range 2 * floodBurst {
		b.record(began, Event{Type: Connected, By: ByClient, Client: "c", Tool: i != floodBurst+3})
	}
	b.tick(began, true)
	if e := b.at(b.n - 1); e.Count != floodBurst || hidden.leavesOut(e) {
		t.Errorf("a client among tools is hidden: %+v", e)
	}
}

// TestFollowersAreWoken by new events and by late stages, and by nothing else.
func TestFollowersAreWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New()
		var followed []*Change
		j.OnChange(func(c *Change) { followed = append(followed, c) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		c := j.From(j.Newest().Seq)
		news := func() (events, stages []Event) {
			select {
			case <-j.Changed():
			default:
			}
			var missed bool
			if events, stages, c, missed = j.Next(Filter{}, c, 0); missed {
				t.Error("something was missed")
			}
			return events, stages
		}
		j.Record(changed("east", "a"))
		j.Record(changed("east", "b"))
		j.Record(changed("east", "c"))
		if events, stages := news(); len(events) != 1 || len(stages) != 0 {
			t.Fatalf("%v %v", events, stages)
		}
		woken := j.Changed()
		if len(followed) != 2 {
			t.Fatalf("%d changes are followed, want the first, and the first of those that wait", len(followed))
		}
		for _, f := range followed {
			f.Reach(func(s *Stages) { s.Merged, s.Clients = began, 3 })
			f.Settle()
		}
		<-woken
		if events, stages := news(); len(events) != 0 || len(stages) != 1 || stages[0].Stages.Clients != 3 {
			t.Errorf("%v %v", events, stages)
		}
		<-j.Changed() // the second is over
		events, stages := news()
		if len(events) != 1 || len(stages) != 0 || events[0].Resources.Changed != 2 || events[0].Stages.Clients != 3 {
			t.Errorf("%+v %v", events, stages)
		}
		woken = j.Changed()
		await.Pass(time.Hour)
		select {
		case <-woken:
			t.Error("woken for nothing")
		default:
		}
		j.Record(changed("east", "d"))
		j.Record(changed("east", "e"))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if events, _ := news(); len(events) != 2 {
			t.Errorf("%d events at the end", len(events))
		}
	})
}

// TestTheDiskGetsEachEventOnce, late stages too, and again what it could not keep.
func TestTheDiskGetsEachEventOnce(t *testing.T) {
	j := New()
	var followed []*Change
	j.OnChange(func(c *Change) { followed = append(followed, c) })
	var disk []byte
	flush := func(kept bool) int {
		out := j.Take()
		if j.Done(kept); kept {
			disk = append(disk, out...)
		}
		return bytes.Count(out, []byte("\n"))
	}
	j.Record(changed("east", "a"))
	j.Record(order("b"))
	for i, want := range []int{2, 2, 0} {
		if n := flush(i > 0); n != want {
			t.Errorf("flush %d has %d lines, want %d", i, n, want)
		}
	}
	followed[0].Reach(func(s *Stages) { s.Pushed = began })
	followed[0].Settle()
	for i, want := range []int{1, 1, 0} {
		if n := flush(i > 0); n != want {
			t.Errorf("flush %d of stages has %d lines, want %d", i, n, want)
		}
	}
	j.Record(order("c"))
	if n := flush(true); n != 1 {
		t.Errorf("%d lines", n)
	}

	lines := bytes.Split(disk, []byte("\n"))
	lines = append(lines[:len(lines)-1], []byte(`{"event":{"seq":1`), []byte("nonsense"))
	again := New()
	if bad := again.Load(lines); bad != 2 {
		t.Errorf("%d bad lines", bad)
	}
	want, got := j.Read(Query{}).Events, again.Read(Query{}).Events
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if out := again.Take(); len(out) > 0 {
		t.Errorf("the disk gets again what it has: %s", out)
	}
	again.Record(order("d"))
	if got := again.Read(Query{After: want[2].Seq}).Events; len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// TestTheDiskGetsALongJournalInParts: who records something waits for one of them at most. A part that
// could not be kept comes again.
func TestTheDiskGetsALongJournalInParts(t *testing.T) {
	j := New()
	for i := range 10_000 {
		j.Record(order(fmt.Sprint(i)))
	}
	var disk []byte
	for attempt := 0; ; attempt++ {
		out := j.Take()
		kept := attempt%2 == 1
		if j.Done(kept); len(out) == 0 {
			break
		}
		if len(out) > maxTaken+1<<10 {
			t.Fatalf("a part of %d bytes", len(out))
		}
		if kept {
			disk = append(disk, out...)
		}
	}
	again := New()
	if bad := again.Load(bytes.Split(bytes.TrimSpace(disk), []byte("\n"))); bad != 0 || again.book.n != 10_000 {
		t.Errorf("%d events and %d bad lines", again.book.n, bad)
	}
}
