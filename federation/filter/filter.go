// Package filter decides which resources of an upstream are imported. It compiles the rules once, checks the
// cheapest first, bounds the cost of an expression, and names the rule that leaves a resource out.
//
// The package is pure. It must not know where resources come from, and what is done with them.
package filter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/federation"
	"meshrelay/internal/glob"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// Rules decide which resources pass. A resource must pass each rule. An empty rule lets everything pass.
type Rules struct {
	// Profile is a closed list of kinds; empty means ProfileAll. No other profile lets anything of the root
	// namespace pass.
	Profile string `yaml:"profile,omitempty" oneof:"services routing all"`
	// RootNamespace is the root namespace of the upstream's mesh, empty for those of MeshConfigs. A Filter does not read it.
	RootNamespace string `yaml:"rootNamespace,omitempty"`
	// Kinds narrow Profile. They are kinds as kubectl takes them ("serviceentries", "se", "gateways.networking.istio.io"),
	// or "group/Kind", which may be a kind that is not well known. A word may mean several kinds.
	Kinds []string `yaml:"kinds,omitempty"`
	// Namespaces lets MeshConfig and cluster-scoped resources of well-known kinds pass: they have no
	// namespace, and Kinds can leave them out. A resource of another kind without a namespace passes only
	// when Include is empty.
	Namespaces Globs `yaml:"namespaces,omitempty"`
	// Selector is a Kubernetes label selector. MeshConfig has no labels and passes.
	Selector string `yaml:"selector,omitempty"`
	// Revision lets resources pass that have no label istio.io/rev, or have this value there (PROTOCOL C11).
	Revision string `yaml:"revision,omitempty"`
	Hosts    Hosts  `yaml:"hosts,omitempty"`
	// Expression is a CEL expression that must be true. Its variables are kind, group, namespace and name,
	// the maps labels and annotations, and spec: the body with the names and values of its YAML. For a
	// MeshConfig, only kind and spec are set. A resource for which the expression fails does not pass.
	Expression string `yaml:"expression,omitempty"`
	// RequireVia are patterns of the identities of servers whose word on provenance is believed. A Filter does not
	// read them.
	RequireVia []string `yaml:"requireVia,omitempty"`
	// Domain is the cluster domain of the upstream. It completes short hosts for Hosts.
	Domain string `yaml:"-" json:"-"`
}

// LimitsContent reports whether any rule limits what an upstream can bring. Revision does not count, because
// an upstream chooses the revision labels itself. Hosts do not, because a kind that claims none passes.
func (r Rules) LimitsContent() bool {
	return r.Closed() || len(r.Kinds) > 0 || len(r.Namespaces.Include) > 0 || len(r.Namespaces.Exclude) > 0 || r.Selector != "" || r.Expression != ""
}

// Globs selects names by patterns. In a pattern, * is any text and ? is any character.
type Globs struct {
	// Include are patterns; one must match. Empty: all names are included.
	Include []string `yaml:"include,omitempty"`
	// Exclude are patterns; none may match.
	Exclude []string `yaml:"exclude,omitempty"`
}

// Reason is the rule that leaves a resource out. It is a label of metrics.
type Reason string

// The reasons, in the order of the checks: the cheapest check comes first.
const (
	ReasonNone            Reason = "" // it passes
	ReasonProfile         Reason = "profile"
	ReasonKind            Reason = "kind"
	ReasonRoot            Reason = "root-namespace" // of the intake, which knows the root namespaces
	ReasonNamespace       Reason = "namespace"
	ReasonRevision        Reason = "revision"
	ReasonSelector        Reason = "selector"
	ReasonHosts           Reason = "hosts"
	ReasonExpression      Reason = "expression"
	ReasonExpressionError Reason = "expression-error" // it could not be evaluated
)

// Reasons returns all reasons why a resource can be left out, in the order of the checks.
func Reasons() []Reason {
	return []Reason{ReasonProfile, ReasonKind, ReasonRoot, ReasonNamespace, ReasonRevision, ReasonSelector, ReasonHosts, ReasonExpression, ReasonExpressionError}
}

// Verdict is the decision of a Filter about a resource. The zero Verdict means that the resource passes.
type Verdict struct {
	Reason   Reason
	sentence func() string // only explanations need the text
}

func leftOut(reason Reason, sentence func() string) Verdict { return Verdict{reason, sentence} }

// Passes reports whether no rule leaves the resource out.
func (v Verdict) Passes() bool { return v.Reason == ReasonNone }

// Sentence names the rule and the value that does not pass. It is empty when the resource passes.
func (v Verdict) Sentence() string {
	if v.sentence == nil {
		return ""
	}
	return v.sentence()
}

// Filter is a compiled Rules. It is immutable and may be used from any goroutine.
type Filter struct {
	rules      Rules
	profile    []mirror.Kind            // nil: all
	kinds      map[mirror.Kind]struct{} // nil: all
	selector   labels.Selector          // nil: everything
	expression *expression              // nil: none

	include, exclude hostPatterns
}

