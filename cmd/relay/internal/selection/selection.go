// Package selection parses the kinds and names on a command line as kubectl does: "se,vs",
// "gateways.networking.istio.io NAME", "example.com/v1/Widget".
//
// The package must not know where resources come from.
package selection

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/mirror"
)

// all selects every well-known kind.
const all = "all"

// maxKindName is the longest word that is compared with the names of kinds.
const maxKindName = 64

// Kind is a selected kind.
type Kind struct {
	mirror.Kind
	// TypeURLs are all spellings under which a server may have the kind, newest first. A server answers
	// an unknown spelling with an empty response (PROTOCOL C1).
	TypeURLs []string
	// Version is the API version to show.
	Version string
	// ClusterScoped is set when resources of the kind have no namespace.
	ClusterScoped bool
}

// Name returns the kind as in kubectl's output: "serviceentry.networking.istio.io".
func (k Kind) Name() string { return withGroup(strings.ToLower(k.Kind.Kind), k.Group) }

// plural returns the kind as in kubectl's errors: "serviceentries.networking.istio.io".
func (k Kind) plural() string {
	if info, ok := mirror.LookupKind(k.Kind); ok {
		return withGroup(info.Plural, k.Group)
	}
	return k.Name()
}

// Group has resources of one kind.
type Group struct {
	Kind
	Resources []*mirror.Resource
}

func withGroup(name, group string) string {
	if group == "" {
		return name
	}
	return name + "." + group
}

// Selection is a parsed command line.
type Selection struct {
	targets   [][]Kind // for each word, the kinds that it may mean
	names     []string // empty: all
	namespace string   // "": all
	labels    labels.Selector
	text      string // in lower case; empty: any
	everyKind bool
}

// WithLabels limits the selection to resources whose labels match a selector, written as for kubectl -l. It fails
// if the selection has names.
func (s *Selection) WithLabels(selector string) error {
	if selector == "" {
		return nil
	}
	if len(s.names) > 0 {
		return errors.New("a name and a label selector: use one of them")
	}
	parsed, err := labels.Parse(selector)
	if err != nil {
		return fmt.Errorf("label selector %q: %w", selector, err)
	}
	s.labels = parsed
	return nil
}

// WithText limits the selection to resources with a text in their namespace/name, ignoring case. It fails if the
// selection has names.
func (s *Selection) WithText(text string) error {
	if text != "" && len(s.names) > 0 {
		return errors.New("a name and a text to search for: use one of them")
	}
	s.text = strings.ToLower(text)
	return nil
}

// Parse parses "KIND[,KIND…] [NAME…]" or "KIND/NAME". An empty namespace selects all namespaces, and then names
// are not allowed.
func Parse(args []string, namespace string) (*Selection, error) {
	if len(args) == 0 {
		return nil, errors.New("missing kind: use \"relay get serviceentries\", or \"relay get all\" for every kind")
	}
	s := &Selection{namespace: namespace, names: args[1:]}
	words := args[0]
	// "se/db" names a resource; "example.com/v1/Widget" is a type URL.
	if kind, name, ok := strings.Cut(words, "/"); ok && !strings.Contains(name, "/") {
		if len(s.names) > 0 {
			return nil, fmt.Errorf("%q names a resource already: use KIND/NAME or KIND NAME, not both", words)
		}
		if kind == "" || name == "" {
			return nil, fmt.Errorf("%q: want KIND/NAME", words)
		}
		words, s.names = kind, []string{name}
	}
	if len(s.names) > 0 && namespace == "" {
		return nil, errors.New("a resource can not be retrieved by name across all namespaces")
	}
	for word := range strings.SplitSeq(words, ",") {
		if word == "" {
			return nil, fmt.Errorf("%q: a kind is missing between the commas", words)
		}
		if strings.EqualFold(word, all) {
			if len(s.names) > 0 {
				return nil, errors.New("\"all\" takes no name: use a kind")
			}
			s.everyKind = true
			for _, info := range mirror.Kinds() {
				s.targets = append(s.targets, []Kind{known(info)})
			}
			continue
		}
		kinds, err := resolve(word)
		if err != nil {
			return nil, err
		}
		s.targets = append(s.targets, kinds)
	}
	return s, nil
}

func known(info *mirror.KindInfo) Kind {
	return Kind{
		Kind: info.Kind, TypeURLs: info.TypeURLs(), Version: info.Versions[0],
		ClusterScoped: info.ClusterScoped || info.Kind == mirror.MeshConfig,
	}
}

func resolve(word string) ([]Kind, error) {
	if strings.Contains(word, "/") {
		kind, version, err := mirror.ParseTypeURL(word)
		if err != nil {
			return nil, err
		}
		k := Kind{Kind: kind, TypeURLs: []string{word}, Version: version}
		if info, ok := mirror.LookupKind(kind); ok {
			k.ClusterScoped = known(info).ClusterScoped
		}
		return []Kind{k}, nil
	}
	var kinds []Kind
	for _, info := range mirror.MatchKinds(word) {
		kinds = append(kinds, known(info))
	}
	if len(kinds) > 0 {
		return kinds, nil
	}
	hint := ""
	if near := similar(word); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "? "
	}
	return nil, fmt.Errorf("unknown kind %q: %swrite a kind that is not well known as group/version/Kind, for example example.com/v1/Widget", word, hint)
}

