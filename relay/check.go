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

// claiming are the kinds whose hosts are compared with those of other resources.
var claiming = []mirror.Kind{federation.ServiceEntry, federation.VirtualService, federation.DestinationRule}

// checking is one check of resources: what an intake of its own makes of them, and an aggregate of the copies that
// concern them.
type checking struct {
	relay    *Relay
	config   *config.Config
	upstream config.Upstream
	out      *admin.Checked
	imported map[mirror.Key]*mirror.Resource // by the key under which they would be served
	fresh    int                             // of them, those that the upstream does not have
}

// check tells what the relay would do with the resources of a YAML text, as those of an upstream. It imports, rewrites and
// merges them with the code of the relay, beside the copies of the same key and of the same hosts.
func (r *Relay) check(ctx context.Context, upstream string, yaml []byte) (*admin.Checked, error) {
	c := &checking{relay: r, config: r.config.Load(), imported: map[mirror.Key]*mirror.Resource{}}
	if err := c.choose(upstream); err != nil {
		return nil, err
	}
	c.out = &admin.Checked{Upstream: c.upstream.Name, Findings: []admin.Finding{}, Changes: []admin.CheckedChange{}}
	all, err := parsed(yaml, c.upstream.Name)
	if err == nil {
		c.out.Resources = len(all)
		err = c.take(ctx, all)
	}
	if err == nil {
		err = c.merge(ctx)
	}
	slices.SortStableFunc(c.out.Findings, func(a, b admin.Finding) int { return mirror.CompareKeys(a.Key, b.Key) })
	return c.out, err
}

// choose sets the upstream.
func (c *checking) choose(name string) error {
	var names []string
	for _, u := range c.config.Upstreams {
		names = append(names, u.Name)
		if u.Name == name || name == "" && len(c.config.Upstreams) == 1 {
			c.upstream = u
			return nil
		}
	}
	if name == "" {
		return fmt.Errorf("the relay has several upstreams: name one with --upstream: %s", text.List(names, 20, 1000))
	}
	return fmt.Errorf("there is no upstream %.64q: there are %s", name, text.List(names, 20, 1000))
}

// parsed returns the resources of a YAML text.
func parsed(yaml []byte, source string) (all []*mirror.Resource, err error) {
	kube.SplitDocuments(yaml, func(document []byte, line int) {
		if err != nil {
			return
		}
		d := kube.ParseDocument(document, source)
		for _, p := range d.Problems {
			if !p.Foreign {
				err = fmt.Errorf("line %d: %s", line+p.Line, strings.TrimPrefix(p.What+": "+p.Reason, ": "))
				return
			}
		}
		for _, r := range d.Resources {
			all = append(all, r.Resource)
		}
		if len(all) > admin.MaxChecked {
			err = fmt.Errorf("more than %d resources: check fewer at a time", admin.MaxChecked)
		}
	})
	return all, err
}

func (c *checking) find(key mirror.Key, outcome admin.Outcome, reason, format string, args ...any) {
	c.out.Findings = append(c.out.Findings, admin.Finding{Key: key, Outcome: outcome, Reason: reason, Detail: fmt.Sprintf(format, args...)})
}

// take imports the resources into an intake of their own.
func (c *checking) take(ctx context.Context, all []*mirror.Resource) error {
	rules, err := intake.NewRules(c.upstream, c.config.Provenance, c.config.Node.Revision, c.upstream.Source.Relayed())
	if err != nil {
		return err
	}
	in := intake.New(c.upstream, mirror.NewStore(), rules, false)
	event := intake.Received{}
	for _, r := range all {
		event.Updates = append(event.Updates, intake.Update{Scope: intake.KindScope(r.Kind()), Elements: intake.Resources(r)})
	}
	if _, err := in.Step(time.Now(), event); err != nil {
		return err
	}
	for _, r := range all {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, t := range in.Trace(r.Key()) {
			if t.Original == r.Key() {
				if err := c.judge(t); err != nil {
					return err
				}
			}
		}
	}
	has := 0
	for _, u := range c.relay.manager.Status() {
		if u.Name == c.upstream.Name {
			has = admin.Total(u.Resources)
		}
	}
	if most := c.upstream.Limits.MaxResources; c.fresh > 0 && has+c.fresh > most {
		c.find(mirror.Key{}, admin.Refused, "limits", "the upstream has %d resources, and %d are new: limits.maxResources allows %d", has, c.fresh, most)
	}
	return nil
}

