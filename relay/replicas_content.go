package relay

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/url"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/decisions"
	"meshrelay/mirror"
	"meshrelay/peers"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
)

const (
	startBudget = 5 * time.Second // of all questions before the first sync
	heldTimeout = 3 * time.Second // of a hold, from one replica
	maxCopy     = 256 << 20       // bytes of an upstream's content; of more, less than limits.maxBytes
)

// candidates are replicas that may have content, by address.
type candidates struct {
	byPeer map[string]peers.Status
	asked  time.Time
}

// writeSaved writes what is served of an upstream. A replica that holds its clients has nothing for others.
func (r *Relay) writeSaved(_ context.Context, query url.Values, w io.Writer) error {
	if !r.server.HasReleased() {
		return peers.ErrNone
	}
	name := query.Get("upstream")
	saved, err := r.manager.Saved(name)
	if err != nil || !saved.Meta.Synced || len(saved.Records) == 0 {
		return peers.ErrNone
	}
	return local.WriteCopy(w, name, saved)
}

// writeHeld writes the resources of an upstream whose deletions are held. There is one hold at a time. It may have grown
// since it was recorded, so its content is not compared.
func (r *Relay) writeHeld(_ context.Context, query url.Values, w io.Writer) error {
	name := query.Get("upstream")
	held, err := r.manager.HeldContent(name)
	if err != nil || len(held) == 0 {
		return peers.ErrNone
	}
	saved := state.Saved{Meta: state.Meta{Synced: true}}
	for _, one := range held {
		saved.Records = append(saved.Records, state.Record{Resource: one})
	}
	return local.WriteCopy(w, name, saved)
}

// askAtStart asks all replicas what they have, within startBudget.
func (x *replicas) askAtStart() candidates {
	c := candidates{asked: time.Now()}
	ctx, cancel := context.WithDeadline(context.Background(), c.asked.Add(startBudget/2))
	defer cancel()
	answers, failures := x.set.Statuses(ctx)
	for _, f := range failures {
		x.r.log.Info("replica not asked for content", "peer", f.Peer, "err", f.Err)
	}
	c.byPeer = answers
	return c
}

// former implements upstreams.Former. It asks one replica after the other, the one with the best content first.
func (x *replicas) former(ctx context.Context, u config.Upstream) state.Saved {
	c := x.atStart()
	until := c.asked.Add(startBudget)
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for _, peer := range c.with(u.Name) {
		// A replica that is slow leaves time for the others.
		if saved := x.saved(ctx, time.Until(until)/2, peer, "state", u); saved.Meta.Synced && len(saved.Records) > 0 {
			// The clock of the replica may be another one.
			if m := &saved.Meta; !m.LastContact.IsZero() {
				m.LastContact = m.LastContact.Add(c.asked.Sub(c.byPeer[peer].Time))
			}
			x.r.log.Info("content taken from a replica", "upstream", u.Name, "peer", peer, "resources", len(saved.Records))
			return saved
		}
	}
	return state.Saved{}
}

// with returns the replicas that serve clients and have an upstream. Those in contact with it come first, then those
// that were so last, each by its own clock; of these, those with more resources.
func (c candidates) with(upstream string) (found []string) {
	away, resources := map[string]time.Duration{}, map[string]int{}
	for peer, s := range c.byPeer {
		u := s.Of(upstream)
		if !s.Serving || u == nil || u.Resources == 0 {
			continue
		}
		if !u.InContact {
			away[peer] = max(s.Time.Sub(u.LastContact), 1)
		}
		resources[peer], found = u.Resources, append(found, peer)
	}
	slices.SortFunc(found, func(a, b string) int {
		return cmp.Or(cmp.Compare(away[a], away[b]), cmp.Compare(resources[b], resources[a]), cmp.Compare(a, b))
	})
	return found
}

// Held implements upstreams.Peers. It returns each key once.
func (x *replicas) Held(ctx context.Context, hold *decisions.Record, sequence uint64) (held []*mirror.Resource, begun int) {
	known := map[mirror.Key]bool{}
	x.ask(ctx, "held", hold, sequence, func(u *peers.Upstream) bool { return u.Held > 0 }, func(peer peers.Replica, records []state.Record) (enough bool) {
		for _, r := range records {
			if key := r.Resource.Key(); !known[key] {
				known[key] = true
				held = append(held, r.Resource)
			}
		}
		if peer.Status.Node == hold.Replica {
			begun = len(held)
		}
		return false
	})
	return held, begun
}

// Content implements upstreams.Peers.
func (x *replicas) Content(ctx context.Context, want *decisions.Record) (found []state.Record) {
	x.ask(ctx, "state", want, want.Sequence, func(u *peers.Upstream) bool { return u.Resources > 0 }, func(_ peers.Replica, records []state.Record) (enough bool) {
		if upstreams.ContentOf(records) == want.Content {
			found = records
		}
		return found != nil
	})
	return found
}

// ask calls f with what each other replica that has applied a sequence number, and that has accepts, has as a document about
// the upstream of a decision, until f has enough. The replica that has decided comes first.
func (x *replicas) ask(ctx context.Context, document string, about *decisions.Record, sequence uint64, has func(*peers.Upstream) bool, f func(peers.Replica, []state.Record) (enough bool)) {
	all := x.r.config.Load().Upstreams
	i := slices.IndexFunc(all, func(u config.Upstream) bool { return u.Name == about.Upstream })
	if i < 0 {
		return
	}
	polled, _, _ := x.polls.Do("", func() (any, error) { return x.poll(ctx), nil }) // one for all upstreams
	known := slices.Clone(polled.([]peers.Replica))
	if first := slices.IndexFunc(known, func(p peers.Replica) bool { return p.Status.Node == about.Replica }); first > 0 {
		known[0], known[first] = known[first], known[0]
	}
	for _, peer := range known {
		if there := peer.Status.Of(about.Upstream); peer.Peer == "" || !peer.Reached || peer.Status.Decisions < sequence || there == nil || !has(there) {
			continue
		}
		if saved := x.saved(ctx, heldTimeout, peer.Peer, document, all[i]); len(saved.Records) > 0 && f(peer, saved.Records) {
			return
		}
	}
}

// saved reads a document about an upstream from a replica. It is bounded before it is decoded. If it is broken, late, or not
// there, the result has no records.
func (x *replicas) saved(ctx context.Context, timeout time.Duration, peer, document string, u config.Upstream) (saved state.Saved) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	most := int64(min(u.Limits.MaxBytes, maxCopy)) + 64<<10
	err := x.set.One(ctx, peer, document+"?upstream="+url.QueryEscape(u.Name), most, func(body io.Reader) error {
		b, err := io.ReadAll(body)
		if err == nil {
			saved, err = local.ReadCopy(b, u.Name, u.Limits.MaxResources)
		}
		return err
	})
	if err != nil && !errors.Is(err, peers.ErrNone) {
		x.r.log.Warn("content of a replica not taken", "document", document, "upstream", u.Name, "peer", peer, "err", err)
	}
	return saved
}
