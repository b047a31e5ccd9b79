package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"meshrelay/events"
	"meshrelay/internal/testing/await"
)

// journaled returns a fixture with a journal that has n events.
func journaled(t *testing.T, n int) (*fixture, *events.Journal) {
	t.Helper()
	j := events.New()
	f := newFixture(t, Config{}, func(d *Deps) { d.Debug.views.Events = j })
	for i := range n {
		j.Record(events.Event{Type: events.Ordered, Text: fmt.Sprint(i), Upstream: "east"})
	}
	return f, j
}

// TestEventsArePagedAndFiltered by number. A wrong parameter is an error.
func TestEventsArePagedAndFiltered(t *testing.T) {
	f, j := journaled(t, 10)
	j.Record(events.Event{Type: events.Held, Upstream: "west", Text: "x"})
	address, stop := f.running(t)
	c := Client{Address: address}
	read := func(pairs ...string) (texts []string, p events.Page) {
		q := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		p, err := c.Events(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Events {
			texts = append(texts, e.Text)
		}
		return texts, p
	}
	texts, p := read("limit", "2")
	if !slices.Equal(texts, []string{"9", "x"}) || !p.More {
		t.Errorf("%v %+v", texts, p)
	}
	if texts, _ = read("limit", "2", "before", strconv.FormatUint(p.Events[0].Seq, 10)); !slices.Equal(texts, []string{"7", "8"}) {
		t.Errorf("%v", texts)
	}
	if texts, _ = read("after", strconv.FormatUint(p.Events[0].Seq, 10)); !slices.Equal(texts, []string{"x"}) {
		t.Errorf("%v", texts)
	}
	if texts, _ = read("type", "held,released"); !slices.Equal(texts, []string{"x"}) {
		t.Errorf("%v", texts)
	}
	if texts, _ = read("upstream", "east", "since", time.Now().Add(-time.Minute).Format(time.RFC3339), "q", "3"); !slices.Equal(texts, []string{"3"}) {
		t.Errorf("%v", texts)
	}
	j.Record(events.Event{Type: events.Connected, Client: "waypoint~1.2.3.4~relay-get.shop~x-7", Tool: true, Text: "tool"})
	for _, tc := range []struct {
		parameter, value, want string
		left                   int
	}{{"tools", "", "x", 1}, {"tools", "false", "x", 1}, {"tools", "true", "tool", 0}, {"client", "relay-get", "tool", 0}, {"orders", "true", "", 0}} {
		if texts, p = read("limit", "1", tc.parameter, tc.value); strings.Join(texts, " ") != tc.want || p.Tools != tc.left {
			t.Errorf("%s=%s: %q, and %d left out, want %q and %d", tc.parameter, tc.value, texts, p.Tools, tc.want, tc.left)
		}
	}
	for _, wrong := range []string{"limit=0", "tools=maybe", "limit=1001", "after=x", "since=yesterday", "type=held,hold", "kind=nonsense", "upstrem=east", "orders=maybe"} {
		name, _, _ := strings.Cut(wrong, "=")
		if code, body, _ := f.do(t, request{path: "/debug/events?" + wrong}); code != http.StatusBadRequest || !strings.Contains(body, name) {
			t.Errorf("%s: %d %s", wrong, code, body)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestEventsAreStreamed: events after a number, new events, and late stages. Streams take no slots of debug
// documents, and have their own bound.
func TestEventsAreStreamed(t *testing.T) {
	f, j := journaled(t, 3)
	var followed []*events.Change
	j.OnChange(func(c *events.Change) { followed = append(followed, c) })
	address, stop := f.running(t)
	c := Client{Address: address}
	first, err := c.Events(t.Context(), url.Values{"limit": {"3"}})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 100)
	var streams sync.WaitGroup
	follow := func(ctx context.Context, after uint64, query url.Values) {
		streams.Go(func() {
			_ = c.FollowEvents(ctx, query, after, func(what string, e events.Event) error {
				got <- strings.TrimSpace(what + " " + e.Text)
				return nil
			})
		})
	}
	want := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			if is := await.Value(t, text, got); is != text {
				t.Errorf("%q, want %q", is, text)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	follow(ctx, first.Events[0].Seq, url.Values{"upstream": {"east"}})
	want("event 1", "event 2")
	j.Record(events.Event{Type: events.Held, Upstream: "west", Text: "not wanted"})
	j.Record(events.Event{Type: events.Changed, Upstream: "east", Text: "change"})
	want("event change")
	followed[0].Reach(func(s *events.Stages) { s.Clients = 3 })
	followed[0].Settle()
	want("stages change")
	for range maxFollowers - 1 {
		follow(ctx, j.Newest().Seq, nil)
	}
	following := func() int { return len(f.followers) }
	await.Equal(t, "all follow", maxFollowers, following)
	if err := c.FollowEvents(ctx, nil, 1, nil); err == nil || !strings.Contains(err.Error(), "too many event streams") {
		t.Errorf("one more: %v", err)
	}
	if _, err := c.Events(ctx, nil); err != nil || len(f.busy) > 0 {
		t.Errorf("streams take the slots of documents: %v", err)
	}
	cancel()
	streams.Wait()
	await.Equal(t, "the server has noticed that they have gone", 0, following)
	follow(t.Context(), 5, nil) // an old event
	want("missed")
	if err := stop(); err != nil {
		t.Error(err)
	}
	streams.Wait()
}

// TestOrdersAreInTheJournal with their operators, including refused orders. Dry runs and reads are not.
func TestOrdersAreInTheJournal(t *testing.T) {
	j := events.New()
	f, c, _ := controlled(t, Config{})
	f.deps.Debug.views.Events = j
	operator := &peer{UID: 0, PID: 1}
	for _, path := range []string{"/reload", "/upstreams/east/serve-without", "/upstreams/east/freeze?dryRun=true"} {
		if code, body, _ := f.do(t, request{method: http.MethodPost, path: path, peer: operator}); code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, body)
		}
	}
	if code, body, _ := f.do(t, request{path: "/state/backup", peer: operator}); code != http.StatusOK || !strings.Contains(f.logged.String(), "action=backup") {
		t.Fatalf("backup: %d %s\n%s", code, body, f.logged)
	}
	c.err = fmt.Errorf("disk full")
	f.do(t, request{method: http.MethodPost, path: "/upstreams/east/freeze?reason=INC-1", peer: operator})
	var got []string
	for _, e := range j.Read(events.Query{Filter: events.Filter{Orders: true}}).Events {
		got = append(got, fmt.Sprintf("%s %s %s %s %d", e.Type, e.Upstream, e.Text, e.Reason, e.Operator.UID))
	}
	want := []string{"ordered  reload  0", "ordered east serve-without  0", "ordered east freeze refused: disk full INC-1 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
