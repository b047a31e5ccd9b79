package config

import (
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
	"meshrelay/internal/identity"
	"meshrelay/mirror"
)

// ownAnnotations is the prefix of the annotations that relays write.
const ownAnnotations = "meshrelay.io/"

// rules reports mistakes in the rules of a filter. at is the field that has the rules.
func (v *validator) rules(at string, r filter.Rules) {
	_, err := filter.New(r)
	v.ruleErrors(at, err)
	v.notEmpty(at+".kinds", r.Kinds)
	v.notEmpty(at+".namespaces.include", r.Namespaces.Include)
	v.notEmpty(at+".hosts.include", r.Hosts.Include)
}

// ruleErrors reports the errors of package federation, whose parts name fields.
func (v *validator) ruleErrors(at string, err error) {
	if err == nil {
		return
	}
	parts := []error{err}
	if many, is := errors.AsType[*multierror.Error](err); is {
		parts = many.Errors
	}
	for _, p := range parts {
		field, text := at, p.Error()
		if rule, is := errors.AsType[*federation.RuleError](p); is {
			field, text = join(at, rule.Field), rule.Err.Error()
			if rule.Line > 0 {
				text = fmt.Sprintf("line %d, column %d: %s", rule.Line, rule.Column, text)
			}
		}
		v.errorf(field, "%s", text)
	}
}

// Rules returns the filter rules of a view. Sources is not one of them.
func (w View) Rules() filter.Rules {
	return filter.Rules{Kinds: w.Kinds, Namespaces: w.Namespaces, Selector: w.Selector, Expression: w.Expression}
}

// ImportRules returns the import rules of an upstream, with its domain.
func (u Upstream) ImportRules() filter.Rules {
	u.Import.Domain = u.DomainSuffix
	return u.Import
}

// RewriteRules returns the rewrite rules of an upstream, with its domain.
func (u Upstream) RewriteRules() rewrite.Rules {
	u.Rewrite.Domain = u.DomainSuffix
	return u.Rewrite
}

func (v *validator) federation(at string, u Upstream) {
	r := u.Import.Revision
	v.errorIf(r != "" && !nameShape.MatchString(r), at+".import.revision", "%q is not a revision: write it as in the label istio.io/rev", r)
	v.rules(at+".import", u.ImportRules())
	v.requireVia(at+".import.requireVia", u)
	v.errorIf(u.Rewrite.ExportTo != nil && len(u.Rewrite.ExportTo) == 0, at+".rewrite.exportTo", "empty, which would export everything to all namespaces: leave it out, or write \"*\" to export everything")
	for _, key := range slices.Sorted(maps.Keys(u.Rewrite.Annotations.Set)) {
		v.errorIf(strings.HasPrefix(key, ownAnnotations), fmt.Sprintf("%s.rewrite.annotations.set[%s]", at, key), "only relays set annotations that begin with %s, as other relays trust them: leave it out", ownAnnotations)
	}
	rules := u.RewriteRules()
	if len(validation.IsDNS1123Subdomain(u.DomainSuffix)) > 0 {
		v.errorf(at+".domainSuffix", "%q is not a DNS domain: write the part after NAME.NAMESPACE.svc. in the hosts of the upstream's services, such as cluster.local", u.DomainSuffix)
		rules.Domain = ""
	}
	_, err := rewrite.New(rules)
	v.ruleErrors(at+".rewrite", err)
	// Namespaces can be compared even if other rules are wrong.
	if filter, _ := filter.New(filter.Rules{Namespaces: u.Import.Namespaces}); filter != nil {
		v.namespaceMapping(at+".rewrite.namespaces", u.Rewrite, u.Import.Namespaces.Include, filter)
	}
	v.services(at+".services", u)
}

// requireVia reports identities that no server of the upstream can have.
func (v *validator) requireVia(at string, u Upstream) {
	v.notEmpty(at, u.Import.RequireVia)
	if u.Source != nil && !u.relayed() && len(u.Import.RequireVia) > 0 {
		v.errorf(at, "only a server that is another relay tells provenance, and this upstream is of kind %s: leave it out", u.Source.Kind())
		return
	}
	for i, text := range u.Import.RequireVia {
		field := fmt.Sprintf("%s[%d]", at, i)
		_, err := identity.Parse(text)
		v.errorOf(field, err)
		v.errorIf(slices.Contains(u.Import.RequireVia[:i], text), field, "%q is there already: leave it out", text)
	}
}

