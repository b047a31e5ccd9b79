package notify

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/config"
	"meshrelay/events"
)

// TestAnAlertLastsAsLongAsWhatItTells: it is renewed long before it would end, also by the process after
// a restart, and ends with what it tells, also where no event tells that.
func TestAnAlertLastsAsLongAsWhatItTells(t *testing.T) {
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	h := hook("am", server.URL)
	h.Format, h.On = config.NotifyAlertmanager, []string{"held", "lost", "nack"}
	j := events.New(events.Limits{})
	var heldLasts atomic.Bool
	heldLasts.Store(true)
	n := New(Options{Journal: j, Relay: "hub", Logger: slog.New(slog.DiscardHandler), Lasting: func() func(events.Type, string) bool {
		return func(begun events.Type, _ string) bool { return begun == events.Held && heldLasts.Load() }
	}}, []config.Notify{h})
	j.Record(held("7f3a"))
	for upstream, types := range map[string][]events.Type{"west": {events.Lost}, "south": {events.Lost, events.Regained}} {
		for _, one := range types {
			j.Record(events.Event{Type: one, Upstream: upstream})
		}
	}
	j.Record(events.Event{Type: events.NACK, Client: "a"})
	for name, until := range map[string]uint64{"all": j.Newest().Seq, "none": 1} {
		l := n.lastingOf(h, wanted(h), until)
		_, hasHold := l[topic{events.Held, "east"}]
		_, hasLost := l[topic{events.Lost, "west"}]
		if told := name == "all"; hasHold != told || hasLost != told || len(l) != map[bool]int{true: 2}[told] {
			t.Errorf("of %s that were told these last: %v", name, l)
		}
	}
	began := time.Now().Add(-3 * time.Hour)
	l := lasting{{events.Held, "east"}: {Type: events.Held, Upstream: "east", Time: began}, {events.Lost, "west"}: {Type: events.Lost, Upstream: "west", Time: began}}
	sent := func() map[string]alert {
		var all []alert
		if err := json.Unmarshal(<-r.bodies, &all); err != nil {
			t.Fatal(err)
		}
		out := map[string]alert{}
		for _, a := range all {
			out[a.Labels["alertname"]] = a
		}
		return out
	}
	if !n.renew(t.Context(), h, l) {
		t.Fatal("not told")
	}
	got := sent()
	if a := got["RelayHeld"]; !a.StartsAt.Equal(began) || time.Until(a.EndsAt) < 2*renewEvery {
		t.Errorf("what lasts: %+v", a)
	}
	if a := got["RelayLost"]; time.Until(a.EndsAt) > 0 || !a.EndsAt.After(began) {
		t.Errorf("what has ended without an event: %+v", a)
	}
	if len(l) != 1 {
		t.Errorf("what is told again: %v", l)
	}
	heldLasts.Store(false)
	if !n.renew(t.Context(), h, l) || len(l) != 0 || len(sent()) != 1 {
		t.Errorf("after the end: %v", l)
	}
	if got := testutil.ToFloat64(n.sent.WithLabelValues("am")); got != 0 {
		t.Errorf("%v events told: a renewal is none", got)
	}
}

// TestARunningNotifierRenewsAlerts until what they tell has ended, and then once more.
func TestARunningNotifierRenewsAlerts(t *testing.T) {
	r := newReceiver()
	server := httptest.NewServer(r)
	defer server.Close()
	h := hook("am", server.URL)
	h.Format = config.NotifyAlertmanager
	var lasts atomic.Bool
	lasts.Store(true)
	j := events.New(events.Limits{})
	n := New(Options{Journal: j, Relay: "hub", Logger: slog.New(slog.DiscardHandler), Lasting: func() func(events.Type, string) bool {
		return func(events.Type, string) bool { return lasts.Load() }
	}}, []config.Notify{h})
	n.renewal = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	j.Record(held("7f3a"))
	for told := 0; ; told++ {
		var all []alert
		var body []byte
		select {
		case body = <-r.bodies:
		case <-time.After(patience):
			t.Fatal("nothing is received")
		}
		if err := json.Unmarshal(body, &all); err != nil || len(all) != 1 || all[0].Annotations["hold"] != "7f3a" {
			t.Fatalf("%+v: %v", all, err)
		}
		if told == 1 {
			lasts.Store(false)
		}
		if ended := time.Until(all[0].EndsAt) <= 0; ended && told < 2 {
			t.Error("it ends and lasts")
		} else if ended {
			break
		} else if told > 5 {
			t.Fatal("it lasts and has ended")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestALateAlertIsNoneThatHasEnded: a receiver that was away for hours is told of what lasts.
func TestALateAlertIsNoneThatHasEnded(t *testing.T) {
	e := held("a")
	e.Time = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	h := hook("am", "")
	h.Format = config.NotifyAlertmanager
	now := e.Time.Add(5 * time.Hour)
	if a := payload(h, "hub", []events.Event{e}, now).([]alert)[0]; !a.EndsAt.Equal(now.Add(alertLasts)) || !a.StartsAt.Equal(e.Time) {
		t.Errorf("%+v", a)
	}
}
