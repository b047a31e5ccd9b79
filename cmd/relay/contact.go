package main

import (
	"context"
	"slices"
	"time"

	"meshrelay/admin/view"
	"meshrelay/mirror"
)

// withoutContact asks the admin address which of the served resources have a source that is out of contact, and returns notes
// about such sources: xDS does not tell it. Without an answer, or if another relay answers, there are none.
func (a *access) withoutContact(ctx context.Context, served []*mirror.Resource) (is func(*mirror.Resource) bool, notes []string) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	c := a.client()
	if v, err := c.Version(ctx); err != nil || !slices.ContainsFunc(served, func(r *mirror.Resource) bool {
		path := r.Provenance().Path
		return len(path) > 0 && path[len(path)-1] == v.Relay
	}) {
		return nil, nil
	}
	all, _ := c.Upstreams(ctx) // without an answer, nothing is marked
	for _, u := range all {
		if !u.ContactLost.IsZero() {
			notes = append(notes, "upstream "+u.Name+" is out of contact for "+view.Ago(u.ContactLost, time.Now())+": its resources are as they were then")
		}
		if !u.Told.ContactLost().IsZero() {
			notes = append(notes, u.Told.Lines(u.Name)...)
		}
	}
	if len(notes) == 0 {
		return nil, nil
	}
	lost := map[mirror.Key]string{}
	versions, _ := c.ConfigVersions(ctx) // see above
	for _, one := range versions {
		if !one.ContactLost.IsZero() {
			lost[one.Key] = one.Version
		}
	}
	return func(r *mirror.Resource) bool { return lost[r.Key()] != "" && lost[r.Key()] == r.SourceVersion() }, notes
}
