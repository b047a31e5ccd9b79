package registry

import (
	"fmt"
	"log/slog"
	"slices"
)

// judge makes clusters that are gone orphaned or held. known is the number of clusters before.
func (r *Registry) judge(gone []*Cluster, known int) {
	counted := slices.DeleteFunc(gone, func(c *Cluster) bool { return c.Released })
	next := Orphaned
	if n := len(counted); n > r.policy.Count && n*100 > r.policy.Percent*known {
		next = Held
	}
	for _, c := range counted {
		if c.State == next {
			continue
		}
		c.State, c.Since = next, r.now
		r.out.Changed = true
		if next == Orphaned {
			r.note(slog.LevelWarn, "cluster orphaned, its last content is served", "cluster", c.ID, "origin", c.Origin, "removeAfter", r.policy.RemoveAfter)
		} else {
			r.note(slog.LevelWarn, "cluster held, many are gone together", "cluster", c.ID, "origin", c.Origin, "gone", len(counted), "of", known)
		}
	}
}

// release makes the held clusters orphaned.
func (r *Registry) release() error {
	for _, id := range r.order() {
		if c := r.clusters[id]; c.State == Held {
			c.State, c.Since, c.Released = Orphaned, r.now, true
			r.out.Changed = true
			r.out.Released++
		}
	}
	if r.out.Released == 0 {
		return notPossible("no cluster is held")
	}
	return nil
}

func (r *Registry) remove(id string) error {
	c := r.clusters[id]
	if c == nil {
		return notPossible(fmt.Sprintf("there is no cluster %.64q", id))
	}
	if c.State == Found {
		return notPossible(fmt.Sprintf("the kubeconfig of cluster %s is there, in %s: delete that first, or ignore the cluster in the config", id, c.Origin))
	}
	r.drop(c, "an operator wants it")
	return nil
}

// expire removes clusters that have been orphaned for RemoveAfter. It removes none while the entries can not
// be read.
func (r *Registry) expire() {
	if !r.read || r.policy.RemoveAfter == 0 {
		return
	}
	for _, id := range r.order() {
		c := r.clusters[id]
		if c.State != Orphaned {
			continue
		}
		end := c.Since.Add(r.policy.RemoveAfter)
		if !r.now.Before(end) {
			r.drop(c, "it is orphaned for longer than removeAfter")
		} else if r.out.Wake.IsZero() || end.Before(r.out.Wake) {
			r.out.Wake = end
		}
	}
}
