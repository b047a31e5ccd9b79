package relay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/downstream"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

const (
	// conditionLook is the pause between two looks at them. looksMost bounds those that one look judges.
	conditionLook = 200 * time.Millisecond
	looksMost     = 5
	// conditionAfter is how long a resource is unchanged before the first look at it. The pauses grow to conditionRest.
	conditionAfter = 5 * time.Second
	conditionRest  = time.Minute
	maxMessage     = 512
)

// conditions writes what is known of the distribution of resources into the status of their objects, for upstreams with
// kubernetes.status. A resource is looked at after a time without a change, and then until all clients have
// its content: what has been distributed stays so, until the content changes.
type conditions struct {
	relay  *Relay
	after  time.Duration // conditionAfter, but in tests
	every  time.Duration // conditionLook, but in tests
	notes  *loglimit.Limit
	writes *rate.Limiter
	counts *prometheus.CounterVec

	mu  sync.Mutex      // guards all below
	on  map[string]bool // upstreams
	due map[mirror.Key]*dueCondition
}

// dueCondition is a resource whose condition is to be written. Once it is due, only run uses the fields after version.
type dueCondition struct {
	key               mirror.Key
	upstream, version string
	at                time.Time
	pause             time.Duration // until the next look
	told              metav1.Condition
}

func newConditions(r *Relay) *conditions {
	c := &conditions{
		relay: r, after: conditionAfter, every: conditionLook, notes: loglimit.New(5, 10*time.Second), writes: rate.NewLimiter(5, 1), due: map[mirror.Key]*dueCondition{},
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "relay_status_writes_total", Help: "Conditions for objects of upstreams with kubernetes.status, by result: written, unchanged, outdated, absent or failed.",
		}, []string{"result"}),
	}
	for _, result := range []upstreams.Reported{upstreams.Written, upstreams.Unchanged, upstreams.Outdated, upstreams.Absent, upstreams.Failed} {
		c.counts.WithLabelValues(string(result))
	}
	return c
}

// changed notes a change of the merged resources.
func (c *conditions) changed(change mirror.Change) {
	if change.Visible() {
		c.mark(change.Key, change.New, time.Now())
	}
}

// mark makes the condition of a resource due, in place of that of its former content.
func (c *conditions) mark(key mirror.Key, r *mirror.Resource, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.due, key)
	if r != nil && c.on[r.Source()] {
		c.due[key] = &dueCondition{key: key, upstream: r.Source(), version: r.Version(), at: now.Add(c.after), pause: c.after}
	}
}

// run writes conditions until ctx ends.
func (c *conditions) run(ctx context.Context) error {
	ticks := time.NewTicker(c.every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticks.C:
			c.follow(now)
			c.look(ctx, now)
		}
	}
}

// follow marks all resources of upstreams whose conditions are written since now.
func (c *conditions) follow(now time.Time) {
	on := reporting(c.relay.config.Load())
	c.mu.Lock()
	was := c.on
	c.on = on
	c.mu.Unlock()
	for upstream := range on {
		if was[upstream] {
			continue
		}
		for _, kind := range c.relay.aggregate.Kinds() {
			for _, r := range c.relay.aggregate.List(kind, "") {
				if r.Source() == upstream {
					c.mark(r.Key(), r, now)
				}
			}
		}
	}
}

// look judges some resources that are due, unless the relay may not write into the cluster of their upstream: the
// upstream is in contact, has told everything since the start, and nothing of it is held, frozen or rolled back.
func (c *conditions) look(ctx context.Context, now time.Time) {
	due := c.next(now)
	if len(due) == 0 {
		return
	}
	usable := map[string]bool{}
	for _, u := range c.relay.manager.Status() {
		usable[u.Name] = writable(u)
	}
	for _, d := range due {
		if usable[d.upstream] && ctx.Err() == nil {
			c.one(ctx, d)
		}
	}
}

func writable(u upstreams.Status) bool {
	return u.InContact && u.Synced && u.Complete && !u.Stale && u.Held == nil && u.Frozen == nil
}

// next returns some resources that are due: those whose content has changed before those that were looked at, which may be
// many that no client sees.
func (c *conditions) next(now time.Time) (due []*dueCondition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	order := func(a, b *dueCondition) int {
		return cmp.Or(cmp.Compare(a.pause, b.pause), a.at.Compare(b.at))
	}
	for _, d := range c.due {
		if d.at.After(now) || len(due) == looksMost && order(due[looksMost-1], d) <= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(due, d, order)
		due = slices.Insert(due, i, d)
		due = due[:min(len(due), looksMost)]
	}
	for _, d := range due {
		d.pause = min(2*d.pause, conditionRest)
		d.at = now.Add(d.pause)
	}
	return due
}

// one writes the condition of a resource, if it has another one. With True, or without a place for it, that is the end.
func (c *conditions) one(ctx context.Context, d *dueCondition) {
	distribution := c.relay.server.Distribution(d.key)
	is, known := conditionOf(distribution)
	if distribution.Version != d.version || !known || is == d.told {
		return
	}
	result, err := c.relay.manager.Report(ctx, d.upstream, d.key, is, c.writes.Wait)
	c.counts.WithLabelValues(string(result)).Inc()
	if err != nil && ctx.Err() == nil {
		c.notes.Warn(c.relay.log, "condition not written", "upstream", d.upstream, "resource", d.key, "err", err)
	}
	if result == upstreams.Outdated || result == upstreams.Failed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.told = is; (is.Status == "True" || result == upstreams.Absent) && c.due[d.key] == d {
		delete(c.due, d.key)
	}
}

// conditionOf returns the condition for a distribution. known is false while no client sees the resource. Messages have
// no numbers: else they would change with each client.
func conditionOf(d downstream.Distribution) (c metav1.Condition, known bool) {
	switch {
	case d.Refuses > 0:
		who := d.Refusing[0]
		message := "refused by " + who.Name()
		if who.Error != "" {
			message += ": " + who.Error
		}
		return metav1.Condition{Status: "False", Reason: "Rejected", Message: text.Shorten(message, maxMessage)}, true
	case d.Pushing || d.Lacks > 0:
		return metav1.Condition{Status: "False", Reason: "Pending", Message: "not all clients have it"}, true
	case d.Has == 0:
		return c, false
	}
	return metav1.Condition{Status: "True", Reason: "Distributed", Message: "all clients have it"}, true
}
