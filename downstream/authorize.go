package downstream

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/identity"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// AuthorizationRule lets clients in, and chooses their view. With rules, a client gets the view of the first rule
// that fits, and is refused if none fits.
type AuthorizationRule struct {
	Name string
	// Identities are patterns of package identity. A client fits if it has proven an identity that one of them
	// matches. Empty: every client of Listeners fits, also one that has proven nothing.
	Identities []string
	// Listeners are addresses of Config.Listeners. Empty: all of them.
	Listeners []string
	// View names a view. It may be empty if there are no views: then the clients see what they see without rules.
	View string
	// Accepts narrows the view, as View.Accepts does. nil: the view is not narrowed.
	Accepts func(r *mirror.Resource) bool
	// Selection describes what View and Accepts show together. Rules with the same Selection share their views.
	// Empty: the rule shares with none.
	Selection string
	// Debug lets the clients request debug types, if Listener.Debug lets them, too, and their view shows everything.
	Debug bool
}

// addAuthorization compiles the rules of an authorization. views are already compiled.
func (rs *rules) addAuthorization(all []AuthorizationRule, listeners []Listener) (errs error) {
	rs.indexes = map[string]*identity.Index{}
	for _, l := range listeners {
		rs.indexes[l.Address] = identity.NewIndex()
		if l.View != "" {
			errs = errors.Join(errs, fmt.Errorf("downstream: listener %s: the rules of the authorization choose the view: name none, and restart", l.Address))
		}
	}
	for _, r := range rs.ordered {
		if r.Default || !reflect.ValueOf(r.Match).IsZero() {
			errs = errors.Join(errs, fmt.Errorf("downstream: view %s: the rules of the authorization choose the view: leave out match and default", r.Name))
		}
	}
	names, bySelection := map[string]bool{}, map[string]*rule{}
	for i := range all {
		a := &all[i]
		err := rs.addRule(a, bySelection)
		if a.Name == "" || names[a.Name] {
			err = errors.Join(err, errors.New("rules need names that differ"))
		}
		if names[a.Name] = true; err != nil {
			errs = errors.Join(errs, fmt.Errorf("downstream: authorization %q: %w", a.Name, err))
		}
	}
	return errs
}

// addRule adds a rule to the indexes of its listeners. bySelection has the rules that others share views with.
func (rs *rules) addRule(a *AuthorizationRule, bySelection map[string]*rule) error {
	of := rs.byName[a.View]
	if a.View == "" && len(rs.ordered) == 0 {
		of = rs.other
	}
	switch {
	case of == nil:
		return fmt.Errorf("there is no view %q", a.View)
	case len(a.Identities)+len(a.Listeners) == 0:
		return errors.New("the rule has neither identities nor listeners")
	}
	r := &rule{View: of.View, auth: a}
	if shows, narrows := of.Accepts, a.Accepts; shows == nil {
		r.Accepts = narrows
	} else if narrows != nil {
		r.Accepts = func(res *mirror.Resource) bool { return shows(res) && narrows(res) }
	}
	switch shared := bySelection[a.Selection]; {
	case a.Selection == "":
	case shared == nil:
		bySelection[a.Selection] = r
	default:
		r.shares = shared
	}
	n := len(rs.authorized)
	rs.authorized = append(rs.authorized, r)
	patterns, err := parseIdentities(a.Identities)
	if err != nil {
		return err
	}
	addresses := a.Listeners
	if len(addresses) == 0 {
		addresses = slices.Collect(maps.Keys(rs.indexes))
	}
	for _, address := range addresses {
		x := rs.indexes[address]
		if x == nil {
			return fmt.Errorf("there is no listener %s: a new one needs a restart", address)
		}
		if len(patterns) == 0 {
			x.Anybody = min(x.Anybody, n)
		}
		for _, p := range patterns {
			x.Add(p, n)
		}
	}
	return nil
}

// authorize returns the rule for a client of a listener: of the authorization, or else of the views.
func (rs *rules) authorize(l Listener, c client, who identity.Identity) (*rule, error) {
	if rs.indexes == nil {
		return rs.choose(l, c, who.Names)
	}
	if who.IsZero() && l.TLS.verifies() && !l.TLS.AllowAnonymous {
		return nil, refusal.New(refusal.Authorization, codes.PermissionDenied,
			"the client has proven no identity, as its certificate has no SPIFFE ID and no DNS name, and listener %s has no allowAnonymous", l.Address)
	}
	n := identity.NoRule
	if x := rs.indexes[l.Address]; x != nil {
		n = x.First(who.Names)
	}
	if n == identity.NoRule {
		return nil, refusal.New(refusal.Authorization, codes.PermissionDenied,
			"no rule of authorization lets this client in: listener %s, identity %s", l.Address, shown(who.Names))
	}
	if err := c.contradicts(who); err != nil {
		return nil, err
	}
	return rs.authorized[n], nil
}

// contradicts returns an error if a node claims another namespace or service account than those of its identity
// (PROTOCOL C12).
func (c client) contradicts(who identity.Identity) error {
	for _, of := range []struct{ what, claimed, proven string }{
		{"namespace", c.namespace, who.Namespace},
		{"service account", c.serviceAccount, who.ServiceAccount},
	} {
		if of.proven != "" && of.claimed != "" && of.claimed != of.proven {
			return refusal.New(refusal.Authorization, codes.PermissionDenied,
				`the node claims the %s %q, and its identity %s has %q: claim what the identity has (a relay: node.namespace; relay get: --node-namespace)`,
				of.what, text.Shorten(of.claimed, longestShown), shown(who.Names), text.Shorten(of.proven, longestShown))
		}
	}
	return nil
}

// isAs reports whether clients can read the same by two rules. The views of the rules may be of different configs.
func (r *rule) isAs(o *rule) bool {
	same := r.Accepts == nil && o.Accepts == nil || r.auth != nil && o.auth != nil && r.auth.Selection != "" && r.auth.Selection == o.auth.Selection
	return same && r.ClusterID == o.ClusterID && r.ExcludeOwn == o.ExcludeOwn && r.mayDebug() == o.mayDebug()
}

// mayDebug reports whether the config lets clients of the rule read debug documents, which show everything.
func (r *rule) mayDebug() bool { return r.Accepts == nil && (r.auth == nil || r.auth.Debug) }

// ruleName returns the name of the rule of the authorization, empty without an authorization.
func (r *rule) ruleName() string {
	if r.auth == nil {
		return ""
	}
	return r.auth.Name
}

// longestShown bounds a value of a client in an error, in bytes.
const longestShown = 200

// shown returns identities for an error.
func shown(identities []string) string {
	return cmp.Or(text.List(identities, 4, longestShown), "none verified")
}

// Judge returns the rule and the view that a Server with a config would give a client of a listener, or why it would
// refuse it. namespace and account are what the node of the client claims, and may be empty.
func Judge(cfg Config, listener string, who identity.Identity, namespace, account string) (rule, view string, err error) {
	rs, err := newRules(cfg.Access, cfg.Listeners)
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(cfg.Listeners, func(l Listener) bool { return l.Address == listener })
	if i < 0 {
		return "", "", fmt.Errorf("downstream: there is no listener %s", listener)
	}
	r, err := rs.authorize(cfg.Listeners[i], client{namespace: namespace, serviceAccount: account}, who)
	if err != nil {
		return "", "", errors.New(status.Convert(err).Message())
	}
	return r.ruleName(), r.Name, nil
}
