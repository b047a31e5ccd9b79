// Package notify sends events to receivers: webhooks, Alertmanager, Slack.
//
// It reads the journal by number and keeps there how far each receiver has got, so that each event
// that a receiver wants reaches it at least once, over restarts too. Its queue is the journal: a
// receiver that is down costs nothing but a number, and delays nobody.
//
// The package must not know who makes events. Secrets (URLs, tokens) are in files that are read for
// each attempt, and never in an error or a log line.
package notify

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"meshrelay/config"
	"meshrelay/events"
)

const (
	// maxBatch is how many events go in one request.
	maxBatch = 20
	// pause is between two requests to a receiver.
	pause = time.Second
	// firstRetry and lastRetry bound the time between attempts.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// maxRefusals is how often a receiver may refuse a request before the relay gives it up.
	maxRefusals = 3
	// reader begins the names under which the journal knows receivers.
	reader = "notify/"
)

// Options are the parts of a Notifier. All are required.
type Options struct {
	Journal *events.Journal
	// Relay is the name of this relay in notifications.
	Relay  string
	Logger *slog.Logger
	// Lasting returns a function that reports whether what an event of a type has begun, of an upstream
	// or of none, lasts now. Nil: nobody knows, and no alert is renewed.
	Lasting func() func(begun events.Type, upstream string) bool
}

// Notifier tells the receivers of a config of events. Its methods may be called from any goroutine.
type Notifier struct {
	options Options
	changed chan struct{} // one slot: the receivers are others
	renewal time.Duration // renewEvery, but in tests

	sent, failed, dropped *prometheus.CounterVec

	mu        sync.Mutex // guards all below
	receivers []config.Notify
	troubles  map[string]trouble // of receivers that are not reached, by name
}

// trouble is why a receiver is not reached.
type trouble struct {
	since time.Time
	text  string
}

// New returns a Notifier of some receivers. A receiver that the journal does not know is told of what
// happens from now on.
func New(o Options, receivers []config.Notify) *Notifier {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"receiver"})
	}
	n := &Notifier{
		options: o, changed: make(chan struct{}, 1), renewal: renewEvery, troubles: map[string]trouble{},
		sent:    counter("relay_notify_events_total", "Events that a receiver was told of."),
		failed:  counter("relay_notify_failures_total", "Requests to a receiver that have failed. They are tried again."),
		dropped: counter("relay_notify_dropped_events_total", "Events that a receiver was not told of, as it calls them wrong."),
	}
	n.SetReceivers(receivers)
	return n
}

// SetReceivers replaces the receivers. Those that stay go on where they are.
func (n *Notifier) SetReceivers(receivers []config.Notify) {
	names := map[string]bool{}
	newest := n.options.Journal.Newest().Seq
	for _, r := range receivers {
		names[reader+r.Name] = true
		if _, known := n.options.Journal.Reader(reader + r.Name); !known {
			n.options.Journal.SetReader(reader+r.Name, newest)
		}
		for _, c := range []*prometheus.CounterVec{n.sent, n.failed, n.dropped} {
			c.WithLabelValues(r.Name)
		}
	}
	n.options.Journal.KeepReaders(names)
	n.mu.Lock()
	n.receivers, n.troubles = slices.Clone(receivers), map[string]trouble{}
	n.mu.Unlock()
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Run tells the receivers until ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		n.mu.Lock()
		receivers := n.receivers
		n.mu.Unlock()
		running, stop := context.WithCancel(ctx)
		var group errgroup.Group
		for _, r := range receivers {
			group.Go(func() error { n.run(running, r); return nil })
		}
		select {
		case <-n.changed:
		case <-ctx.Done():
		}
		stop()
		_ = group.Wait()
	}
	return nil
}

// Notes returns which receivers are not reached, a line each.
func (n *Notifier) Notes() (notes []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.receivers {
		if t, ok := n.troubles[r.Name]; ok {
			notes = append(notes, fmt.Sprintf("notify: receiver %s not reached since %s: %s", r.Name, t.since.UTC().Format(time.RFC3339), t.text))
		}
	}
	return notes
}

// Describe implements prometheus.Collector.
func (n *Notifier) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []*prometheus.CounterVec{n.sent, n.failed, n.dropped} {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (n *Notifier) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []*prometheus.CounterVec{n.sent, n.failed, n.dropped} {
		c.Collect(ch)
	}
}

