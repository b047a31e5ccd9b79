package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

const (
	// maxConditions bounds the resources whose condition is to be written.
	maxConditions = 65_536
	// conditionLook is the pause between two looks at them. looksMost bounds those that one look judges.
	conditionLook = 200 * time.Millisecond
	looksMost     = 100
	// conditionRest is the longest time between two looks at one resource.
	conditionRest = time.Minute
	maxMessage    = 512
)

// conditions writes what is known of the distribution of resources into the status of their objects, for upstreams with
// kubernetes.status. A resource is looked at after its upstream's interval without a change, and then until all
// clients have its content: what has been distributed stays so, until the content changes.
type conditions struct {
	relay  *Relay
	log    *slog.Logger
	notes  *loglimit.Limit
	reads  *rate.Limiter
	writes *rate.Limiter
	counts *prometheus.CounterVec
	on     atomic.Pointer[map[string]time.Duration] // intervals by upstream

	mu  sync.Mutex // guards all below
	due map[mirror.Key]*dueCondition
}

// dueCondition is a resource whose condition is to be written.
type dueCondition struct {
	upstream, version string
	at                time.Time
	pause             time.Duration // until the next look
	told              upstreams.Condition
}

func newConditions(r *Relay) *conditions {
	c := &conditions{
		relay: r, log: r.log, notes: loglimit.New(5, 10*time.Second), reads: rate.NewLimiter(25, 25), writes: rate.NewLimiter(5, 20), due: map[mirror.Key]*dueCondition{},
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "relay_status_writes_total", Help: "Conditions for objects of upstreams with kubernetes.status, by result: written, unchanged, outdated, deferred, other or failed.",
		}, []string{"result"}),
	}
	for _, result := range []upstreams.Reported{upstreams.Written, upstreams.Unchanged, upstreams.Outdated, upstreams.Deferred, upstreams.NotLeader, upstreams.Failed} {
		c.counts.WithLabelValues(string(result))
	}
	c.on.Store(&map[string]time.Duration{})
	return c
}

// generation returns the metadata.generation of the object of a served resource, and whether the relay has its content.
func (r *Relay) generation(ctx context.Context, key mirror.Key) (generation int64, held bool, err error) {
	served := r.aggregate.Get(key)
	if served == nil {
		return 0, false, errors.New("it is not served")
	}
	source, original, err := r.manager.Live(served.Source(), key)
	if err != nil {
		return 0, false, err
	}
	return source.Generation(ctx, original)
}

// changed notes a change of the merged resources.
func (c *conditions) changed(change mirror.Change) {
	if on := *c.on.Load(); len(on) > 0 && change.Visible() {
		c.mark(change.Key, change.New, on, time.Now())
	}
}

// mark makes the condition of a resource due, in place of that of its former content.
func (c *conditions) mark(key mirror.Key, r *mirror.Resource, on map[string]time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.due, key)
	if r == nil {
		return
	}
	interval, reports := on[r.Source()]
	switch {
	case !reports:
	case len(c.due) >= maxConditions:
		c.notes.Warn(c.log, "condition not written, too many resources change", "resource", key, "most", maxConditions)
	default:
		c.due[key] = &dueCondition{upstream: r.Source(), version: r.Version(), at: now.Add(interval), pause: interval}
	}
}

// run writes conditions until ctx ends.
func (c *conditions) run(ctx context.Context) error {
	ticks := time.NewTicker(conditionLook)
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
	on, was := c.relay.manager.Reporting(), *c.on.Load()
	c.on.Store(&on)
	for upstream := range on {
		if _, known := was[upstream]; known {
			continue
		}
		for _, kind := range c.relay.aggregate.Kinds() {
			for _, r := range c.relay.aggregate.List(kind, "") {
				if r.Source() == upstream {
					c.mark(r.Key(), r, on, now)
				}
			}
		}
	}
}

// look judges some resources that are due.
func (c *conditions) look(ctx context.Context, now time.Time) {
	var usable map[string]bool
	for _, key := range c.next(now) {
		if usable == nil {
			usable = map[string]bool{}
			for _, u := range c.relay.manager.Status() {
				usable[u.Name] = admin.Writable(u)
			}
		}
		c.one(ctx, key, usable)
		if ctx.Err() != nil {
			return
		}
	}
}

// next returns the resources that are due, the oldest first.
func (c *conditions) next(now time.Time) (keys []mirror.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, d := range c.due {
		if !d.at.After(now) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b mirror.Key) int {
		if n := c.due[a].at.Compare(c.due[b].at); n != 0 {
			return n
		}
		return mirror.CompareKeys(a, b)
	})
	keys = keys[:min(len(keys), looksMost)]
	for _, key := range keys {
		d := c.due[key]
		d.pause = min(2*d.pause, max(conditionRest, d.pause))
		d.at = now.Add(d.pause)
	}
	return keys
}

// one writes the condition of a resource, if it has another one.
func (c *conditions) one(ctx context.Context, key mirror.Key, usable map[string]bool) {
	c.mu.Lock()
	due, was := c.due[key], dueCondition{}
	if due != nil {
		was = *due
	}
	c.mu.Unlock()
	if !usable[was.upstream] {
		return
	}
	distribution := c.relay.server.Distribution(key)
	is, known := conditionOf(distribution)
	if distribution.Version != was.version || !known || is == was.told {
		return
	}
	result, err := upstreams.Deferred, error(nil)
	if c.reads.Allow() {
		result, err = c.report(ctx, was.upstream, key, is)
	}
	switch c.counts.WithLabelValues(string(result)).Inc(); {
	case err != nil && ctx.Err() == nil:
		c.notes.Warn(c.log, "condition not written", "upstream", was.upstream, "resource", key, "err", err)
	case result == upstreams.Deferred:
		c.again(key, due)
	case result == upstreams.Written, result == upstreams.Unchanged:
		c.told(key, due, is)
	}
}

func (c *conditions) report(ctx context.Context, upstream string, key mirror.Key, is upstreams.Condition) (upstreams.Reported, error) {
	source, original, err := c.relay.manager.Live(upstream, key)
	if err != nil {
		return upstreams.Outdated, nil //nolint:nilerr // the object or the upstream has gone: a change follows
	}
	is.LastTransitionTime = time.Now().UTC().Truncate(time.Second)
	return source.Report(ctx, original, is, c.writes.Allow)
}

// told notes that an object has a condition. With True, that is the end: it stays until the content changes.
func (c *conditions) told(key mirror.Key, due *dueCondition, is upstreams.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if due.told = is; is.Status == "True" && c.due[key] == due {
		delete(c.due, key)
	}
}

// again makes a resource due at the next look.
func (c *conditions) again(key mirror.Key, due *dueCondition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due[key] == due {
		due.at, due.pause = time.Now(), due.pause/2
	}
}

// conditionOf returns the condition for a distribution. known is false while no client sees the resource. Messages have
// no numbers: else they would change with each client.
func conditionOf(d downstream.Distribution) (c upstreams.Condition, known bool) {
	switch {
	case d.Refuses > 0:
		who := d.Refusing[0]
		message := "refused by " + who.Name()
		if who.Error != "" {
			message += ": " + who.Error
		}
		return upstreams.Condition{Status: "False", Reason: "Rejected", Message: text.Shorten(message, maxMessage)}, true
	case d.Pushing || d.Lacks > 0:
		return upstreams.Condition{Status: "False", Reason: "Pending", Message: "not all clients have it"}, true
	case d.Has == 0:
		return c, false
	}
	return upstreams.Condition{Status: "True", Reason: "Distributed", Message: "all clients have it"}, true
}
