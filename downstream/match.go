package downstream

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/glob"
	"meshrelay/internal/identity"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// View selects the copies of resources that some clients see. The copies are merged as if there were no
// others. A client gets the first view in Config.Views that matches it.
type View struct {
	Name string
	// Match selects the clients of the view. A Listener can also name it.
	Match Match
	// Default makes this the view of clients that match no view.
	Default bool
	// Accepts reports whether clients may see a copy of a resource; nil means all copies. It must depend only
	// on the copy. Any goroutine may call it.
	Accepts func(r *mirror.Resource) bool
	// ClusterID replaces the cluster that clients claim: an istiod claims none (PROTOCOL S14).
	ClusterID string
	// ExcludeOwn leaves out the copies that come from the client's own cluster, if that cluster is known.
	ExcludeOwn bool
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
	// Labels is a Kubernetes label selector over the node's metadata LABELS.
	Labels string
	// Identities are patterns of package identity, for verified client certificates.
	Identities []string
}

// rule is a View with its Match compiled.
type rule struct {
	View
	selector   labels.Selector    // nil: labels do not matter
	identities []identity.Pattern // of Match.Identities

	auth   *AuthorizationRule // that names the View and narrows it; nil: clients match the View
	shares *rule              // with whose views this one shares its own; nil: this one
}

// Access tells which clients see what.
type Access struct {
	// Views select the copies that clients see. Without views, clients see everything except copies from
	// their own cluster.
	Views []View
	// Authorization lets clients in, and chooses their views. Empty: the views match the clients.
	Authorization []AuthorizationRule
}

// rules decide which view a client gets. They are immutable.
type rules struct {
	// authorized are the rules of the authorization, and indexes find them by listener. If indexes is nil, the
	// views match the clients.
	authorized []*rule
	indexes    map[string]*identity.Index

	ordered []*rule
	byName  map[string]*rule
	// byLabels is set when a view selects clients by labels.
	byLabels bool
	other    *rule // for clients that match no view; nil: such clients are refused
}

// newRules compiles views and authorization, and checks the views that listeners name.
func newRules(a Access, listeners []Listener) (*rules, error) {
	views := a.Views
	rs := &rules{byName: map[string]*rule{}}
	if len(views) == 0 {
		rs.other = &rule{View: View{Default: true, ExcludeOwn: true}}
	}
	var errs error
	for i, v := range views {
		if v.Name == "" {
			errs = errors.Join(errs, fmt.Errorf("downstream: view %d has no name", i+1))
			continue
		}
		r, err := newRule(v)
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("downstream: view %s: %w", v.Name, err))
			continue
		}
		if rs.byName[v.Name] != nil {
			errs = errors.Join(errs, fmt.Errorf("downstream: view %s: another view has this name", v.Name))
		}
		if v.Default && rs.other != nil {
			errs = errors.Join(errs, fmt.Errorf("downstream: view %s: view %s is the default already", v.Name, rs.other.Name))
		} else if v.Default {
			rs.other = r
		}
		rs.ordered, rs.byName[v.Name] = append(rs.ordered, r), r
		rs.byLabels = rs.byLabels || r.selector != nil
	}
	if len(a.Authorization) > 0 {
		return rs, errors.Join(errs, rs.addAuthorization(a.Authorization, listeners))
	}
	for _, l := range listeners {
		if l.View == "" {
			continue
		}
		i := slices.IndexFunc(views, func(v View) bool { return v.Name == l.View })
		switch {
		case i < 0:
			errs = errors.Join(errs, fmt.Errorf("downstream: listener %s: there is no view %s", l.Address, l.View))
		case len(views[i].Match.Identities) > 0 && !l.TLS.verifies():
			errs = errors.Join(errs, fmt.Errorf("downstream: listener %s: view %s needs identities, and the listener verifies none", l.Address, l.View))
		}
	}
	return rs, errs
}

