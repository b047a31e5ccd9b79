package sink

import (
	"context"
	"fmt"
	"time"

	"meshrelay/mirror"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// judgeAlways has the guard judge deletions, until ctx ends.
func (e *engine) judgeAlways(ctx context.Context) {
	tick := time.NewTicker(judgeEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.compareClusters()
			e.judge(ctx, time.Now())
			e.save() //nolint:errcheck // it is a problem in the status
		}
	}
}

// judge decides about deletions, once what the upstreams have told so far was read.
func (e *engine) judge(ctx context.Context, now time.Time) {
	e.mu.Lock()
	waits := !e.lastGone.IsZero() && now.Sub(e.lastGone) < quiet && now.Sub(e.firstGone) < patience
	idle := e.core.Idle()
	e.mu.Unlock()
	if waits {
		return
	}
	blocked := map[origin]string{}
	if !idle {
		// First what blocks deletions, then what is desired: what came later only adds to the latter.
		now := e.deps.Blocked()
		for _, what := range e.pending() {
			blocked[what] = now(what.upstream, what.key)
		}
		ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout)
		defer cancel()
		if e.deps.Resources.CaughtUp(ctx) != nil {
			return
		}
		e.readMarked()
		for what, why := range blocked {
			if why == "" && e.copies(what.key).sources != nil {
				blocked[what] = plan.ReasonCopies
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, listed := e.kindProblems()
	ready := listed && e.read
	if e.core.SetReady(ready); ready && e.spec.emptied {
		e.core.Prune()
		idle = false
	}
	if e.firstGone, e.lastGone = (time.Time{}), (time.Time{}); !idle {
		changed := e.core.Judge(now, func(upstream string, key mirror.Key) string {
			if e.spec.emptied {
				return ""
			}
			if why, asked := blocked[origin{upstream, key}]; asked {
				return why
			}
			return plan.ReasonStarting // it came after the question
		})
		for _, key := range changed {
			e.touch(key)
		}
		e.tellHold()
	}
	if e.writes() && ready && e.frozen == nil && e.core.Held().ID == "" && e.queue.idle(now) && len(e.troubles) == 0 {
		e.complete = now
	}
}

// origin is an upstream and a resource that it had.
type origin struct {
	upstream string
	key      mirror.Key
}

// pending returns where the objects come from that may be deleted.
func (e *engine) pending() (all []origin) {
	if e.spec.emptied {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.Gone(func(key mirror.Key, upstreams []string) {
		for _, u := range upstreams {
			all = append(all, origin{u, key})
		}
	})
	return all
}

// tellHold tells operators of a new hold, or of the end of one. The caller holds mu.
func (e *engine) tellHold() {
	held := e.core.Held()
	switch {
	case held.ID == e.heldID:
		return
	case held.ID == "":
		e.log.Info("hold ended")
		e.deps.Record(Happening{Sink: e.spec.Name, Text: "hold ended"})
	case e.heldID == "":
		e.log.Warn("deletions held by guard", "held", len(held.Keys), "id", held.ID, "reason", held.Reason, "see", "relay sink status "+e.spec.Name)
		e.deps.Record(Happening{Sink: e.spec.Name, Text: fmt.Sprintf("deletions held as %s", held.ID), Reason: held.Reason, Count: len(held.Keys), Held: true})
	}
	e.heldID = held.ID
}
