package admin

import (
	"encoding/json"
	"slices"

	"meshrelay/events"
	"meshrelay/internal/bundle"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

const (
	// maxBundleEvents bounds the events of a bundle, and maxEventBytes their size as text: less than a
	// file may have, so that none is cut.
	maxBundleEvents = 10_000
	maxEventBytes   = bundle.MaxFile * 3 / 4
)

// newestEvents returns the newest events for a bundle, page by page, the oldest first.
func (s *Server) newestEvents() events.Page {
	all, left := events.Page{Events: []events.Event{}}, maxEventBytes
	for before := uint64(0); ; {
		page := s.deps.Debug.views.Events.Read(events.Query{Before: before, Limit: events.MaxPage})
		if before == 0 {
			all.Next, all.Oldest, all.Newest = page.Next, page.Oldest, page.Newest
		}
		all.More = page.More
		for _, e := range slices.Backward(page.Events) {
			text, err := json.MarshalIndent(e, "", "    ")
			if left -= len(text); err != nil || left < 0 || len(all.Events) == maxBundleEvents {
				all.More = true
				slices.Reverse(all.Events)
				return all
			}
			all.Events = append(all.Events, e)
		}
		if !page.More || len(page.Events) == 0 {
			slices.Reverse(all.Events)
			return all
		}
		before = page.Events[0].Seq
	}
}

// names returns the names that an anonymous bundle hides: of all that the relay has, and of what it
// remembers. Names of upstreams and of kinds stay.
func (s *Server) names(journal events.Page) *bundle.Names {
	views := s.deps.Debug.views
	n := bundle.NewNames(s.hashKey)
	n.Keep(s.deps.Name)
	ups := views.Upstreams()
	for _, u := range ups {
		n.Keep(u.Name, u.ClusterID, u.Type)
	}
	if s.deps.Supports.Names != nil {
		n.Add(s.deps.Supports.Names()...)
	}
	add := func(key mirror.Key) { n.Add(key.Namespace, key.Name) }
	for _, kind := range views.Resources.Kinds() {
		n.Keep(kind.String())
		for _, r := range views.Resources.List(kind, "") {
			add(r.Key())
		}
	}
	for _, u := range ups {
		s.namesOf(n, u)
	}
	for _, l := range views.LeftOut() {
		n.Add(l.Namespace, l.Name)
	}
	for _, c := range views.Contests() {
		add(c.Key)
	}
	for _, c := range views.HostConflicts() {
		n.Add(c.Host)
		for _, claim := range c.Claims {
			n.Add(claim.Namespace, claim.Name)
		}
	}
	for _, c := range views.NotFollowed() {
		add(c.Key)
	}
	for _, part := range views.Clusters() {
		for _, c := range part.Clusters {
			n.Keep(c.ID)
			n.AddRef(c.Origin)
		}
		for _, r := range part.Refused {
			n.AddRef(r.Origin)
		}
	}
	for _, c := range s.deps.Debug.clients.Clients() {
		n.AddNode(c.NodeID)
		n.Add(c.Namespace)
	}
	for _, e := range journal.Events {
		n.AddNode(e.Client)
		if e.Resources == nil {
			continue
		}
		for _, name := range e.Resources.Names {
			add(name.Key)
		}
		for _, g := range e.Resources.Groups {
			n.Add(g.Namespace)
		}
	}
	return n
}

// namesOf adds the names of what is refused and held of an upstream, and of what its history has. Where one
// can not be read, the bundle does not have it either.
func (s *Server) namesOf(n *bundle.Names, u upstreams.Status) {
	for _, r := range u.Refused {
		n.AddRef(r.Resource)
	}
	if held, err := s.deps.Controls.Held(u.Name); err == nil {
		for _, h := range held {
			for _, d := range h.Deletions {
				n.Add(d.Namespace, d.Name)
			}
		}
	}
	if revisions, err := s.deps.Controls.History(u.Name); err == nil {
		for _, v := range revisions[:min(len(revisions), maxHeads)] {
			for _, key := range v.Keys {
				n.AddRef(key)
			}
		}
	}
}
