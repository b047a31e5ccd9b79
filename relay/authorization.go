package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/federation/filter"
	"meshrelay/internal/identity"
	"meshrelay/mirror"
)

// accessOf returns the views and the rules of a config for the server.
func accessOf(cfg *config.Config) (a downstream.Access, err error) {
	if a.Views, err = viewsOf(cfg.Views); err == nil {
		a.Authorization, err = authorizationOf(cfg)
	}
	return a, err
}

// authorizationOf returns the rules of a config for the server.
func authorizationOf(cfg *config.Config) (out []downstream.AuthorizationRule, err error) {
	for _, r := range cfg.Authorization {
		rule := downstream.AuthorizationRule{Name: r.Name, Identities: r.Identities, Listeners: r.Listeners, View: r.View, Debug: r.Debug, Selection: selectionOf(viewNamed(cfg, r.View), r)}
		if r.Rules().LimitsContent() {
			narrows, err := filter.New(r.Rules())
			if err != nil {
				return nil, fmt.Errorf("authorization %s: %w", r.Name, err)
			}
			rule.Accepts = func(res *mirror.Resource) bool { return narrows.Check(res).Passes() }
		}
		out = append(out, rule)
	}
	return out, nil
}

// viewNamed returns a view of a config, or the zero View.
func viewNamed(cfg *config.Config, name string) config.View {
	i := slices.IndexFunc(cfg.Views, func(v config.View) bool { return v.Name == name })
	if i < 0 {
		return config.View{}
	}
	return cfg.Views[i]
}

// selectionOf returns a text that is the same for rules and views that together show the same.
func selectionOf(v config.View, r config.AuthorizationRule) string {
	kinds := kindsOf(v.Kinds)
	if own := kindsOf(r.Kinds); len(kinds) == 0 {
		kinds = own
	} else if len(own) > 0 {
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return !slices.Contains(own, k) })
	}
	narrowed := len(v.Kinds)+len(r.Kinds) > 0 // also if no kind is left
	var includes []string
	for _, include := range [][]string{v.Namespaces.Include, r.Namespaces.Include} {
		if len(include) > 0 {
			includes = append(includes, fmt.Sprintf("%q", sorted(include)))
		}
	}
	return fmt.Sprintf("%q %t %q %q %q %q %q", sorted(v.Sources), narrowed, kinds, sorted(includes),
		sorted(slices.Concat(v.Namespaces.Exclude, r.Namespaces.Exclude)), v.Selector, v.Expression)
}

// kindsOf returns the kinds of words, sorted.
func kindsOf(words []string) (out []string) {
	for _, kind := range config.KindsOf(words) {
		out = append(out, kind.String())
	}
	return sorted(out)
}

// sorted returns the different elements of a list, sorted.
func sorted(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// CanI returns what a client would get by a config.
func CanI(cfg *config.Config, q admin.AccessQuestion) (a admin.AccessAnswer, err error) {
	a = admin.AccessAnswer{Identities: append([]string{}, q.Identities...)}
	l, err := listenerNamed(cfg.Downstream.Listeners, q.Listener)
	if err != nil {
		return a, err
	}
	a.Listener = l.Address
	var patterns []identity.Pattern
	for _, id := range q.Identities {
		p, err := identity.Parse(id)
		if err != nil {
			return a, fmt.Errorf("identity %w", err)
		}
		if text, exact := p.Exact(); !exact || text != id {
			return a, fmt.Errorf("identity %q is a pattern: name one identity", id)
		}
		patterns = append(patterns, p)
	}
	if len(patterns) == 0 && !l.TakesAnonymous() {
		a.Reason = fmt.Sprintf("listener %s takes only clients that prove an identity", l.Address)
		return a, nil
	}
	if i := slices.IndexFunc(patterns, func(p identity.Pattern) bool { return !l.Proves(p) }); i >= 0 {
		a.Reason = fmt.Sprintf("no client of listener %s can prove the identity %q: see its tls and tokens", l.Address, q.Identities[i])
		return a, nil
	}
	server, err := downstreamConfig(cfg, "")
	if err != nil {
		return a, err
	}
	rule, view, err := downstream.Judge(server, l.Address, identity.Claimed(q.Identities), q.Namespace, q.ServiceAccount)
	if err != nil {
		a.Reason = err.Error()
		return a, nil //nolint:nilerr // the refusal is the answer
	}
	a.Allowed, a.Rule, a.View = true, rule, view
	a.Shows, a.Debug = selections(cfg, rule, view)
	return a, nil
}

// listenerNamed returns the listener with an address, or the only one if the address is empty.
func listenerNamed(all []config.Listener, address string) (config.Listener, error) {
	var have []string
	for _, l := range all {
		if l.Address == address || address == "" && len(all) == 1 {
			return l, nil
		}
		have = append(have, l.Address)
	}
	if address == "" {
		return config.Listener{}, fmt.Errorf("several listeners: name one with --listener: %s", strings.Join(have, ", "))
	}
	return config.Listener{}, fmt.Errorf("no listener has the address %q: there are %s", address, strings.Join(have, ", "))
}

// selections returns what a view and a rule show, and whether the rule allows debug types.
func selections(cfg *config.Config, rule, view string) (out []admin.AccessSelection, debug bool) {
	add := func(of string, upstreams []string, r filter.Rules) {
		if len(upstreams) > 0 || r.LimitsContent() {
			out = append(out, admin.AccessSelection{
				Of: of, Upstreams: upstreams, Kinds: r.Kinds, Include: r.Namespaces.Include, Exclude: r.Namespaces.Exclude,
				Selector: r.Selector, Expression: r.Expression,
			})
		}
	}
	v := viewNamed(cfg, view)
	add("view "+view, v.Sources, v.Rules())
	i := slices.IndexFunc(cfg.Authorization, func(r config.AuthorizationRule) bool { return r.Name == rule })
	if i < 0 {
		return out, false
	}
	add("rule "+rule, nil, cfg.Authorization[i].Rules())
	return out, cfg.Authorization[i].Debug
}

// canI answers a question by the current rules and the running listeners.
func (r *Relay) canI(q admin.AccessQuestion) (admin.AccessAnswer, error) {
	cfg := *r.config.Load()
	cfg.Downstream.Listeners = r.options.Config.Downstream.Listeners
	return CanI(&cfg, q)
}

// previewClients returns what a config file would change for the connected clients. The running listeners stay.
func (r *Relay) previewClients(ctx context.Context, text []byte) ([]downstream.ClientChange, error) {
	cfg, err := r.options.Watcher.Parse(text)
	if err != nil {
		return nil, err
	}
	if err := cfg.CheckListeners(r.options.Config.Downstream.Listeners); err != nil {
		return nil, fmt.Errorf("the rules do not fit the running listeners, and new listeners need a restart: %w", err)
	}
	access, err := accessOf(cfg)
	if err != nil {
		return nil, err
	}
	return r.server.Preview(ctx, access)
}
