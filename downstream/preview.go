package downstream

import (
	"context"

	"meshrelay/mirror"
)

// ClientChange is what other views and another authorization would change for a connected client.
type ClientChange struct {
	Connection string `json:"connection"`
	NodeID     string `json:"nodeID"`
	Listener   string `json:"listener"`
	// Identity is the first identity that the client has proven.
	Identity string `json:"identity,omitempty"`
	// OldRule and OldView are what the client has, NewRule and NewView what it would get. They are empty if the
	// config has none.
	OldRule string `json:"oldRule,omitempty"`
	OldView string `json:"oldView,omitempty"`
	NewRule string `json:"newRule,omitempty"`
	NewView string `json:"newView,omitempty"`
	// Refused is why the stream would end, empty if it would stay.
	Refused string `json:"refused,omitempty"`
	// Gained and Lost are how many resources the client would see in addition, and no longer.
	Gained int `json:"gained"`
	Lost   int `json:"lost"`
}

// accepting selects the copies that a client sees; nil selects none.
type accepting func(*mirror.Resource) bool

// Preview returns what a Reload with this Access would change for each connected client, in
// the order of the connections. Clients for which nothing changes are left out. It changes nothing, and reads all
// resources twice for each pair of an old and a new view. It fails when ctx ends.
func (s *Server) Preview(ctx context.Context, access Access) ([]ClientChange, error) {
	rs, err := newRules(access, s.cfg.Listeners)
	if err != nil {
		return nil, err
	}
	type pair struct {
		from, to variant
		refused  bool
	}
	counted := map[pair]ClientChange{} // with Gained and Lost only
	var out []ClientChange
	for _, c := range s.connections() {
		c.mu.Lock()
		v, r, client, name := c.view, c.rule, c.client, c.id()
		c.mu.Unlock()
		if v == nil {
			continue
		}
		change := ClientChange{Connection: name, NodeID: client.nodeID, Listener: c.listener.Address, OldRule: r.ruleName(), OldView: r.Name}
		if !c.who.IsZero() {
			change.Identity = c.who.Names[0]
		}
		p := pair{from: s.views.known.narrow(variantOf(r, client))}
		shows := s.views.shows(p.from)
		next, err := s.matchBy(rs, c)
		var then accepting
		if err != nil {
			p.refused, change.Refused = true, endText(err)
		} else {
			change.NewRule, change.NewView = next.ruleName(), next.Name
			p.to = s.views.known.narrow(variantOf(next, client))
			then = s.views.shows(p.to)
		}
		n, done := counted[p]
		if !done && (p.refused || !next.isAs(r)) {
			if n.Gained, n.Lost, err = compare(ctx, s.views.resources, shows, then); err != nil {
				return nil, err
			}
			counted[p] = n
		}
		change.Gained, change.Lost = n.Gained, n.Lost
		if p.refused || n.Gained+n.Lost > 0 || change.NewRule != change.OldRule || change.NewView != change.OldView {
			out = append(out, change)
		}
	}
	return out, nil
}

// shows returns what a variant shows. It makes no cluster or revision known.
func (vs *views) shows(x variant) accepting {
	return vs.accepts(x, func(r *mirror.Resource) bool { return vs.known.knows(origin{r.Cluster(), r.Revision()}) })
}

// Shows returns the cluster of a connected client, if resources name it, and a function that reports whether the client sees a
// copy of a resource. It returns false if there is no such connection.
func (s *Server) Shows(connection string) (cluster string, sees func(*mirror.Resource) bool, ok bool) {
	for _, c := range s.connections() {
		c.mu.Lock()
		v, r, client, name := c.view, c.rule, c.client, c.id()
		c.mu.Unlock()
		if v != nil && name == connection {
			x := s.views.known.narrow(variantOf(r, client))
			return x.cluster, s.views.shows(x), true
		}
	}
	return "", nil, false
}

// compare counts the resources that only then selects, and those that only now selects.
func compare(ctx context.Context, all Resources, now, then accepting) (gained, lost int, err error) {
	has := func(key mirror.Key, by accepting) bool { return by != nil && all.Select(key, "", by) != nil }
	for _, kind := range all.SourceKinds() {
		for i, key := range all.Keys(kind) {
			if i%1024 == 0 && ctx.Err() != nil {
				return 0, 0, ctx.Err()
			}
			switch was, is := has(key, now), has(key, then); {
			case is && !was:
				gained++
			case was && !is:
				lost++
			}
		}
	}
	return gained, lost, nil
}
