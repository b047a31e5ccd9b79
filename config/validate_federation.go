package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/federation/merge"
	"meshrelay/federation/rewrite"
	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// ownAnnotations is what the keys of the annotations that relays write begin with.
const ownAnnotations = "meshrelay.io/"

// rules reports what is wrong with rules of a filter, field by field below at.
func (v *validator) rules(at string, r filter.Rules) {
	_, err := filter.New(r)
	v.ruleErrors(at, err)
}

// ruleErrors reports the errors of package federation, whose parts name fields.
func (v *validator) ruleErrors(at string, err error) {
	if err == nil {
		return
	}
	parts := []error{err}
	var many *multierror.Error
	if errors.As(err, &many) {
		parts = many.Errors
	}
	for _, p := range parts {
		field, text := at, p.Error()
		var rule *federation.RuleError
		if errors.As(p, &rule) {
			field, text = join(at, rule.Field), rule.Err.Error()
			if rule.Line > 0 {
				text = fmt.Sprintf("at %d:%d of it: %s", rule.Line, rule.Column, text)
			}
		}
		v.errorf(field, "%s", text)
	}
}

// Rules returns what a view selects, but for its sources.
func (w View) Rules() filter.Rules {
	return filter.Rules{Kinds: w.Kinds, Namespaces: w.Namespaces, Selector: w.Selector, Expression: w.Expression}
}

// RewriteRules returns how the resources of an upstream are reshaped.
func (u Upstream) RewriteRules() rewrite.Rules {
	u.Rewrite.Domain = u.DomainSuffix
	return u.Rewrite
}

func (v *validator) federation(at string, u Upstream) {
	if r := u.Import.Revision; r != "" && v.noted(at+".import.revision") && !nameShape.MatchString(r) {
		v.errorf(at+".import.revision", "%q is not a revision: it is written as in the label istio.io/rev", r)
	}
	v.rules(at+".import", u.Import)
	v.notEmpty(at+".import.kinds", u.Import.Kinds)
	v.notEmpty(at+".import.namespaces.include", u.Import.Namespaces.Include)
	v.errorIf(u.Rewrite.ExportTo != nil && len(u.Rewrite.ExportTo) == 0, at+".rewrite.exportTo", "is empty, which would make everything public: leave it out, or say \"*\" if that is meant")
	for _, key := range slices.Sorted(maps.Keys(u.Rewrite.Annotations.Set)) {
		v.errorIf(strings.HasPrefix(key, ownAnnotations), fmt.Sprintf("%s.rewrite.annotations.set[%s]", at, key), "annotations that begin with %s are the relay's own: relays trust what they say, so they can not be made up", ownAnnotations)
	}
	rules := u.RewriteRules()
	if len(validation.IsDNS1123Subdomain(u.DomainSuffix)) > 0 {
		v.errorf(at+".domainSuffix", "%q is not a DNS domain: give the cluster domain of the source, what stands behind NAME.NAMESPACE.svc. in its services, such as cluster.local", u.DomainSuffix)
		rules.Domain = ""
	}
	_, err := rewrite.New(rules)
	v.ruleErrors(at+".rewrite", err)
	// Namespaces can be compared whatever else is wrong with the rules.
	if filter, _ := filter.New(filter.Rules{Namespaces: u.Import.Namespaces}); filter != nil {
		v.namespaceMapping(at+".rewrite.namespaces", u.Rewrite, u.Import.Namespaces.Include, filter)
	}
	v.services(at+".services", u)
}

// namespaceMapping reports a mapping that would make two keys one: then what is served
// under it would depend on which came last.
func (v *validator) namespaceMapping(at string, r Rewrite, include []string, filter *filter.Filter) {
	taken := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(r.Namespaces)) {
		to, field := r.Namespaces[from], fmt.Sprintf("%s[%s]", at, from)
		if !filter.PassesNamespace(mirror.Kind{}, from) {
			continue
		}
		if other, twice := taken[to]; twice {
			v.errorf(field, "both %q and %q become %q, so that two resources of one name become one: map one of them elsewhere, or exclude it with import.namespaces", other, from, to)
			continue
		}
		taken[to] = from
		// A namespace that the config does not name may turn up later: it is then left out.
		own, prefixed := strings.CutPrefix(to, r.NamespacePrefix)
		if _, mapped := r.Namespaces[own]; prefixed && !mapped && slices.Contains(include, own) {
			v.errorf(field, "both %q and %q, which is not mapped, become %q, so that two resources of one name become one: map %q elsewhere, or do not include it in import.namespaces", from, own, to, own)
		}
	}
}

