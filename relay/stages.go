package relay

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"meshrelay/downstream"
	"meshrelay/events"
)

const (
	// maxStaged is how many changes are followed at a time. Other changes have only the first stage.
	maxStaged = 64
	// stagePatience is how long a change is followed. stageLook is the pause between the first two counts
	// of the clients that have it.
	stagePatience = 30 * time.Second
	stageLook     = 100 * time.Millisecond
)

// stages follow changes through the relay to the clients. They do not follow single resources: they wait
// until each part has finished all work that it had when the change came.
type stages struct {
	merged func(context.Context) error // waits until all is merged
	pushed func(context.Context) error // waits until all is pushed
	newest func() uint64               // returns the number of the newest push
	round  func(uint64) (*downstream.Round, <-chan struct{})
	begins chan begin
}

// begin is a change to follow, and the number of the newest push when it came.
type begin struct {
	change *events.Change
	push   uint64
}

func newStages() *stages { return &stages{begins: make(chan begin, maxStaged)} }

// follow makes Run follow a change, unless maxStaged changes are waiting.
func (s *stages) follow(c *events.Change) {
	select {
	case s.begins <- begin{c, s.newest()}:
	default:
	}
}

// Run follows changes until ctx ends.
func (s *stages) Run(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(maxStaged)
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case b := <-s.begins:
			group.TryGo(func() error {
				s.one(ctx, b.change, b.push)
				return nil
			})
		}
	}
}

// one follows one change. before is the number of the newest push when it came.
func (s *stages) one(ctx context.Context, c *events.Change, before uint64) {
	ctx, cancel := context.WithTimeout(ctx, stagePatience)
	defer cancel()
	defer c.Settle()
	if s.merged(ctx) != nil {
		return
	}
	merged := time.Now().UTC()
	c.Reach(func(st *events.Stages) { st.Merged = merged })
	if s.pushed(ctx) != nil {
		return
	}
	pushed := time.Now().UTC()
	number := s.newest()
	if number == before {
		return // there was no push: the change is not visible to clients
	}
	c.Reach(func(st *events.Stages) { st.Pushed = pushed })
	for wait := stageLook; ; wait = min(2*wait, time.Second) {
		round, over := s.round(number)
		if round == nil {
			return
		}
		c.Reach(func(st *events.Stages) {
			st.Clients, st.Acknowledged = round.Clients, round.Acknowledged
			if round.Clients > 0 {
				st.Half, st.All = round.Half.UTC(), round.All.UTC()
			}
		})
		if !round.All.IsZero() {
			return
		}
		look := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			look.Stop()
			return
		case <-over:
			look.Stop()
		case <-look.C:
		}
	}
}

// followStages makes stages follow the changes of upstreams to the clients.
func (r *Relay) followStages() {
	s := r.stages
	s.merged, s.pushed, s.newest, s.round = r.aggregate.CaughtUp, r.pusher.Flushed, r.server.NewestRound, r.server.Round
	r.events.OnChange(s.follow)
}
