package relay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/downstream"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/sink/lease"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	conditionPause = 5 * time.Second
	requestsMost   = 25  // to API servers in a round
	looksMost      = 500 // at resources in a round
	maxMessage     = 512
)

// conditions writes whether all clients have a resource into the status of its object, for upstreams with
// kubernetes.status. What has been distributed stays so, until the content changes. Only run uses the fields.
type conditions struct {
	relay *Relay
	pause time.Duration // between two rounds
	notes *loglimit.Limit
	lease *lease.Lease // of the replica that writes; nil: the relay is alone
	all   map[mirror.Key]*condition
}

// condition is what was told of a version of a resource.
type condition struct {
	*mirror.Resource
	since time.Time
	looks int
	told  metav1.Condition
}

// conditionsLease is the Lease beside the ConfigMap with orders.
const conditionsLease = orders.Name + "-conditions"

func newConditions(r *Relay) *conditions {
	return &conditions{relay: r, pause: conditionPause, notes: loglimit.New(5, 10*time.Second)}
}

// share has one of all replicas write, which holds a Lease that orders nothing.
func (c *conditions) share(o lease.Options) {
	o.Check, o.Begin = func(context.Context) error { return nil }, func() (bool, error) { return true, nil }
	o.Terms, o.Keep = func() lease.Terms { return lease.Terms{} }, func(lease.Terms, lease.Terms) error { return nil }
	o.Logger = c.relay.log
	c.lease = lease.New(o)
}

// run writes conditions until ctx ends.
func (c *conditions) run(ctx context.Context) error {
	var leases sync.WaitGroup
	defer leases.Wait()
	begin := sync.OnceFunc(func() { leases.Go(func() { _ = c.lease.Run(ctx) }) }) // after an error, its time runs out
	rounds := time.NewTicker(c.pause)
	defer rounds.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-rounds.C:
			on := map[string]bool{}
			for _, u := range c.relay.config.Load().Upstreams {
				if tellsConditions(u) {
					on[u.Name] = true
				}
			}
			if len(on) > 0 && c.lease != nil {
				begin()
			}
			requests := 0
			for _, one := range c.round(on, now) {
				if requests < requestsMost && c.look(ctx, one) {
					requests++
				}
			}
		}
	}
}

// writes reports whether this process may write.
func (c *conditions) writes() bool { return c.lease == nil || c.lease.Writable(time.Now()) }

// round returns resources that have had a version for a round, and not all clients had it: those that were looked at least,
// and changed last, first.
func (c *conditions) round(on map[string]bool, now time.Time) (due []*condition) {
	was := c.all
	if c.all = nil; len(on) == 0 || !c.writes() {
		return nil
	}
	c.all = map[mirror.Key]*condition{}
	for _, kind := range c.relay.aggregate.Kinds() {
		for _, r := range c.relay.aggregate.List(kind, "") {
			one := was[r.Key()]
			switch {
			case !on[r.Source()]:
				continue
			case one == nil || one.Version() != r.Version():
				one = &condition{Resource: r, since: now}
			case one.told.Status != "True":
				due = append(due, one)
			}
			c.all[r.Key()] = one
		}
	}
	slices.SortFunc(due, func(a, b *condition) int { return cmp.Or(a.looks-b.looks, b.since.Compare(a.since)) })
	return due[:min(len(due), looksMost)]
}

// look writes the condition of a resource, unless it has it. It reports whether there was something to write.
func (c *conditions) look(ctx context.Context, one *condition) bool {
	one.looks++
	is, known := c.of(c.relay.server.Distribution(one.Key()), one.Version())
	if !known || is == one.told {
		return false
	}
	all := c.relay.manager.Status()
	i := slices.IndexFunc(all, func(u upstreams.Status) bool { return u.Name == one.Source() })
	if i < 0 || !writable(all[i]) || !c.writes() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout) // within the time of the Lease
	defer cancel()
	told, err := c.relay.manager.Report(ctx, one.Source(), one.Key(), is)
	if told {
		one.told = is
	} else if err != nil && !errors.Is(err, context.Canceled) {
		c.notes.Warn(c.relay.log, "condition not written", "upstream", one.Source(), "resource", one.Key(), "err", err)
	}
	return true
}

// writable reports whether an upstream is in contact, has told everything since the start, and nothing of it is held, frozen
// or rolled back.
func writable(u upstreams.Status) bool {
	return u.InContact && u.Synced && u.Complete && !u.Stale && u.Held == nil && u.Frozen == nil
}

// of returns the condition for a distribution. known is false while no client sees that version. Messages have no numbers:
// else they would change with each client.
func (c *conditions) of(d downstream.Distribution, version string) (is metav1.Condition, known bool) {
	switch {
	case d.Version != version:
		return is, false
	case d.Refuses > 0:
		message := strings.TrimSuffix("refused by "+d.Refusing[0].Name()+": "+d.Refusing[0].Error, ": ")
		return metav1.Condition{Status: "False", Reason: "Rejected", Message: text.Shorten(message, maxMessage)}, true
	case d.Pushing || d.Lacks > 0:
		return metav1.Condition{Status: "False", Reason: "Pending", Message: "not all clients have it"}, true
	case c.lease != nil:
		return metav1.Condition{Status: "True", Reason: "OneReplica", Message: "all clients of one replica have it"}, d.Has > 0
	}
	return metav1.Condition{Status: "True", Reason: "Distributed", Message: "all clients have it"}, d.Has > 0
}