// New compiles rules. Its error has a *federation.RuleError for each wrong rule.
func New(rules Rules) (*Filter, error) {
	var mistakes federation.Mistakes
	f := &Filter{rules: rules}
	var err error
	f.profile, err = profileKinds(rules.Profile)
	mistakes.Add(err, "profile")
	if rules.RootNamespace != "" && f.profile == nil {
		mistakes.Add(fmt.Errorf("only profile %s and %s leave out the root namespace: leave it out, or set one of them", ProfileServices, ProfileRouting), "rootNamespace")
	}
	for i, word := range rules.Kinds {
		kinds, err := mirror.ParseKinds(word)
		mistakes.Add(err, "kinds[%d]", i)
		if f.kinds == nil {
			f.kinds = map[mirror.Kind]struct{}{}
		}
		for _, kind := range kinds {
			f.kinds[kind] = struct{}{}
		}
		if f.profile != nil && err == nil && !slices.ContainsFunc(kinds, func(k mirror.Kind) bool { return slices.Contains(f.profile, k) }) {
			mistakes.Add(fmt.Errorf("profile %s does not have %q: leave the kind out, or choose another profile", rules.Profile, text.Abbreviate(word)), "kinds[%d]", i)
		}
	}
	checkGlobs(rules.Namespaces.Include, "namespaces.include", &mistakes)
	checkGlobs(rules.Namespaces.Exclude, "namespaces.exclude", &mistakes)
	if i := slices.Index(rules.Namespaces.Include, rules.RootNamespace); i >= 0 && rules.RootNamespace != "" {
		mistakes.Add(errors.New("it is rootNamespace, of which nothing passes: leave it out"), "namespaces.include[%d]", i)
	}
	f.include = newHostPatterns(rules.Hosts.Include, "hosts.include", &mistakes)
	f.exclude = newHostPatterns(rules.Hosts.Exclude, "hosts.exclude", &mistakes)
	f.checkHosts(&mistakes)
	if selector, err := labels.Parse(rules.Selector); err != nil {
		mistakes.Add(fmt.Errorf("%q is not a label selector: %w", text.Abbreviate(rules.Selector), err), "selector")
	} else if !selector.Empty() {
		f.selector = selector
	}
	if rules.Expression != "" {
		f.expression = compileExpression(rules.Expression, &mistakes)
	}
	if err := mistakes.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// Check returns whether r passes, and if not, which rule leaves it out.
func (f *Filter) Check(r *mirror.Resource) Verdict { return f.CheckUnder(r, nil) }

// CheckUnder is Check where entries returns the hosts of a ServiceEntry that is a parent of a route.
func (f *Filter) CheckUnder(r *mirror.Resource, entries func(mirror.Key) []string) Verdict {
	kind := r.Kind()
	if v := f.checkKind(kind); !v.Passes() {
		return v
	}
	if kind != mirror.MeshConfig {
		if !f.PassesNamespace(kind, r.Namespace()) {
			return leftOut(ReasonNamespace, func() string { return f.explainNamespace(r.Namespace()) })
		}
		if rev := r.Revision(); f.rules.Revision != "" && rev != "" && rev != f.rules.Revision {
			return leftOut(ReasonRevision, func() string { return fmt.Sprintf("revision %q is not %q", rev, f.rules.Revision) })
		}
		if f.selector != nil && !f.selector.Matches(labels.Set(r.Metadata().Labels)) {
			return leftOut(ReasonSelector, func() string { return f.explainSelector(labels.Set(r.Metadata().Labels)) })
		}
		if v := f.checkClaims(r, entries); !v.Passes() {
			return v
		}
	}
	if f.expression == nil {
		return Verdict{}
	}
	switch ok, err := f.expression.eval(r); {
	case err != nil:
		return leftOut(ReasonExpressionError, func() string { return "the expression failed: " + text.Abbreviate(err.Error()) })
	case !ok:
		return leftOut(ReasonExpression, func() string { return "the expression is false" })
	}
	return Verdict{}
}

// PassesNamespace reports whether a resource of a kind in a namespace passes the rules on namespaces.
func (f *Filter) PassesNamespace(kind mirror.Kind, namespace string) bool {
	include, exclude := f.rules.Namespaces.Include, f.rules.Namespaces.Exclude
	if namespace == "" {
		_, known := mirror.LookupKind(kind) // a known kind without a namespace is cluster-scoped
		return known || len(include) == 0
	}
	return match(exclude, namespace) == "" && (len(include) == 0 || match(include, namespace) != "")
}

// explainNamespace names the pattern that excludes a namespace, or those that do not include it.
func (f *Filter) explainNamespace(namespace string) string {
	if by := match(f.rules.Namespaces.Exclude, namespace); by != "" {
		return fmt.Sprintf("namespace %q is excluded by %q", namespace, by)
	}
	include := list(f.rules.Namespaces.Include)
	if namespace == "" {
		return fmt.Sprintf("it has no namespace, and only %s are included: a kind that is not well known needs a namespace", include)
	}
	return fmt.Sprintf("namespace %q is not included by %s", namespace, include)
}

// explainSelector names the first requirement that the labels do not meet.
func (f *Filter) explainSelector(have labels.Set) string {
	requirements, _ := f.selector.Requirements()
	for _, req := range requirements {
		if req.Matches(have) {
			continue
		}
		if v, ok := have[req.Key()]; ok {
			return fmt.Sprintf("label %s=%q does not match %q", req.Key(), v, req.String())
		}
		return fmt.Sprintf("there is no label %s, which does not match %q", req.Key(), req.String())
	}
	return fmt.Sprintf("the labels do not match %q", f.rules.Selector)
}

// checkGlobs records each pattern that is empty or has a character that no name has.
func checkGlobs(patterns []string, field string, mistakes *federation.Mistakes) {
	for i, p := range patterns {
		switch {
		case p == "":
			mistakes.Add(errors.New("the pattern is empty"), "%s[%d]", field, i)
		case strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789-.*?") != "":
			mistakes.Add(fmt.Errorf("pattern %q: want lower-case letters, digits, dashes, dots, * and ?", text.Abbreviate(p)), "%s[%d]", field, i)
		}
	}
}

// match returns the first pattern that matches a name, empty when none does.
func match(patterns []string, name string) string {
	for _, p := range patterns {
		if glob.Match(p, name) {
			return p
		}
	}
	return ""
}

// list quotes the first values of a rule.
func list(values []string) string { return text.List(values, 8, 1024) }
