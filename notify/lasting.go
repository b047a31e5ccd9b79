package notify

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/events"
)

const (
	// renewEvery is how often an Alertmanager is told again of what lasts: less than alertLasts, so that
	// some requests may fail.
	renewEvery = 15 * time.Minute
	// maxLasting bounds what is remembered of a receiver. Of more, an alert lasts for alertLasts.
	maxLasting = 10_000
)

// topic is what an alert is about: a type of events that begin something, and an upstream or none.
type topic struct {
	begins   events.Type
	upstream string
}

// lasting has the last event of each topic that no event has ended, for one Alertmanager.
type lasting map[topic]events.Event

// note takes in events, in their order.
func (l lasting) note(r config.Notify, batch []events.Event) {
	for _, e := range batch {
		for _, word := range r.On {
			about := topic{events.Type(word), e.Upstream}
			switch {
			case about.begins == e.Type && len(ends[e.Type]) > 0 && len(l) < maxLasting:
				l[about] = e
			case slices.Contains(ends[about.begins], e.Type):
				delete(l, about)
			}
		}
	}
}

// lastingOf returns what lasts of the events up to a number that the journal still has: a former process
// may have told of it.
func (n *Notifier) lastingOf(r config.Notify, wants []events.Type, until uint64) lasting {
	l := lasting{}
	for after := uint64(1); ; {
		page := n.options.Journal.Read(events.Query{Filter: events.Filter{Types: wants}, After: after, Limit: events.MaxPage})
		all := slices.DeleteFunc(page.Events, func(e events.Event) bool { return e.Seq > until })
		l.note(r, ofUpstreams(all, r.Upstreams))
		if !page.More || page.Next >= until {
			return l
		}
		after = page.Next
	}
}

// renew tells a receiver again of what lasts, and of what has ended without an event: a restart, or a
// reload that removes an upstream, has none for it. It returns false when ctx has ended.
func (n *Notifier) renew(ctx context.Context, r config.Notify, l lasting) bool {
	still, over := n.options.Lasting(), map[topic]bool{}
	for about := range l {
		over[about] = !still(about.begins, about.upstream)
	}
	all := slices.SortedFunc(maps.Keys(l), func(a, b topic) int {
		return cmp.Or(cmp.Compare(a.upstream, b.upstream), cmp.Compare(a.begins, b.begins))
	})
	for some := range slices.Chunk(all, maxBatch) {
		body := func(now time.Time) any {
			var alerts []alert
			for _, about := range some {
				a := begun(n.options.Relay, about.begins, l[about], now)
				if over[about] {
					a.EndsAt = now
				}
				alerts = append(alerts, a)
			}
			return alerts
		}
		if !n.deliver(ctx, r, 0, body) || !wait(ctx, pause) {
			return false
		}
	}
	maps.DeleteFunc(l, func(about topic, _ events.Event) bool { return over[about] })
	return true
}

// Lasting returns the types of events that begin something which another event ends.
func Lasting() []events.Type { return slices.Sorted(maps.Keys(ends)) }
