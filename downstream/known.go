package downstream

import (
	"context"
	"slices"
	"time"

	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// strangers reports whether there is a view for clients whose cluster or revision is unknown.
func (vs *viewSet) strangers() bool {
	return slices.ContainsFunc(vs.copied(), func(v *view) bool { return v.selection.Strange() })
}

// note adds the origin of a resource, and reports whether it is known. The caller holds mu.
func (vs *viewSet) note(r *mirror.Resource) (knows bool) {
	return vs.known.Note(views.OriginOf(r), vs.strangers)
}

// shows returns what a selection shows. It makes no cluster or revision known.
func (vs *viewSet) shows(x views.Selection) func(*mirror.Resource) bool {
	return x.Accepting(func(r *mirror.Resource) bool { return vs.known.Knows(views.OriginOf(r)) })
}

// admit returns the view for a client with the selection want. The caller releases it.
func (vs *viewSet) admit(ctx context.Context, want views.Selection, who viewer) (*view, error) {
	for {
		x := vs.known.Narrow(want)
		v, err := vs.acquire(ctx, x, who)
		if err != nil {
			return nil, err
		}
		if vs.known.Narrow(want) == x {
			return v, nil
		}
		vs.release(v, who) // the fill has made the cluster or the revision known
	}
}

// rematch makes fresh known, and moves clients to their new views.
func (vs *viewSet) rematch(moves []move, now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	learned := vs.known.Adopt()
	for i := range moves {
		moves[i].to = vs.known.Narrow(moves[i].to)
	}
	if !vs.move(moves, now) && learned {
		vs.bring(true, nil, now) // the resources that the shared view did not show
	}
	vs.known.Learned()
}

// Same sets other IDs of clusters, by ID. Clients that claim an ID are sent nothing of the other one either.
func (s *Server) Same(ids map[string]string) { s.views.known.Same(ids) }

// Shows returns the cluster of a connected client, if resources name it, and a function that reports whether the client
// sees a copy of a resource. It returns false if there is no such connection.
func (s *Server) Shows(connection string) (cluster string, sees func(*mirror.Resource) bool, ok bool) {
	for _, c := range s.connections() {
		c.mu.Lock()
		v, r, client, name := c.view, c.rule, c.client, c.id()
		c.mu.Unlock()
		if v != nil && name == connection {
			x := s.views.known.Narrow(r.Selection(client))
			return x.Cluster, s.views.shows(x), true
		}
	}
	return "", nil, false
}