func newRule(v View) (*rule, error) {
	r := &rule{View: v}
	for name, globs := range map[string][]string{"node id": v.Match.NodeIDs, "cluster id": v.Match.ClusterIDs, "namespace": v.Match.Namespaces} {
		if slices.Contains(globs, "") {
			return nil, fmt.Errorf("a pattern for the %s is empty", name)
		}
	}
	var err error
	if r.identities, err = parseIdentities(v.Match.Identities); err != nil {
		return nil, err
	}
	if v.Match.Labels != "" {
		if r.selector, err = labels.Parse(v.Match.Labels); err != nil {
			return nil, fmt.Errorf("label selector %q: %w", v.Match.Labels, err)
		}
	}
	return r, nil
}

func parseIdentities(texts []string) (patterns []identity.Pattern, err error) {
	for _, text := range texts {
		p, err := identity.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// choose returns the rule for a client of a listener.
func (rs *rules) choose(l Listener, c client, identities []string) (*rule, error) {
	if l.View != "" {
		if r := rs.byName[l.View]; r.admits(identities) {
			return r, nil
		}
		return nil, refusal.New(refusal.View, codes.PermissionDenied, "%s", noView(l, c, identities))
	}
	for _, r := range rs.ordered {
		if r.matches(c, identities) {
			return r, nil
		}
	}
	if rs.other != nil && rs.other.admits(identities) {
		return rs.other, nil
	}
	return nil, refusal.New(refusal.View, codes.PermissionDenied, "%s", noView(l, c, identities))
}

// admits reports whether a client with these identities may get the view.
func (r *rule) admits(identities []string) bool {
	return len(r.identities) == 0 || slices.ContainsFunc(r.identities, func(p identity.Pattern) bool {
		return slices.ContainsFunc(identities, p.Matches)
	})
}

func (r *rule) matches(c client, identities []string) bool {
	m := r.Match
	given := len(m.NodeIDs) + len(m.ClusterIDs) + len(m.Namespaces) + len(m.Identities)
	if given == 0 && r.selector == nil {
		return false
	}
	return allowed(m.NodeIDs, c.nodeID) && allowed(m.ClusterIDs, c.clusterID) && allowed(m.Namespaces, c.namespace) &&
		r.admits(identities) && (r.selector == nil || r.selector.Matches(c.labels))
}

// allowed reports whether a value matches one of globs. It returns true if there are no globs.
func allowed(globs []string, value string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool { return glob.Match(g, value) })
}

// noView is the text for a client that matches no view. It has the values that were compared.
func noView(l Listener, c client, identities []string) string {
	return fmt.Sprintf("no view matches this client: listener %s, node id %q, cluster %q, namespace %q, identity %s",
		l.Address, text.Shorten(c.nodeID, longestShown), text.Shorten(c.clusterID, longestShown), text.Shorten(c.namespace, longestShown), shown(identities))
}

// variant is a rule for the clients of one cluster and one control plane revision. The zero variant shows
// everything.
type variant struct {
	rule              *rule  // nil: accepts every copy
	cluster, revision string // cluster is left out, unless ofOwn; copies for other revisions are, too (PROTOCOL C11, S14)
	ofOwn             bool
	// strangeCluster and strangeRevision are set when the client claims a cluster or a revision that is not
	// known.
	strangeCluster, strangeRevision bool
}

// variantOf returns the variant for a client that has the rule r.
func variantOf(r *rule, c client) variant {
	v := variant{revision: c.revision}
	if r.Accepts != nil {
		v.rule = cmp.Or(r.shares, r)
	}
	v.cluster = cmp.Or(r.ClusterID, c.clusterID)
	v.ofOwn = !r.ExcludeOwn && v.cluster != ""
	return v
}

func (v variant) accepts(r *mirror.Resource) bool {
	if v.cluster != "" && !v.ofOwn && r.Cluster() == v.cluster {
		return false
	}
	if (v.revision != "" || v.strangeRevision) && r.Revision() != "" && r.Revision() != v.revision {
		return false
	}
	return v.rule == nil || v.rule.Accepts(r)
}
