package relay

import (
	"context"
	"reflect"
	"slices"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// maxPolicies is how many policies that a view would lose are named.
const maxPolicies = 20

// preview returns what a config file would change for sinks and views, with the present resources.
func (r *Relay) preview(ctx context.Context, text []byte) (p admin.Preview, err error) {
	next, err := r.options.Watcher.Parse(text)
	if err != nil {
		return p, err
	}
	specs, err := sinksOf(next)
	if err != nil {
		return p, err
	}
	p.Sinks = r.sinks.Compare(specs)
	p.Views, err = r.compareViews(ctx, r.config.Load(), next)
	return p, err
}

// rulesOf returns the views of a config, and the view that each listener names, by address.
func rulesOf(cfg *config.Config) (*views.Rules, map[string]string, error) {
	all, err := viewsOf(cfg.Views)
	if err != nil {
		return nil, nil, err
	}
	named := map[string]string{}
	for _, l := range cfg.Downstream.Listeners {
		named[l.Address] = l.View
	}
	rules, err := views.New(all, nil)
	return rules, named, err
}

// compareViews returns what the views of another config change, whoever is connected: by view, for listeners that name another
// one, and for clients that match none.
func (r *Relay) compareViews(ctx context.Context, cfg, next *config.Config) (changes []admin.ViewChange, err error) {
	was, wasNamed, err := rulesOf(cfg)
	if err != nil {
		return nil, err
	}
	is, isNamed, err := rulesOf(next)
	if err != nil {
		return nil, err
	}
	add := func(c admin.ViewChange, a, b *views.Rule) {
		if a == b || a != nil && b != nil && a.Same(b) && c.Note == "" || ctx.Err() != nil {
			return
		}
		r.compareRules(&c, a, b)
		if c.Note != "" || c.Gained+c.Lost+c.Changed > 0 {
			changes = append(changes, c)
		}
	}
	clients := func(name string) bool { // a view without clients is for sinks
		for _, c := range []*config.Config{cfg, next} {
			shows := func(l config.Listener) bool { return l.View == name }
			matches := func(v config.View) bool { return v.Name == name && (v.Default || !reflect.ValueOf(v.Match).IsZero()) }
			if slices.ContainsFunc(c.Downstream.Listeners, shows) || slices.ContainsFunc(c.Views, matches) {
				return true
			}
		}
		return false
	}
	for _, v := range slices.Concat(cfg.Views, slices.DeleteFunc(slices.Clone(next.Views), func(v config.View) bool { return was.Named(v.Name) != nil })) {
		if !clients(v.Name) {
			continue
		}
		a, b, note := was.Named(v.Name), is.Named(v.Name), ""
		switch {
		case a == nil:
			note = "new"
		case b == nil:
			note = "gone: its clients get another view, or are refused"
		case !reflect.DeepEqual(a.Match, b.Match):
			note = "matches other clients"
		}
		add(admin.ViewChange{View: "view " + v.Name, Note: note}, a, b)
	}
	for _, l := range cfg.Downstream.Listeners {
		c := admin.ViewChange{View: "listener " + l.Address}
		if to, stays := isNamed[l.Address]; !stays {
			c.Note = "gone, with all that its clients see"
			add(c, was.Named(l.View), nil)
		} else if to != wasNamed[l.Address] {
			add(c, was.Named(l.View), is.Named(to))
		}
	}
	a, b := was.Named(""), is.Named("")
	if a == nil || b == nil || a.Name == "" || a.Name != b.Name { // else it was compared by its name
		add(admin.ViewChange{View: "clients that match no view"}, a, b)
	}
	return changes, ctx.Err()
}

// compareRules counts what clients see by two rules of the present resources. By a nil rule they see nothing.
func (r *Relay) compareRules(c *admin.ViewChange, a, b *views.Rule) {
	see := func(rule *views.Rule, key mirror.Key) *mirror.Resource {
		if rule == nil {
			return nil
		}
		return r.aggregate.Select(key, rule.ClusterID, rule.Selection(views.Client{}).Accepts)
	}
	for _, kind := range r.aggregate.SourceKinds() {
		protects := kind.Protects()
		for _, key := range r.aggregate.Keys(kind) {
			was, is := see(a, key), see(b, key)
			if was != nil {
				c.Now++
			}
			if is != nil {
				c.Planned++
			}
			switch {
			case was == nil && is == nil:
			case was == nil:
				c.Gained++
			case is != nil && was.Version() != is.Version():
				c.Changed++
			case is == nil:
				c.Lost++
				if protects {
					if c.Opens++; c.Opens <= maxPolicies {
						c.Policies = append(c.Policies, key.String())
					}
				}
			}
		}
	}
}