// run tells one receiver until ctx ends.
func (n *Notifier) run(ctx context.Context, r config.Notify) {
	journal, name := n.options.Journal, reader+r.Name
	wants := wanted(r)
	var renewal <-chan time.Time
	var last lasting
	if r.Format == config.NotifyAlertmanager && n.options.Lasting != nil {
		after, _ := journal.Reader(name)
		last = n.lastingOf(r, wants, after)
		ticker := time.NewTicker(n.renewal)
		defer ticker.Stop()
		renewal = ticker.C
	}
	for ctx.Err() == nil {
		changed := journal.Changed() // before it is read
		after, _ := journal.Reader(name)
		page := journal.Read(events.Query{Filter: events.Filter{Types: wants}, After: max(after, 1), Limit: maxBatch})
		if page.Missed && after > 0 {
			n.options.Logger.Warn("events not sent, the journal does not keep them any more", "receiver", r.Name, "after", after)
		}
		if batch := ofUpstreams(page.Events, r.Upstreams); len(batch) > 0 {
			if !n.deliver(ctx, r, len(batch), func(now time.Time) any { return payload(r, n.options.Relay, batch, now) }) {
				return
			}
			if last != nil {
				last.note(r, batch)
			}
			wait(ctx, pause)
		}
		journal.Advance(name, page.Next)
		if page.More {
			continue
		}
		select {
		case <-changed:
		case <-renewal:
			if len(last) > 0 {
				n.renew(ctx, r, last)
			}
		case <-ctx.Done():
		}
	}
}

func ofUpstreams(all []events.Event, names []string) []events.Event {
	return slices.DeleteFunc(all, func(e events.Event) bool {
		return len(names) > 0 && e.Upstream != "" && !slices.Contains(names, e.Upstream)
	})
}

// deliver sends a document to a receiver, and tries again until the receiver takes it or has refused it
// too often. It returns false when ctx ends first.
func (n *Notifier) deliver(ctx context.Context, r config.Notify, told int, body func(now time.Time) any) bool {
	refusals := 0
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		err := send(ctx, r, body(time.Now()))
		if ctx.Err() != nil {
			return err == nil // what was taken just now is not sent again
		}
		switch {
		case err == nil:
			n.sent.WithLabelValues(r.Name).Add(float64(told))
			n.note(r.Name, nil)
			return true
		case isRefusal(err):
			refusals++
		}
		n.failed.WithLabelValues(r.Name).Inc()
		n.note(r.Name, err)
		if refusals >= maxRefusals {
			n.dropped.WithLabelValues(r.Name).Add(float64(told))
			n.options.Logger.Error("notification given up, the receiver calls it wrong", "receiver", r.Name, "events", told, "err", err)
			return true
		}
		if !wait(ctx, delay/2+rand.N(delay)) { //nolint:gosec // the delay is no secret
			return false
		}
	}
}

// note notes whether a receiver is reached, and logs what is new.
func (n *Notifier) note(name string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was, had := n.troubles[name]
	if err == nil {
		if delete(n.troubles, name); had {
			n.options.Logger.Info("receiver of notifications reached again", "receiver", name, "since", was.since)
		}
		return
	}
	if was.text != err.Error() {
		n.options.Logger.Warn("notification not sent, tried again", "receiver", name, "err", err)
	}
	if !had {
		was.since = time.Now()
	}
	n.troubles[name] = trouble{was.since, err.Error()}
}

// wait is false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ends has, by the type of an event that begins an alert, the types that end it.
var ends = map[events.Type][]events.Type{
	events.Held:    {events.Returned, events.Released, events.CarriedOut, events.Frozen, events.RolledBack},
	events.Lost:    {events.Regained, events.Synced},
	events.Denied:  {events.Regained, events.Synced},
	events.Failed:  {events.Regained, events.Synced},
	events.Stale:   {events.Regained, events.Synced},
	events.Expired: {events.Regained, events.Synced},
	events.Frozen:  {events.Unfrozen, events.Thawed},

	events.RolledBack:    {events.Unfrozen, events.Thawed},
	events.ConfigRefused: {events.Config},
}

// wanted returns the types of events that a receiver gets. An Alertmanager gets the ends of alerts, too.
func wanted(r config.Notify) (types []events.Type) {
	for _, word := range r.On {
		t := events.Type(word)
		types = append(types, t)
		if r.Format == config.NotifyAlertmanager {
			types = append(types, ends[t]...)
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// Commands returns the commands for an event: the one that shows more first, then those that act.
func Commands(e events.Event) (commands []string) {
	if e.Command != "" {
		commands = append(commands, e.Command)
	}
	if e.Type == events.Held {
		commands = append(commands, fmt.Sprintf(`relay release %s --hold %s --reason "…"`, e.Upstream, cmp.Or(e.Hold, "ID")),
			fmt.Sprintf(`relay freeze %s --for 4h --reason "…"`, e.Upstream))
	}
	return commands
}
