// Package views answers one question: what does a client see?
//
// A View selects copies of resources. A client gets the view that its listener names, or else the first that matches
// it (Rules.Of). What it claims to be must be what its certificate proves. Of its view it sees no copies of its own
// cluster and none for other control plane revisions: Selection has all of that, and compares, so that clients who see
// the same share what is made for them. Known has the clusters and revisions that there are, so that made-up ones
// share one selection.
//
// The package must not know how resources are merged, kept or sent.
package views

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/glob"
	"meshrelay/internal/identity"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/trouble"
)

// View selects the copies of resources that some clients see. The copies are merged as if there were no
// others. A client gets the first view that matches it.
type View struct {
	Name string
	// Match selects the clients of the view. A Listener can also name it.
	Match Match
	// Default makes this the view of clients that match no view.
	Default bool
	// Accepts reports whether clients may see a copy of a resource; nil means all copies. It must depend only
	// on the copy. Any goroutine may call it.
	Accepts func(r *mirror.Resource) bool
	// Sources are the upstreams of which Accepts accepts copies; empty: all. Picks reports whether it also looks at the
	// content of copies.
	Sources []string
	Picks   bool
	// Shows describes Accepts: views with the same text accept the same. Empty: it is like no other.
	Shows string
	// ClusterID replaces the cluster that clients claim: an istiod claims none (PROTOCOL S14).
	ClusterID string
}

// Match selects clients. A client must match each field that is set, by one element of the list. The zero
// Match selects no client. The elements are patterns in which * stands for any text and ? for any character.
// In a SPIFFE ID or a DNS name, they stand for text within one segment or label.
//
// Only Identities are verified, on every listener. The client itself chooses the values of the other fields:
// they do not protect any resource from it.
type Match struct {
	NodeIDs    []string
	ClusterIDs []string
	Namespaces []string
	// Identities are patterns of package identity, for verified client certificates.
	Identities []string
}

// Listener is where clients connect.
type Listener struct {
	Address string
	// View names the view of all clients of the listener. Only the identities of the view's Match count then.
	View string
	// Verifies is set if the listener verifies client certificates.
	Verifies bool
}

// Rule is a View with its Match compiled. It is immutable.
type Rule struct {
	View
	identities []identity.Pattern // of Match.Identities
}

// Rules decide which view a client gets. They are immutable.
type Rules struct {
	ordered []*Rule
	byName  map[string]*Rule
	other   *Rule // for clients that match no view; nil: such clients are refused
}

// New compiles views, and checks that the listeners can have those that they name. The config has checked the rest. Without
// views, clients see everything except copies from their own cluster.
func New(all []View, listeners []Listener) (*Rules, error) {
	rs := &Rules{byName: map[string]*Rule{}}
	if len(all) == 0 {
		rs.other = &Rule{View: View{Default: true}}
	}
	var errs error
	for _, v := range all {
		r := &Rule{View: v}
		for _, text := range v.Match.Identities {
			p, err := identity.Parse(text)
			if err != nil {
				errs = errors.Join(errs, fmt.Errorf("downstream: view %s: identity: %w", v.Name, err))
			}
			r.identities = append(r.identities, p)
		}
		if v.Default {
			rs.other = r
		}
		rs.ordered, rs.byName[v.Name] = append(rs.ordered, r), r
	}
	for _, l := range listeners {
		switch r := rs.byName[l.View]; {
		case l.View == "":
		case r == nil:
			errs = errors.Join(errs, fmt.Errorf("downstream: listener %s: there is no view %s", l.Address, l.View))
		case len(r.identities) > 0 && !l.Verifies:
			errs = errors.Join(errs, fmt.Errorf("downstream: listener %s: view %s needs identities, and the listener verifies none", l.Address, l.View))
		}
	}
	return rs, errs
}

// Of returns the rule for a client of a listener, or why the client is refused.
func (rs *Rules) Of(l Listener, c Client, who identity.Identity) (*Rule, error) {
	if err := c.contradicts(who); err != nil {
		return nil, err
	}
	if l.View != "" {
		if r := rs.byName[l.View]; r.admits(who.Names) {
			return r, nil
		}
		return nil, noView(l, c, who.Names)
	}
	for _, r := range rs.ordered {
		if r.matches(c, who.Names) {
			return r, nil
		}
	}
	if rs.other != nil && rs.other.admits(who.Names) {
		return rs.other, nil
	}
	return nil, noView(l, c, who.Names)
}