// namespaceMapping reports a mapping that gives two namespaces one name. Two resources could then
// have the same key, and the later update would win.
func (v *validator) namespaceMapping(at string, r Rewrite, include []string, filter *filter.Filter) {
	taken := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(r.Namespaces)) {
		to, field := r.Namespaces[from], fmt.Sprintf("%s[%s]", at, from)
		if !filter.PassesNamespace(mirror.Kind{}, from) {
			continue
		}
		if other, twice := taken[to]; twice {
			v.errorf(field, "%q and %q both become %q, so two resources could get the same key: map one of them elsewhere, or exclude it with import.namespaces", other, from, to)
			continue
		}
		taken[to] = from
		// Resources of namespaces that the config does not name are left out if they collide.
		own, prefixed := strings.CutPrefix(to, r.NamespacePrefix)
		if _, mapped := r.Namespaces[own]; prefixed && !mapped && slices.Contains(include, own) {
			v.errorf(field, "%q and %q, which is not mapped, both become %q, so two resources could get the same key: map %q elsewhere, or do not include it in import.namespaces", from, own, to, own)
		}
	}
}

func (v *validator) services(at string, u Upstream) {
	s := u.Services
	switch api := u.OfAPIServer(); {
	case !u.relayed() && !api:
		v.errorIf(s.Mode != ServicesOmit, at+".mode", "%q is only for %s upstreams and API servers: a file has no Kubernetes services", s.Mode, v.relayedKinds())
	case api:
		v.errorIf(s.Mode == ServicesAsIs, at+".mode", "%q passes on what an istiod tells, and an API server tells no endpoints with a service: choose omit, gateway or discover", s.Mode)
		passes, err := filter.New(filter.Rules{Profile: u.Import.Profile, Kinds: u.Import.Kinds})
		v.errorIf(s.Mode != ServicesOmit && err == nil && !passes.PassesKind(federation.ServiceEntry), at+".mode", "services become ServiceEntries, and import leaves those out: add serviceentries to import.kinds, or set mode: omit")
	}
	v.selector(at+".selector", s.Selector)
	v.errorIf(s.Selector != "" && (!u.OfAPIServer() || s.Mode == ServicesOmit), at+".selector", "only for the services of API servers in the modes gateway and discover: an istiod does not tell the labels of a service")
	v.errorIf(s.Only != "" && (!u.OfAPIServer() || s.Mode == ServicesOmit), at+".only", "only for the services of API servers in the modes gateway and discover: an istiod does not tell which services have a ServiceExport")
	v.errorIf(s.Pods != nil && (!u.OfAPIServer() || s.Mode != ServicesDiscover), at+".pods", "only for API servers with mode: discover")
	v.errorIf(s.Ambient != "" && (!u.OfAPIServer() || !s.ReadsPods()), at+".ambient", "only for API servers with mode: discover, and not with pods: false")
	v.errorIf(s.Mode == ServicesGateway && u.movesServices(), at+".mode", "a gateway routes by the service names of its own mesh, and rewrite changes them: leave out rewrite.namespaces, namespacePrefix and the mapping of the cluster domain, or choose another mode")
	v.errorIf(s.Mode == ServicesGateway && len(s.Gateways) == 0, at+".gateways", "missing: give at least one address of the cluster's east-west gateway")
	v.errorIf(s.Mode != ServicesGateway && len(s.Gateways) > 0, at+".gateways", "only for mode: gateway, and the mode is %q", s.Mode)
	v.errorIf(s.Network != "" && s.Mode != ServicesGateway && s.Mode != ServicesDiscover, at+".network", "only for the modes gateway and discover, and the mode is %q", s.Mode)
	v.id(at+".network", s.Network)
	for i, g := range s.Gateways {
		v.errorOf(fmt.Sprintf("%s.gateways[%d]", at, i), (services.Gateways{Addresses: []string{g}}).Check())
	}
}

// relayedKinds returns the names of the source kinds that are control planes, for a message.
func (v *validator) relayedKinds() string {
	var names []string
	for _, s := range v.sources {
		if s.Relayed() {
			names = append(names, s.Kind())
		}
	}
	return strings.Join(names, " or ")
}