// judge notes what the intake has made of a resource.
func (c *checking) judge(t intake.Trace) error {
	switch {
	case t.Refused != "":
		c.find(t.Original, admin.Refused, "", "%s", t.Refused)
	case t.Reason != "":
		c.find(t.Original, admin.LeftOut, t.Reason, "%s", t.Detail)
	case t.Resource != nil:
		c.imported[t.Key] = t.Resource
		if !slices.ContainsFunc(c.relay.aggregate.Resolve(t.Key).Copies, func(p mirror.Copy) bool { return p.Source == c.upstream.Name }) {
			c.fresh++
		}
		changes, err := admin.ChangesOf(t.From, t.Resource)
		if err != nil || len(changes) == 0 {
			return err
		}
		served, err := kube.New(t.Resource, "", t.Resource.Version())
		c.out.Changes = append(c.out.Changes, admin.CheckedChange{Key: t.Original, Changes: changes, Served: served})
		return err
	}
	return nil
}

// merge merges the imported resources with the copies that concern them.
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
	if err := c.addOthers(ctx, stores); err != nil {
		return err
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
		c.judgeMerge(key, aggregate.Resolve(key))
	}
	for _, conflict := range register.HostConflicts() {
		c.judgeHost(conflict)
	}
	return nil
}

// addOthers adds the present copies of the imported keys, and of all keys that claim one of their hosts.
func (c *checking) addOthers(ctx context.Context, stores map[string]*mirror.Store) error {
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
	claims := func(r *mirror.Resource) bool {
		return slices.ContainsFunc(federation.Claims(r, federation.DefaultDomain), func(host string) bool { return hosts[host] })
	}
	for _, kind := range claiming {
		for i, key := range c.relay.aggregate.Keys(kind) {
			if i%1024 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			r := c.relay.aggregate.Get(key) // nil: no copy is served, or it is united with another key
			if r == nil && len(hosts) > 0 || r != nil && claims(r) {
				add(key)
			}
		}
	}
	return nil
}

// judgeMerge notes a resource that is not served because of others, and one that is served in their place.
func (c *checking) judgeMerge(key mirror.Key, s mirror.Resolution) {
	mine := slices.IndexFunc(s.Copies, func(p mirror.Copy) bool { return p.Source == c.upstream.Name })
	var others []string
	for i, p := range s.Copies {
		if i != mine {
			others = append(others, p.Source)
		}
	}
	outcome := admin.OutcomeOf(mine, s.Decision)
	switch {
	case s.Yields != "":
		c.find(key, admin.Rejected, "hostConflicts", "%s", s.Yields)
	case s.MergedInto != mirror.Key{}:
		c.find(key, admin.United, "", "it would be merged into %s", s.MergedInto)
	case len(others) > 0 && outcome == admin.Served:
		c.find(key, outcome, "", "it would be served in place of the copy of %s: %s", text.List(others, 10, 500), s.Decision.Reason)
	case len(others) > 0:
		c.find(key, outcome, "", "%s has the key, too: %s", text.List(others, 10, 500), s.Decision.Reason)
	}
}

// judgeHost notes a host of an imported resource that another upstream claims.
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
	if len(others) == 0 {
		return
	}
	for _, key := range mine {
		detail := fmt.Sprintf("host %s is also claimed by %s", text.Abbreviate(conflict.Host), text.List(others, 10, 500))
		if conflict.Winner != "" {
			detail += "; istiods take " + conflict.Winner
		}
		c.find(key, admin.Served, "hosts", "%s", detail)
	}
}