// Kinds returns the selected kinds, each once, in the order of the command line.
func (s *Selection) Kinds() (kinds []Kind) {
	for _, k := range slices.Concat(s.targets...) {
		i := slices.IndexFunc(kinds, func(other Kind) bool { return other.Kind == k.Kind })
		if i < 0 {
			k.TypeURLs = slices.Clone(k.TypeURLs)
			kinds = append(kinds, k)
			continue
		}
		for _, u := range k.TypeURLs {
			if !slices.Contains(kinds[i].TypeURLs, u) {
				kinds[i].TypeURLs = append(kinds[i].TypeURLs, u)
			}
		}
	}
	return kinds
}

// Single reports whether the selection selects at most one resource.
func (s *Selection) Single() bool { return len(s.targets) == 1 && len(s.names) == 1 }

// Matches reports whether r, of the selected kind k, is selected. As with kubectl, a namespace does not exclude
// cluster-scoped resources, except with "all".
func (s *Selection) Matches(k Kind, r *mirror.Resource) bool {
	return s.inNamespace(k, r.Key()) && s.matchesElsewhere(r)
}

// matchesElsewhere is Matches without the check of the namespace.
func (s *Selection) matchesElsewhere(r *mirror.Resource) bool {
	if len(s.names) > 0 && !slices.Contains(s.names, r.Key().Name) {
		return false
	}
	if s.text != "" && !strings.Contains(strings.ToLower(r.FullName()), s.text) {
		return false
	}
	return s.labels == nil || s.labels.Matches(labels.Set(r.Metadata().Labels))
}

func (s *Selection) inNamespace(k Kind, key mirror.Key) bool {
	if s.namespace == "" {
		return true
	}
	if k.ClusterScoped || key.Namespace == "" {
		return !s.everyKind
	}
	return key.Namespace == s.namespace
}

// Found are the resources that a selection has found.
type Found struct {
	// Groups are the selected resources by kind, in the order of Kinds. They may be empty.
	Groups []Group
	// Keys are the keys of the selected resources. Elsewhere has the keys of resources that only the
	// namespace excludes.
	Keys, Elsewhere []mirror.Key
}

// Find returns the selected resources among resources.
func (s *Selection) Find(resources []*mirror.Resource) (f Found) {
	for _, k := range s.Kinds() {
		f.Groups = append(f.Groups, Group{Kind: k})
	}
	for _, r := range resources {
		i := slices.IndexFunc(f.Groups, func(g Group) bool { return g.Kind.Kind == r.Kind() })
		switch {
		case i < 0 || !s.matchesElsewhere(r):
		case s.inNamespace(f.Groups[i].Kind, r.Key()):
			f.Groups[i].Resources = append(f.Groups[i].Resources, r)
			f.Keys = append(f.Keys, r.Key())
		default:
			f.Elsewhere = append(f.Elsewhere, r.Key())
		}
	}
	return f
}

// Nothing returns kubectl's message for an empty result, and the number of resources in other namespaces.
func (s *Selection) Nothing(f Found) string {
	if s.namespace == "" {
		return "No resources found"
	}
	text := fmt.Sprintf("No resources found in %s namespace.", s.namespace)
	if n := len(f.Elsewhere); n > 0 {
		text += fmt.Sprintf(" In other namespaces: %d; list them with -A.", n)
	}
	return text
}

// maxElsewhere bounds the namespaces that an error names.
const maxElsewhere = 3

// NotFoundError is kubectl's error for a resource that does not exist.
type NotFoundError struct{ text string }

// Error implements error.
func (e *NotFoundError) Error() string { return e.text }

// Missing returns an error for each selected name that was not found, with other namespaces that have it. If a
// word may mean several kinds, it is enough that one of them has the name.
func (s *Selection) Missing(f Found) (errs []error) {
	for _, t := range s.targets {
		for _, name := range s.names {
			named := func(key mirror.Key) bool {
				return key.Name == name && slices.ContainsFunc(t, func(k Kind) bool { return k.Kind == key.Kind })
			}
			if slices.ContainsFunc(f.Keys, named) {
				continue
			}
			text := fmt.Sprintf("Error from server (NotFound): %s %q not found", t[0].plural(), name)
			for i, key := range slices.DeleteFunc(slices.Clone(f.Elsewhere), func(key mirror.Key) bool { return !named(key) }) {
				if i < maxElsewhere {
					text += fmt.Sprintf("\n  %s/%s exists: use -n %s", key.Namespace, key.Name, key.Namespace)
				}
			}
			errs = append(errs, &NotFoundError{text})
		}
	}
	return errs
}

// Words returns the words for completion: "all", and the plurals of the well-known kinds. A plural that several
// kinds have includes the group.
func Words() []string {
	words := []string{all}
	for _, info := range mirror.Kinds() {
		word := info.Plural
		if len(mirror.MatchKinds(word)) > 1 {
			word = withGroup(word, info.Kind.Group)
		}
		words = append(words, word)
	}
	slices.Sort(words)
	return words
}

// similar returns up to three names of well-known kinds that are spelled like word.
func similar(word string) (near []string) {
	word, _, _ = strings.Cut(word, ".")
	if len(word) < 3 || len(word) > maxKindName {
		return nil
	}
	// Cobra has a comparison of similar words, but only for names of commands.
	kinds := &cobra.Command{SuggestionsMinimumDistance: 2}
	singular := map[string]string{}
	for _, info := range mirror.Kinds() {
		for _, name := range []string{strings.ToLower(info.Kind.Kind), info.Plural} {
			kinds.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
			singular[name] = strings.ToLower(info.Kind.Kind)
		}
	}
	for _, name := range kinds.SuggestionsFor(word) {
		if name = singular[name]; !slices.Contains(near, name) && len(near) < 3 {
			near = append(near, name)
		}
	}
	return near
}
