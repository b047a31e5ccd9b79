package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/conflicts"
	"meshrelay/federation/tracker"
	"meshrelay/internal/kube"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// checking is one check of resources.
type checking struct {
	relay    *Relay
	config   *config.Config
	upstream config.Upstream
	out      *admin.Checked
	imported map[mirror.Key]*mirror.Resource // by the key under which they would be served
}

// check tells what the relay would do with the resources of a YAML text, as those of an upstream. It imports, rewrites and
// merges them with the code of the relay, beside the copies of the same key and of the same hosts.
func (r *Relay) check(ctx context.Context, upstream string, yaml []byte) (*admin.Checked, error) {
	c := &checking{relay: r, config: r.config.Load(), imported: map[mirror.Key]*mirror.Resource{}}
	var names []string
	for _, u := range c.config.Upstreams {
		names = append(names, u.Name)
		if u.Name == upstream || upstream == "" && len(c.config.Upstreams) == 1 {
			c.upstream = u
		}
	}
	if c.upstream.Name == "" {
		return nil, fmt.Errorf("there is no upstream %.64q: name one with --upstream: %s", upstream, text.List(names, 20, 1000))
	}
	all, err := parsed(yaml, c.upstream.Name)
	if err != nil {
		return nil, err
	}
	c.out = &admin.Checked{Upstream: c.upstream.Name, Resources: len(all), Findings: []admin.Finding{}, Changes: []admin.CheckedChange{}}
	if err := c.take(all); err != nil {
		return nil, err
	}
	if err := c.merge(ctx); err != nil {
		return nil, err
	}
	slices.SortStableFunc(c.out.Findings, func(a, b admin.Finding) int { return mirror.CompareKeys(a.Key, b.Key) })
	return c.out, nil
}

// parsed returns the resources of a YAML text.
func parsed(yaml []byte, source string) (all []*mirror.Resource, err error) {
	kube.SplitDocuments(yaml, func(document []byte, line int) {
		d := kube.ParseDocument(document, source)
		for _, p := range d.Problems {
			if err == nil && !p.Foreign {
				err = fmt.Errorf("line %d: %s", line+p.Line, strings.TrimPrefix(p.What+": "+p.Reason, ": "))
			}
		}
		for _, r := range d.Resources {
			all = append(all, r.Resource)
		}
	})
	if err == nil && len(all) > admin.MaxChecked {
		err = fmt.Errorf("more than %d resources: check fewer at a time", admin.MaxChecked)
	}
	return all, err
}

func (c *checking) find(key mirror.Key, outcome admin.Outcome, reason, format string, args ...any) {
	c.out.Findings = append(c.out.Findings, admin.Finding{Key: key, Outcome: outcome, Reason: reason, Detail: fmt.Sprintf(format, args...)})
}

// has reports whether a copy is of the upstream.
func (c *checking) has(p mirror.Copy) bool { return p.Source == c.upstream.Name }

// take imports the resources into an intake of their own, and notes what becomes of each.
func (c *checking) take(all []*mirror.Resource) error {
	rules, err := intake.NewRules(c.upstream, c.config.Provenance, c.config.Node.Revision, c.upstream.Source.Relayed())
	if err != nil {
		return err
	}
	in := intake.New(c.upstream, mirror.NewStore(), rules, false)
	event := intake.Received{}
	for _, r := range all {
		if field := unread(c.upstream, r); field != "" {
			c.find(r.Key(), admin.LeftOut, field, "the relay does not read it from the API server")
			continue
		}
		event.Updates = append(event.Updates, intake.Update{Scope: intake.KindScope(r.Kind()), Elements: intake.Resources(r)})
	}
	if _, err := in.Step(time.Now(), event); err != nil {
		return err
	}
	fresh := 0
	for _, r := range all {
		for _, t := range in.Trace(r.Key()) {
			switch {
			case t.Original != r.Key():
			case t.Refused != "":
				c.find(t.Original, admin.Refused, "", "%s", t.Refused)
			case t.Reason != "":
				c.find(t.Original, admin.LeftOut, t.Reason, "%s", t.Detail)
			case t.Resource != nil:
				c.imported[t.Key] = t.Resource
				if !slices.ContainsFunc(c.relay.aggregate.Resolve(t.Key).Copies, c.has) {
					fresh++
				}
				changes, err := admin.ChangesOf(t.From, t.Resource)
				if err != nil {
					return err
				}
				if len(changes) > 0 {
					served, err := kube.New(t.Resource, "", t.Resource.Version())
					if err != nil {
						return err
					}
					c.out.Changes = append(c.out.Changes, admin.CheckedChange{Key: t.Original, Changes: changes, Served: served})
				}
			}
		}
	}
	for _, u := range c.relay.manager.Status() {
		if has, most := admin.Total(u.Resources), c.upstream.Limits.MaxResources; u.Name == c.upstream.Name && fresh > 0 && has+fresh > most {
			c.find(mirror.Key{}, admin.Refused, "limits", "the upstream has %d resources, and %d are new: limits.maxResources allows %d", has, fresh, most)
		}
	}
	return nil
}