// Named returns the rule of a view, or with an empty name that of clients that match no view. It is nil if there is none.
func (rs *Rules) Named(name string) *Rule {
	if name == "" {
		return rs.other
	}
	return rs.byName[name]
}

// contradicts returns an error if a node claims another namespace or service account than those of its identity
// (PROTOCOL C12).
func (c Client) contradicts(who identity.Identity) error {
	for _, of := range []struct{ what, claimed, proven string }{
		{"namespace", c.Namespace, who.Namespace},
		{"service account", c.ServiceAccount, who.ServiceAccount},
	} {
		if of.proven != "" && of.claimed != "" && of.claimed != of.proven {
			return refusal.New(refusal.Node, codes.PermissionDenied,
				`the node claims the %s %q, and its identity %s has %q: claim what the identity has (a relay: node.namespace; relay get: --node-namespace)`,
				of.what, text.Shorten(of.claimed, longestShown), shown(who.Names), text.Shorten(of.proven, longestShown))
		}
	}
	return nil
}

// admits reports whether a client with these identities may get the view.
func (r *Rule) admits(identities []string) bool {
	return len(r.identities) == 0 || slices.ContainsFunc(r.identities, func(p identity.Pattern) bool {
		return slices.ContainsFunc(identities, p.Matches)
	})
}

func (r *Rule) matches(c Client, identities []string) bool {
	m := r.Match
	given := len(m.NodeIDs) + len(m.ClusterIDs) + len(m.Namespaces) + len(m.Identities)
	return given > 0 && allowed(m.NodeIDs, c.NodeID) && allowed(m.ClusterIDs, c.ClusterID) && allowed(m.Namespaces, c.Namespace) &&
		r.admits(identities)
}

// allowed reports whether a value matches one of globs. It returns true if there are no globs.
func allowed(globs []string, value string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool { return glob.Match(g, value) })
}

// Limits reports whether the view shows less than everything to its clients.
func (r *Rule) Limits() bool { return r.Accepts != nil }

// Tells returns what clients of the view are told of a problem of an upstream. ok is false if the view does not show the
// upstream. A view that picks content shows it if it accepts a copy from there, and tells no counts. has reports whether accept
// accepts a copy of an upstream.
func (r *Rule) Tells(p trouble.Problem, upstream string, has func(upstream string, accept func(*mirror.Resource) bool) bool) (_ trouble.Problem, ok bool) {
	switch {
	case r.Accepts == nil:
		return p, true
	case len(r.Sources) > 0 && !slices.Contains(r.Sources, upstream):
		return p, false
	case r.Picks:
		return p.Bare(), has(upstream, func(c *mirror.Resource) bool {
			from := c.Provenance()
			return r.Accepts(c) && (len(p.Relays) == 1 || p.Has(from.Source, from.Path))
		})
	}
	return p, len(r.Sources) > 0
}

// Same reports whether clients can read the same by two rules, which may be of different configs.
func (r *Rule) Same(o *Rule) bool {
	same := r == o || r.Accepts == nil && o.Accepts == nil || r.Shows != "" && r.Shows == o.Shows
	return same && r.ClusterID == o.ClusterID
}

// longestShown bounds a value of a client in an error, in bytes.
const longestShown = 200

// shown returns identities for an error.
func shown(identities []string) string {
	return cmp.Or(text.List(identities, 4, longestShown), "none verified")
}

// noView is the refusal of a client that matches no view. It has the values that were compared.
func noView(l Listener, c Client, identities []string) error {
	return refusal.New(refusal.View, codes.PermissionDenied, "no view matches this client: listener %s, node id %q, cluster %q, namespace %q, identity %s",
		l.Address, text.Shorten(c.NodeID, longestShown), text.Shorten(c.ClusterID, longestShown), text.Shorten(c.Namespace, longestShown), shown(identities))
}