func (v *validator) services(at string, u Upstream) {
	s := u.Services
	v.errorIf(!u.relayed() && s.Mode != ServicesOmit, at+".mode", "%q is for %s upstreams: only an istiod makes ServiceEntries of services", s.Mode, v.relayedKinds())
	v.errorIf(s.Mode == ServicesGateway && u.movesServices(), at+".mode", "a gateway routes by the names that its own mesh gives to services, and rewrite gives them others: leave out namespaces, namespacePrefix and the mapping of its cluster domain, or take another mode")
	v.errorIf(s.Mode == ServicesGateway && len(s.Gateways) == 0, at+".gateways", "missing: give at least one address of the cluster's east-west gateway")
	v.errorIf(s.Mode != ServicesGateway && len(s.Gateways) > 0, at+".gateways", "is for mode: gateway, and the mode is %q", s.Mode)
	v.errorIf(s.Network != "" && s.Mode != ServicesGateway && s.Mode != ServicesDiscover, at+".network", "is for the modes gateway and discover, and the mode is %q", s.Mode)
	v.id(at+".network", s.Network)
	v.errorIf(s.Locality != "" && s.Mode != ServicesGateway, at+".locality", "is for mode: gateway, and the mode is %q", s.Mode)
	for i, g := range s.Gateways {
		v.errorOf(fmt.Sprintf("%s.gateways[%d]", at, i), (services.Gateways{Addresses: []string{g}}).Check())
	}
	v.errorOf(at+".locality", (services.Gateways{Addresses: []string{"192.0.2.1"}, Locality: s.Locality}).Check())
}

// relayedKinds names the kinds of sources that are control planes.
func (v *validator) relayedKinds() string {
	var names []string
	for _, s := range v.sources {
		if s.Relayed() {
			names = append(names, s.Kind())
		}
	}
	return strings.Join(names, " or ")
}

// movesServices reports whether the hosts of Kubernetes services become others.
func (u Upstream) movesServices() bool {
	r, domain := u.Rewrite, "."+u.DomainSuffix
	return r.NamespacePrefix != "" || len(r.Namespaces) > 0 || slices.ContainsFunc(r.Hosts, func(h HostMapping) bool {
		return strings.HasSuffix("."+h.From, domain) || strings.HasSuffix(domain, "."+h.From)
	})
}

// Union returns how the policy union merges, zero for another one.
func (m Merge) Union() merge.Union {
	if m.Policy != MergeUnion {
		return merge.Union{}
	}
	return merge.Union{SameHost: m.SameHost, AcrossNamespaces: m.AcrossNamespaces}
}

func (v *validator) merges(all []Merge) {
	first := map[mirror.Kind]string{}
	general := -1
	for i, m := range all {
		at := fmt.Sprintf("merge[%d]", i)
		if m.Kinds != nil && len(m.Kinds) == 0 {
			v.errorf(at+".kinds", "is empty: leave it out, which means all other kinds, or name at least one")
			continue
		}
		if v.reported(at + ".policy") {
			continue
		}
		v.errorIf(m.SameHost && m.Policy != MergeUnion, at+".sameHost", "is for policy: union, and the policy is %q", m.Policy)
		v.errorIf(m.AcrossNamespaces && !m.SameHost, at+".acrossNamespaces", "is for sameHost: true: copies of one key are in one namespace")
		if len(m.Kinds) == 0 {
			v.errorIf(general >= 0, at, "merge[%d] is for all other kinds already: name kinds", general)
			general = i
			v.errorIf(m.Policy == MergeUnion, at+".policy", "union is for ServiceEntry: name it in kinds")
		}
		v.kinds(at+".kinds", m.Kinds, at, first, func(field string, kind mirror.Kind) {
			_, err := merge.ByName(m.Policy, kind, m.Union())
			v.errorOf(field, err)
		})
	}
}

// kinds reports words that name no kind, or a kind that has an owner, and calls f with the kinds of
// the others. It makes owner theirs, or the field of the word where owner is empty.
func (v *validator) kinds(at string, words []string, owner string, owners map[mirror.Kind]string, f func(field string, kind mirror.Kind)) {
	for i, word := range words {
		field := fmt.Sprintf("%s[%d]", at, i)
		kinds, err := mirror.ParseKinds(word)
		v.errorOf(field, err)
		for _, kind := range kinds {
			if other, taken := owners[kind]; taken {
				v.errorf(field, "%s is for %s already", other, kind)
				continue
			}
			owners[kind] = cmp.Or(owner, field)
			f(field, kind)
		}
	}
}