// merge merges the imported resources with the copies that concern them: those of their keys, and those of keys that
// claim one of their hosts.
func (c *checking) merge(ctx context.Context) error {
	use, err := merging(c.config)
	if err != nil {
		return err
	}
	stores := map[string]*mirror.Store{}
	var sources []mirror.Source
	for _, u := range c.config.Upstreams {
		stores[u.Name] = mirror.NewStore()
		sources = append(sources, mirror.Source{Name: u.Name, Store: stores[u.Name]})
	}
	add := func(key mirror.Key) {
		for _, p := range c.relay.aggregate.Resolve(key).Copies {
			if store := stores[p.Source]; store != nil {
				store.Put(p.Resource)
			}
		}
	}
	hosts := map[string]bool{}
	for key, r := range c.imported {
		add(key)
		for _, host := range federation.Claims(r, federation.DefaultDomain) {
			hosts[host] = true
		}
	}
	for _, kind := range federation.Owned {
		for _, key := range c.relay.aggregate.Keys(kind) {
			r := c.relay.aggregate.Get(key) // nil: no copy is served, or it is united with another key
			if len(hosts) > 0 && (r == nil || slices.ContainsFunc(federation.Claims(r, federation.DefaultDomain), func(host string) bool { return hosts[host] })) {
				add(key)
			}
		}
	}
	for _, r := range c.imported {
		stores[c.upstream.Name].Put(r)
	}
	aggregate, register := mirror.NewAggregate(), tracker.New(slog.New(slog.DiscardHandler))
	use(aggregate)
	if err := register.Follow(aggregate); err != nil {
		return err
	}
	aggregate.SetSources(sources)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- aggregate.Run(running) }()
	err = aggregate.CaughtUp(ctx)
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return err
	}
	for key := range c.imported {
		c.judgeKey(key, aggregate.Resolve(key))
	}
	for _, conflict := range register.HostConflicts() {
		c.judgeHost(conflict)
	}
	return nil
}

// judgeKey notes a resource that is not served because of others, and one that is served in their place.
func (c *checking) judgeKey(key mirror.Key, s mirror.Resolution) {
	outcome := admin.OutcomeOf(slices.IndexFunc(s.Copies, c.has), s.Decision)
	var others []string
	for _, p := range s.Copies {
		if !c.has(p) {
			others = append(others, p.Source)
		}
	}
	switch {
	case s.Yields != "":
		c.find(key, admin.Rejected, "hostConflicts", "%s", s.Yields)
	case s.MergedInto != mirror.Key{}:
		c.find(key, admin.United, "", "it would be merged into %s", s.MergedInto)
	case len(others) > 0:
		c.find(key, outcome, "", "%s has the key, too: %s", text.List(others, 10, 500), s.Decision.Reason)
	}
}

// judgeHost notes a host of imported resources that another upstream claims.
func (c *checking) judgeHost(conflict conflicts.HostConflict) {
	var mine []mirror.Key
	var others []string
	for _, claim := range conflict.Claims {
		key := mirror.Key{Kind: conflict.Kind, Namespace: claim.Namespace, Name: claim.Name}
		if claim.Source != c.upstream.Name {
			others = append(others, fmt.Sprintf("%s/%s of %s", claim.Namespace, claim.Name, claim.Source))
		} else if c.imported[key] != nil {
			mine = append(mine, key)
		}
	}
	for _, key := range mine {
		if len(others) > 0 {
			c.find(key, admin.Served, "hosts", "host %s is also claimed by %s", text.Abbreviate(conflict.Host), text.List(others, 10, 500))
		}
	}
}
