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

	"meshrelay/mirror"
)

// all is the word for every well-known kind.
const all = "all"

// maxKindName bounds the words that are compared with names of kinds.
const maxKindName = 64

// Kind is a selected kind.
type Kind struct {
	mirror.Kind
	// TypeURLs are all the spellings under which a server may have it, newest first: a server
	// answers an unknown spelling with nothing (PROTOCOL C1).
	TypeURLs []string
	// Version is the API version to show.
	Version string
	// ClusterScoped tells that namespaces do not apply to it.
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

// Group is resources of one kind.
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
	targets   [][]Kind // by word: the kinds that it may mean
	names     []string // empty: all
	namespace string   // "": all
	everyKind bool
}

// Parse parses "KIND[,KIND…] [NAME…]" or "KIND/NAME". namespace is empty for all namespaces,
// which allows no name.
func Parse(args []string, namespace string) (*Selection, error) {
	if len(args) == 0 {
		return nil, errors.New("missing kind: use \"relay get serviceentries\", or \"relay get all\" for every kind")
	}
	s := &Selection{namespace: namespace, names: args[1:]}
	words := args[0]
	// "se/db" names a resource; "example.com/v1/Widget" is a type URL.
	if kind, name, ok := strings.Cut(words, "/"); ok && !strings.Contains(name, "/") {
		if len(s.names) > 0 {
			return nil, fmt.Errorf("%q names a resource already: give KIND/NAME or KIND NAME, not both", words)
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

// Single reports whether the selection has one resource at most.
func (s *Selection) Single() bool { return len(s.targets) == 1 && len(s.names) == 1 }

// Matches reports whether a resource of one of the selected kinds is selected. As with
// kubectl, every namespace has the kinds without namespaces, except that "all" in one namespace
// leaves them out.
func (s *Selection) Matches(k Kind, key mirror.Key) bool {
	if len(s.names) > 0 && !slices.Contains(s.names, key.Name) {
		return false
	}
	if s.namespace == "" {
		return true
	}
	if k.ClusterScoped || key.Namespace == "" {
		return !s.everyKind
	}
	return key.Namespace == s.namespace
}

// Group groups the selected ones of some resources by kind, in the order of Kinds, and returns
// their keys. Groups may be empty.
func (s *Selection) Group(resources []*mirror.Resource) (groups []Group, found []mirror.Key) {
	for _, k := range s.Kinds() {
		groups = append(groups, Group{Kind: k})
	}
	for _, r := range resources {
		i := slices.IndexFunc(groups, func(g Group) bool { return g.Kind.Kind == r.Kind() })
		if i >= 0 && s.Matches(groups[i].Kind, r.Key()) {
			groups[i].Resources = append(groups[i].Resources, r)
			found = append(found, r.Key())
		}
	}
	return groups, found
}

// Nothing returns kubectl's words for an empty result.
func (s *Selection) Nothing() string {
	if s.namespace == "" {
		return "No resources found"
	}
	return fmt.Sprintf("No resources found in %s namespace.", s.namespace)
}

// NotFoundError is kubectl's error for a resource that does not exist.
type NotFoundError struct{ text string }

// Error implements error.
func (e *NotFoundError) Error() string { return e.text }

// Missing returns an error for each selected name that found lacks. Where a word may mean
// several kinds, one of them suffices.
func (s *Selection) Missing(found []mirror.Key) []error {
	have := make(map[mirror.Key]bool, len(found))
	for _, key := range found {
		key.Namespace = ""
		have[key] = true
	}
	var errs []error
	for _, t := range s.targets {
		for _, name := range s.names {
			if !slices.ContainsFunc(t, func(k Kind) bool { return have[mirror.Key{Kind: k.Kind, Name: name}] }) {
				errs = append(errs, &NotFoundError{fmt.Sprintf("Error from server (NotFound): %s %q not found", t[0].plural(), name)})
			}
		}
	}
	return errs
}

// Words returns the words for completion: "all", and the plurals of the well-known kinds. A
// plural of several kinds has the group, too.
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
	// Cobra compares words only as the names of commands.
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