// views checks the views, and that each can be somebody's.
func (v *validator) views(c *Config) {
	byListener := map[string]bool{}
	allByListener := len(c.Downstream.Listeners) > 0
	for _, l := range c.Downstream.Listeners {
		byListener[l.View] = true
		allByListener = allByListener && l.View != ""
	}
	names := map[string]int{}
	fallback, all := -1, -1
	for i, w := range c.Views {
		at := fmt.Sprintf("views[%d]", i)
		v.label(at+".name", w.Name)
		if n, taken := names[w.Name]; taken {
			v.errorf(at+".name", "%q is the name of views[%d] already: names must differ", w.Name, n)
		}
		names[w.Name] = i
		v.rules(at, w.Rules())
		v.notEmpty(at+".sources", w.Sources)
		v.notEmpty(at+".kinds", w.Kinds)
		v.notEmpty(at+".namespaces.include", w.Namespaces.Include)
		for n, source := range w.Sources {
			known := slices.ContainsFunc(c.Upstreams, func(u Upstream) bool { return u.Name == source })
			mayBeFound := len(c.Clusters) > 0 && nameShape.MatchString(source)
			v.errorIf(!known && !mayBeFound, fmt.Sprintf("%s.sources[%d]", at, n), "there is no upstream %q", source)
		}
		v.id(at+".clusterID", w.ClusterID)
		v.match(at+".match", w.Match, c.Downstream.Listeners)
		if w.Default {
			v.errorIf(fallback >= 0, at+".default", "views[%d] is the default already", fallback)
			fallback = i
			v.errorIf(len(w.Match.Identities) > 0, at+".default", "the default view is for every client that no other view matches, and match.identities is for some only: leave out one of them")
		}
		given := !reflect.ValueOf(w.Match).IsZero()
		switch {
		case byListener[w.Name]:
		case allByListener:
			v.errorf(at, "no client can have this view: every listener names another one")
		case !given && !w.Default:
			v.errorf(at, "no client can have this view: it has no match, is not the default, and no listener names it")
		case given && all >= 0:
			v.errorf(at+".match", "no client can have this view: views[%d] matches every one before", all)
		case given && slices.ContainsFunc(c.Views[:i], func(o View) bool { return reflect.DeepEqual(o.Match, w.Match) }):
			v.errorf(at+".match", "no client can have this view: a view before it matches the same")
		}
		if all < 0 && given && w.Match.everybody() {
			all = i
		}
	}
	for i, l := range c.Downstream.Listeners {
		if _, ok := names[l.View]; l.View != "" && !ok {
			v.errorf(fmt.Sprintf("downstream.listeners[%d].view", i), "there is no view %q", l.View)
		}
	}
}

// everybody reports whether every client matches.
func (m Match) everybody() bool {
	return reflect.DeepEqual(m, Match{NodeIDs: m.NodeIDs}) && slices.Contains(m.NodeIDs, "*")
}

// notEmpty reports a list that is written and empty: leaving it out means all, which may be
// the opposite of what is meant.
func (v *validator) notEmpty(field string, list []string) {
	v.errorIf(list != nil && len(list) == 0, field, "is empty: leave it out, which means all, or name at least one")
}

func (v *validator) match(at string, m Match, listeners []Listener) {
	for _, list := range []struct {
		field string
		globs []string
	}{{"nodeIDs", m.NodeIDs}, {"clusterIDs", m.ClusterIDs}, {"namespaces", m.Namespaces}} {
		v.notEmpty(at+"."+list.field, list.globs)
		for i, g := range list.globs {
			v.errorIf(g == "", fmt.Sprintf("%s.%s[%d]", at, list.field, i), "is empty: a pattern is a text in which * stands for any text and ? for one character")
		}
	}
	v.notEmpty(at+".identities", m.Identities)
	v.identities(at+".identities", m.Identities, listeners)
	v.selector(at+".labels", m.Labels)
}

// selector reports a text that is no label selector.
func (v *validator) selector(field, text string) {
	if _, err := labels.Parse(text); err != nil {
		v.errorf(field, "%q is not a label selector: %v", text, err)
	}
}