// movesServices reports whether rewriting changes the hosts of Kubernetes services.
func (u Upstream) movesServices() bool {
	r, domain := u.Rewrite, "."+u.DomainSuffix
	return r.NamespacePrefix != "" || len(r.Namespaces) > 0 || slices.ContainsFunc(slices.Collect(maps.Keys(r.Hosts)), func(from string) bool {
		return strings.HasSuffix("."+from, domain) || strings.HasSuffix(domain, "."+from)
	})
}

func (v *validator) merges(all []Merge) {
	first := map[mirror.Kind]string{}
	general := -1
	for i, m := range all {
		at := fmt.Sprintf("merge[%d]", i)
		if m.Kinds != nil && len(m.Kinds) == 0 {
			v.errorf(at+".kinds", "empty: leave it out to mean all other kinds, or name at least one kind")
			continue
		}
		if v.reported(at + ".policy") {
			continue
		}
		if len(m.Kinds) == 0 {
			v.errorIf(general >= 0, at, "merge[%d] already applies to all other kinds: name kinds here", general)
			general = i
			v.errorIf(strings.HasPrefix(m.Policy, "union"), at+".policy", "it is only for ServiceEntry: add kinds: [serviceentries] to this rule")
		}
		v.kinds(at+".kinds", m.Kinds, at, first, func(field string, kind mirror.Kind) {
			_, err := merge.ByName(m.Policy, kind)
			v.errorOf(field, err)
		})
	}
}

// kinds reports words that name no kind, or a kind that already has an owner. It calls f with each
// other kind, and records owner for it.
func (v *validator) kinds(at string, words []string, owner string, owners map[mirror.Kind]string, f func(field string, kind mirror.Kind)) {
	for i, word := range words {
		field := fmt.Sprintf("%s[%d]", at, i)
		kinds, err := mirror.ParseKinds(word)
		v.errorOf(field, err)
		for _, kind := range kinds {
			if other, taken := owners[kind]; taken {
				v.errorf(field, "%s already names %s", other, kind)
				continue
			}
			owners[kind] = owner
			f(field, kind)
		}
	}
}

// views checks the views, and that some client can get each of them.
func (v *validator) views(c *Config) {
	byListener, bySink := map[string]bool{}, map[string]bool{}
	for _, s := range c.Sinks {
		bySink[s.View] = true
	}
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
			v.errorIf(len(w.Match.Identities) > 0, at+".default", "the default view applies to every client that no other view matches, and match.identities only to some: leave out one of them")
		}
		given := !reflect.ValueOf(w.Match).IsZero()
		switch {
		case byListener[w.Name], bySink[w.Name] && !given && !w.Default:
		case allByListener:
			v.errorf(at, "no client can get this view: every listener names another one")
		case !given && !w.Default:
			v.errorf(at, "no client can get this view: it has no match, is not the default, and no listener names it")
		case given && all >= 0:
			v.errorf(at+".match", "no client can get this view: views[%d] comes first and matches every client", all)
		case given && slices.ContainsFunc(c.Views[:i], func(o View) bool { return reflect.DeepEqual(o.Match, w.Match) }):
			v.errorf(at+".match", "no client can get this view: an earlier view has the same match")
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

// everybody reports whether m matches every client.
func (m Match) everybody() bool {
	return reflect.DeepEqual(m, Match{NodeIDs: m.NodeIDs}) && slices.Contains(m.NodeIDs, "*")
}

// notEmpty reports an empty list in the file. Absent means all, and the author may have meant
// none.
func (v *validator) notEmpty(field string, list []string) {
	v.errorIf(list != nil && len(list) == 0, field, "empty: leave it out to mean all, or name at least one")
}

func (v *validator) match(at string, m Match, listeners []Listener) {
	for _, list := range []struct {
		field string
		globs []string
	}{{"nodeIDs", m.NodeIDs}, {"clusterIDs", m.ClusterIDs}, {"namespaces", m.Namespaces}} {
		v.notEmpty(at+"."+list.field, list.globs)
		for i, g := range list.globs {
			v.errorIf(g == "", fmt.Sprintf("%s.%s[%d]", at, list.field, i), "empty: write a pattern, in which * stands for any text and ? for one character")
		}
	}
	v.notEmpty(at+".identities", m.Identities)
	v.identities(at+".identities", m.Identities, listeners)
}

// selector reports a text that is not a label selector.
func (v *validator) selector(field, text string) {
	if _, err := labels.Parse(text); err != nil {
		v.errorf(field, "%q is not a label selector: %v", text, err)
	}
}
