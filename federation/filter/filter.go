package filter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-multierror"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/federation"
	"meshrelay/internal/glob"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// Rules tell which resources pass. A resource must pass each rule; an empty rule passes all.
type Rules struct {
	// Kinds are kinds as kubectl takes them ("serviceentries", "se", "gateways.networking.istio.io"),
	// or "group/Kind", also of a kind that is not well known. A word may mean several kinds.
	Kinds []string `yaml:"kinds,omitempty"`
	// Namespaces passes MeshConfig and cluster-scoped resources of well-known kinds: they have
	// no namespace, and Kinds can leave them out. A resource of another kind without a
	// namespace passes only when Include is empty.
	Namespaces Globs `yaml:"namespaces,omitempty"`
	// Selector is a Kubernetes label selector. MeshConfig has no labels and passes.
	Selector string `yaml:"selector,omitempty"`
	// Revision passes resources without the label istio.io/rev and those with this value there
	// (PROTOCOL C11).
	Revision string `yaml:"revision,omitempty"`
	// Expression is a CEL expression that must be true. Its variables are kind, group,
	// namespace and name, the maps labels and annotations, and spec: the body with the names
	// and values that it has in YAML. All but kind and spec are empty for a MeshConfig. A
	// resource for which the expression fails does not pass.
	Expression string `yaml:"expression,omitempty"`
}

// Globs select names by patterns in which * stands for any text and ? for any character.
type Globs struct {
	// Include are patterns; one must match. Empty: all names are included.
	Include []string `yaml:"include,omitempty"`
	// Exclude are patterns; none may match.
	Exclude []string `yaml:"exclude,omitempty"`
}

// Reason is the rule that leaves a resource out. It is a label of metrics.
type Reason string

// The reasons, in the order of the checks: the cheapest comes first.
const (
	ReasonNone            Reason = "" // it passes
	ReasonKind            Reason = "kind"
	ReasonNamespace       Reason = "namespace"
	ReasonRevision        Reason = "revision"
	ReasonSelector        Reason = "selector"
	ReasonExpression      Reason = "expression"
	ReasonExpressionError Reason = "expression-error" // it could not be evaluated
)

// Filter is a compiled Rules. It is immutable and may be used from any goroutine.
type Filter struct {
	rules            Rules
	kinds            map[mirror.Kind]struct{} // nil: all
	include, exclude globs
	selector         labels.Selector // nil: everything
	expression       *expression     // nil: none
}

// New compiles rules. It fails with a *multierror.Error that holds a *federation.RuleError for
// each mistake.
func New(rules Rules) (*Filter, error) {
	var mistakes *multierror.Error
	mistake := func(field string, err error) {
		mistakes = multierror.Append(mistakes, &federation.RuleError{Field: field, Err: err})
	}
	rules.Kinds = slices.Clone(rules.Kinds)
	f := &Filter{rules: rules}
	for i, word := range rules.Kinds {
		kinds, err := mirror.ParseKinds(word)
		if err != nil {
			mistake(fmt.Sprintf("kinds[%d]", i), err)
			continue
		}
		if f.kinds == nil {
			f.kinds = map[mirror.Kind]struct{}{}
		}
		for _, kind := range kinds {
			f.kinds[kind] = struct{}{}
		}
	}
	f.include = compileGlobs(rules.Namespaces.Include, "namespaces.include", mistake)
	f.exclude = compileGlobs(rules.Namespaces.Exclude, "namespaces.exclude", mistake)
	if strings.TrimSpace(rules.Selector) != "" {
		selector, err := labels.Parse(rules.Selector)
		if err != nil {
			mistake("selector", fmt.Errorf("%q is not a label selector: %w", text.Abbreviate(rules.Selector), err))
		} else if !selector.Empty() {
			f.selector = selector
		}
	}
	if rules.Expression != "" {
		expression, errs := compileExpression(rules.Expression)
		for _, err := range errs {
			mistakes = multierror.Append(mistakes, err)
		}
		f.expression = expression
	}
	if mistakes != nil {
		return nil, mistakes
	}
	return f, nil
}

// Check returns the rule that leaves r out, ReasonNone when it passes.
func (f *Filter) Check(r *mirror.Resource) Reason {
	reason, _ := f.check(r)
	return reason
}

