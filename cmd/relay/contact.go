package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"meshrelay/admin/view"
	"meshrelay/internal/loopback"
	"meshrelay/mirror"
)

// contactTimeout bounds how long "get" waits for the admin address.
const contactTimeout = 5 * time.Second

// withoutContact asks the relay that served resources over xDS, by its admin address, which of them come from a source that is
// out of contact, and returns notes about such sources. xDS does not tell that. Without an answer, or if another relay
// answers, there are none.
func (a *access) withoutContact(ctx context.Context, served []*mirror.Resource) (is func(*mirror.Resource) bool, notes []string) {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	is, c := func(*mirror.Resource) bool { return false }, a.client()
	if v, err := c.Version(ctx); err != nil || !slices.ContainsFunc(served, func(r *mirror.Resource) bool {
		path := r.Provenance().Path
		return len(path) > 0 && path[len(path)-1] == v.Relay
	}) {
		return is, nil
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
		return is, nil
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

// onOneHost reports whether two addresses, host:port, are of one host.
func onOneHost(a, b string) bool {
	one, _, _ := net.SplitHostPort(a) // a wrong address has no host
	other, _, _ := net.SplitHostPort(b)
	return one != "" && strings.EqualFold(one, other) || loopback.Host(one) && loopback.Host(other)
}
