package downstream

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/glob"
	"meshrelay/internal/identity"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// View is what some clients see: the copies of resources that it accepts, merged as if there were
// no others. A client gets the first view in Config.Views that matches it.
type View struct {
	Name string
	// Match selects the clients of the view. A Listener can also name it.
	Match Match
	// Default makes the view that of the clients that no view matches.
	Default bool
	// Accepts reports whether clients may see a copy of a resource; nil: all. It depends on
	// nothing but the copy, and is safe for use by several goroutines.
	Accepts func(r *mirror.Resource) bool
	// ClusterID replaces the cluster that clients claim: an istiod claims none (PROTOCOL S14).
	ClusterID string
	// ExcludeOwn leaves out what came from the cluster of the client, if that is known.
	ExcludeOwn bool
}

// Match selects clients: each field that is given has to match, by one element of a list. The zero
// Match is for nobody. Lists are of patterns in which * stands for any text and ? for any
// character; of a SPIFFE ID or DNS name, for any within one segment or label.
//
// Identities are proof, and hold on every listener. All other fields are claims of the client:
// they tell apart clients that mean well, and keep nothing from others.
type Match struct {
	NodeIDs    []string
	ClusterIDs []string
	Namespaces []string
	// Labels is a Kubernetes label selector over the node's metadata LABELS.
	Labels string
	// Identities are patterns of package identity, for verified client certificates.
	Identities []string
}

// rule is a View with its Match ready for use.
type rule struct {
	View
	selector   labels.Selector    // nil: labels do not matter
	identities []identity.Pattern // of Match.Identities
}

// rules settle which view a client gets. They are immutable.
type rules struct {
	ordered []*rule
	byName  map[string]*rule
	// byLabels tells that the labels of a client may matter.
	byLabels bool
	other    *rule // for clients that none matches; nil: they are refused
}

// newRules checks views and what listeners say of them.
func newRules(views []View, listeners []Listener) (*rules, error) {
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
			errs = errors.Join(errs, fmt.Errorf("downstream: view %s: there is another of that name", v.Name))
		}
		if v.Default && rs.other != nil {
			errs = errors.Join(errs, fmt.Errorf("downstream: view %s: view %s is the default already", v.Name, rs.other.Name))
		} else if v.Default {
			rs.other = r
		}
		rs.ordered, rs.byName[v.Name] = append(rs.ordered, r), r
		rs.byLabels = rs.byLabels || r.selector != nil
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
			errs = errors.Join(errs, fmt.Errorf("downstream: listener %s: view %s is for identities, and the listener verifies none", l.Address, l.View))
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
	for _, text := range v.Match.Identities {
		p, err := identity.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		r.identities = append(r.identities, p)
	}
	if v.Match.Labels != "" {
		var err error
		if r.selector, err = labels.Parse(v.Match.Labels); err != nil {
			return nil, fmt.Errorf("label selector %q: %w", v.Match.Labels, err)
		}
	}
	return r, nil
}

// choose returns the rule for a client that came by a listener.
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

// admits reports whether a client with these identities may have the view.
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

// allowed reports whether a value is like one of globs, or there are no globs.
func allowed(globs []string, value string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool { return glob.Match(g, value) })
}

// noView tells a client that it has no view, and by what it was judged.
func noView(l Listener, c client, identities []string) string {
	const longest, most = 200, 4
	var shown []string
	for _, id := range identities[:min(most, len(identities))] {
		shown = append(shown, fmt.Sprintf("%q", text.Shorten(id, longest)))
	}
	if len(shown) == 0 {
		shown = []string{"none verified"}
	} else if len(identities) > most {
		shown = append(shown, "…")
	}
	return fmt.Sprintf("no view matches this client: listener %s, node id %q, cluster %q, namespace %q, identity %s",
		l.Address, text.Shorten(c.nodeID, longest), text.Shorten(c.clusterID, longest), text.Shorten(c.namespace, longest), strings.Join(shown, ", "))
}

// variant is a view for one cluster and one control plane revision. Zero is everything.
type variant struct {
	rule              *rule  // nil: it accepts all
	cluster, revision string // own cluster, which is left out, and revision (PROTOCOL C11, S14)
	// strangeCluster and strangeRevision say that there is one, and that it is not known.
	strangeCluster, strangeRevision bool
}

// variantOf returns what a client with this rule sees.
func variantOf(r *rule, c client) variant {
	v := variant{revision: c.revision}
	if r.Accepts != nil {
		v.rule = r
	}
	if r.ExcludeOwn {
		v.cluster = r.ClusterID
		if v.cluster == "" {
			v.cluster = c.clusterID
		}
	}
	return v
}

func (v variant) accepts(r *mirror.Resource) bool {
	if v.cluster != "" && r.Cluster() == v.cluster {
		return false
	}
	if (v.revision != "" || v.strangeRevision) && r.Revision() != "" && r.Revision() != v.revision {
		return false
	}
	return v.rule == nil || v.rule.Accepts(r)
}