// Explain is Check, with a sentence that names the rule and the value.
func (f *Filter) Explain(r *mirror.Resource) (Reason, string) {
	reason, err := f.check(r)
	switch reason {
	case ReasonKind:
		return reason, fmt.Sprintf("kind %s is not one of %s", r.Kind(), list(f.rules.Kinds))
	case ReasonNamespace:
		if by, ok := f.exclude.match(r.Namespace()); ok {
			return reason, fmt.Sprintf("namespace %q is excluded by %q", r.Namespace(), by)
		}
		if r.Namespace() == "" {
			return reason, fmt.Sprintf("it has no namespace, and one has to be included by %s: only well-known kinds are known to have none", list(f.rules.Namespaces.Include))
		}
		return reason, fmt.Sprintf("namespace %q is not included by %s", r.Namespace(), list(f.rules.Namespaces.Include))
	case ReasonRevision:
		return reason, fmt.Sprintf("revision %q is not %q", r.Revision(), f.rules.Revision)
	case ReasonSelector:
		return reason, f.explainSelector(labels.Set(r.Metadata().Labels))
	case ReasonExpression:
		return reason, "the expression is false"
	case ReasonExpressionError:
		return reason, "the expression failed: " + text.Abbreviate(err.Error())
	}
	return reason, "passes"
}

func (f *Filter) check(r *mirror.Resource) (Reason, error) {
	kind := r.Kind()
	if !f.passesKind(kind) {
		return ReasonKind, nil
	}
	var md metadata
	if !kind.Bare() {
		if !f.PassesNamespace(kind, r.Namespace()) {
			return ReasonNamespace, nil
		}
		if rev := r.Revision(); f.rules.Revision != "" && rev != "" && rev != f.rules.Revision {
			return ReasonRevision, nil
		}
		if f.selector != nil && !f.selector.Matches(labels.Set(md.of(r).Labels)) {
			return ReasonSelector, nil
		}
	}
	if f.expression == nil {
		return ReasonNone, nil
	}
	switch ok, err := f.expression.eval(r, md); {
	case err != nil:
		return ReasonExpressionError, err
	case !ok:
		return ReasonExpression, nil
	}
	return ReasonNone, nil
}

func (f *Filter) passesKind(kind mirror.Kind) bool {
	if f.kinds == nil {
		return true
	}
	_, ok := f.kinds[kind]
	return ok
}

// PassesNamespace reports whether its kind and namespace let a resource pass the rules on
// namespaces.
func (f *Filter) PassesNamespace(kind mirror.Kind, namespace string) bool {
	if namespace == "" {
		_, known := mirror.LookupKind(kind) // a known kind without a namespace is cluster-scoped
		return known || f.include.empty()
	}
	if _, ok := f.exclude.match(namespace); ok {
		return false
	}
	if f.include.empty() {
		return true
	}
	_, ok := f.include.match(namespace)
	return ok
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

// metadata is a resource's metadata, decoded at most once.
type metadata struct {
	mirror.Metadata
	decoded bool
}

func (m *metadata) of(r *mirror.Resource) *mirror.Metadata {
	if !m.decoded {
		m.decoded, m.Metadata = true, r.Metadata()
	}
	return &m.Metadata
}

// globs are compiled patterns. Those without wildcards are in a map.
type globs struct {
	literals map[string]struct{}
	patterns []string
}

func compileGlobs(patterns []string, field string, mistake func(string, error)) globs {
	g := globs{literals: map[string]struct{}{}}
	for i, p := range patterns {
		switch {
		case p == "":
			mistake(fmt.Sprintf("%s[%d]", field, i), errors.New("the pattern is empty"))
		case strings.ContainsFunc(p, func(c rune) bool { return !inGlob(c) }):
			mistake(fmt.Sprintf("%s[%d]", field, i),
				fmt.Errorf("pattern %q: want lower-case letters, digits, dashes, * and ?", text.Abbreviate(p)))
		case strings.ContainsAny(p, "*?"):
			g.patterns = append(g.patterns, p)
		default:
			g.literals[p] = struct{}{}
		}
	}
	return g
}

// inGlob accepts wildcards and the characters of namespaces. Others would never match.
func inGlob(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune("-.*?", c)
}

func (g globs) empty() bool { return len(g.literals) == 0 && len(g.patterns) == 0 }

// match returns the pattern that matches a name.
func (g globs) match(name string) (pattern string, ok bool) {
	if _, ok := g.literals[name]; ok {
		return name, true
	}
	for _, p := range g.patterns {
		if glob.Match(p, name) {
			return p, true
		}
	}
	return "", false
}

// list quotes values, the first ones of many.
func list(values []string) string {
	const limit = 8
	quoted := make([]string, 0, limit+1)
	for i, v := range values {
		if i == limit {
			quoted = append(quoted, fmt.Sprintf("and %d more", len(values)-limit))
			break
		}
		quoted = append(quoted, fmt.Sprintf("%q", v))
	}
	return strings.Join(quoted, ", ")
}
