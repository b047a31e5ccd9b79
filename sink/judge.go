package sink

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
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
			e.compare()
			e.supervise(time.Now())
			e.writePending(ctx)
			changed := e.judge(ctx, time.Now())
			e.save() //nolint:errcheck // it is a problem in the status
			e.mu.Lock()
			for _, key := range changed {
				e.touch(key) // only now: after a crash it shall be known what the guard has let pass
			}
			e.mu.Unlock()
		}
	}
}

// supervise notes whether what is to be written can be.
func (e *engine) supervise(now time.Time) {
	st := e.lease.Status()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.suspended() || e.calm || st.Renewed && !st.Held || e.done != e.seenDone {
		e.idle, e.seenDone = now, e.done
	}
}

// due reports whether an object that is to be written could be, for all that the cluster has told. The caller holds mu.
func (e *engine) due(key mirror.Key) bool {
	if d := e.drifts[key]; d != nil && time.Since(d.At) < e.driftPause(key) {
		return false
	}
	t := e.troubles[key]
	return t == nil || t.State == stateFailed && !t.answered
}

// suspended reports whether the sink is not to write. The caller holds mu.
func (e *engine) suspended() bool {
	return !e.applies() || e.frozen() != (lease.Note{}) || e.promoted() != (lease.Note{})
}

// judge decides about deletions, once what the upstreams have told so far was read. It returns the keys to touch.
func (e *engine) judge(ctx context.Context, now time.Time) (changed []mirror.Key) {
	e.mu.Lock()
	waits := !e.lastGone.IsZero() && now.Sub(e.lastGone) < quiet && now.Sub(e.firstGone) < patience
	gone, last := e.core.Gone(), e.lastGone
	e.mu.Unlock()
	if waits {
		return nil
	}
	blocked := map[mirror.Key]string{}
	if len(gone) > 0 {
		// First what blocks deletions, then what is desired: what came later only adds to the latter.
		why := e.deps.Blocked()
		for key, upstreams := range gone {
			for _, upstream := range upstreams {
				blocked[key] = cmp.Or(blocked[key], why(upstream, key))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, apiserver.WriteTimeout)
		defer cancel()
		if e.deps.Resources.CaughtUp(ctx) != nil {
			return nil
		}
		e.readMarked()
		for key, why := range blocked {
			if why == "" && e.want(key, "").sources != nil {
				blocked[key] = plan.ReasonCopies
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	problems, listed := e.kindProblems()
	ready := listed && e.read
	e.core.SetReady(ready)
	if e.lastGone.Equal(last) { // else more are coming
		e.firstGone, e.lastGone = time.Time{}, time.Time{}
	}
	changed = e.core.Judge(now, func(key mirror.Key) string {
		if why, asked := blocked[key]; asked {
			return why
		}
		return plan.ReasonStarting // it came after the question
	})
	e.tellHold()
	if !e.calm && e.queue.Len() == 0 {
		due := false
		e.calm = true
		e.core.Keys(func(key mirror.Key) {
			if e.core.Next(key).Verb.Writes() {
				e.calm, due = false, due || e.due(key)
			}
		})
		if !due {
			e.idle = now
		}
	}
	if e.calm && e.applies() && ready && e.frozen() == (lease.Note{}) && e.core.Held().ID == "" && len(problems)+len(e.troubles)+len(e.doubted) == 0 {
		e.complete = now
	}
	return changed
}

// tellHold tells operators of a new hold, or of the end of one. The caller holds mu.
func (e *engine) tellHold() {
	held := e.core.Held()
	event := events.Event{Type: events.Returned, By: events.ByRelay, Text: "sink " + e.spec.Name + ": hold ended"}
	switch {
	case held.ID != "" && e.heldID == "":
		e.log.Warn("deletions held by guard", "held", held.Removals, "id", held.ID, "reason", held.Reason, "see", "relay sink "+e.spec.Name)
		event.Type, event.Reason, event.Command = events.Held, held.Reason, "relay sink "+e.spec.Name
		event.Text = fmt.Sprintf("sink %s: %d deletions held as %s", e.spec.Name, held.Removals, held.ID)
		e.deps.Record(event)
	case held.ID == "" && e.heldID != "" && e.core.Kept().Holding:
		return // an upstream prevents now what is held
	case held.ID == "" && e.heldID != "":
		e.log.Info("hold ended")
		e.deps.Record(event)
	}
	e.heldID = held.ID
}
