package downstream

import (
	"cmp"
	"slices"
	"strings"

	"meshrelay/downstream/subscription"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

const (
	// maxHolders bounds the clients that a Distribution names, and maxRefusal the error of one, in bytes.
	maxHolders = 100
	maxRefusal = 256
)

// Distribution tells which clients have the present content of a resource. Of a resource that is not served any more,
// it tells which clients still have it. A client counts once, with all its streams of the kind. It counts if its view
// shows the resource, and it was connected before the change or has answered the content since.
type Distribution struct {
	mirror.Key
	// Version is the version that clients see. It is empty when the resource is not served.
	Version string `json:"version,omitempty"`
	// Pushing is set while the newest content waits for a push: the clients are counted for the content before.
	Pushing bool `json:"pushing,omitempty"`
	// Clients is the sum of Has, Lacks and Refuses. Lacks counts the clients that have not acknowledged the content or, of a
	// resource that is not served, still have it. Refuses counts those that have rejected the response with it.
	Clients int `json:"clients"`
	Has     int `json:"has"`
	Lacks   int `json:"lacks"`
	Refuses int `json:"refuses"`
	// Lacking and Refusing are the first clients by name, at most 100 each.
	Lacking  []Holder `json:"lacking,omitempty"`
	Refusing []Holder `json:"refusing,omitempty"`
}

// Holder is a client that lacks or refuses the content of a resource. Error is its own text, abbreviated.
type Holder struct {
	Connection string `json:"connection"`
	NodeID     string `json:"nodeID"`
	Error      string `json:"error,omitempty"`
}

// Name returns "pod.namespace" of the client, or its node ID.
func (h Holder) Name() string {
	if parts := strings.Split(h.NodeID, "~"); len(parts) == 4 && parts[2] != "" {
		return parts[2]
	}
	return h.NodeID
}

// Distribution returns the distribution of a resource. Its cost grows with the number of clients.
func (s *Server) Distribution(key mirror.Key) Distribution {
	d := Distribution{Key: key}
	t, name := typeOf(key.Kind), key.FullName()
	if served := s.views.resources.Get(key); served != nil {
		d.Version = served.Version()
	}
	d.Pushing = !s.HasReleased() || s.views.lags(d.Version, t, name)
	for _, c := range s.connections() {
		switch who, standing := c.standing(t, name); standing {
		case subscription.Has:
			d.Has++
		case subscription.Lacks:
			d.Lacks++
			d.Lacking = append(d.Lacking, who)
		case subscription.Refuses:
			d.Refuses++
			d.Refusing = append(d.Refusing, who)
		case subscription.Unconcerned:
		}
	}
	d.Clients = d.Has + d.Lacks + d.Refuses
	d.Lacking, d.Refusing = firstHolders(d.Lacking), firstHolders(d.Refusing)
	return d
}

func firstHolders(all []Holder) []Holder {
	slices.SortFunc(all, func(a, b Holder) int { return cmp.Compare(a.Connection, b.Connection) })
	return slices.Clip(all[:min(len(all), maxHolders)])
}

// lags reports whether the views have another content of a resource than the merged resources.
func (vs *viewSet) lags(version string, t subscription.Type, name string) bool {
	vs.mu.Lock() // until all views have what the base view has
	defer vs.mu.Unlock()
	has := ""
	if item := vs.base.snapshot(t).Get(name); item != nil {
		has = item.Version()
	}
	return has != version
}

// standing returns the worst standing of the client's subscriptions to a type.
func (c *conn) standing(t subscription.Type, name string) (who Holder, worst subscription.Standing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return who, worst
	}
	for _, w := range c.subs.Watches() {
		if w.Type != t {
			continue
		}
		standing := w.Standing(c.view.snapshot(t), name)
		if standing == subscription.Refuses {
			who.Error = text.Shorten(w.Refusal(), maxRefusal)
		}
		worst = max(worst, standing)
	}
	if worst > subscription.Has {
		who.Connection, who.NodeID = c.id(), c.client.NodeID
	}
	return who, worst
}
