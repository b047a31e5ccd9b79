// Package selection understands what a user asks for on the command line, "se,vs",
// "gateways.networking.istio.io NAME", "example.com/v1/Widget", in the manner of
// kubectl.
//
// The package must not know where resources come from.
package selection

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meshrelay/internal/cliview"
	"meshrelay/mirror"
)

// all is the word for every well-known kind.
const all = "all"

// maxKindName bounds the words that are compared with names of kinds.
const maxKindName = 64

// Kind is a kind that is asked for.
type Kind struct {
	mirror.Kind
	// TypeURLs are the spellings under which a server may have it, newest first
	// (PROTOCOL C1).
	TypeURLs []string
	// Version is the API version in which it is to be shown.
	Version string
	// ClusterScoped tells that namespaces do not apply to it.
	ClusterScoped bool
}

// Name returns the kind as kubectl prints it before a resource's name:
// "serviceentry.networking.istio.io".
func (k Kind) Name() string { return withGroup(strings.ToLower(k.Kind.Kind), k.Group) }

// Plural returns the kind as kubectl names it in errors:
// "serviceentries.networking.istio.io".
func (k Kind) Plural() string {
	if info, ok := mirror.LookupKind(k.Kind); ok {
		return withGroup(info.Plural, k.Group)
	}
	return k.Name()
}

func withGroup(name, group string) string {
	if group == "" {
		return name
	}
	return name + "." + group
}

// Selection is what is asked for.
type Selection struct {
	// targets are what each of the words may mean.
	targets [][]Kind
	// names is empty for all.
	names     []string
	namespace string // "" for all
	everyKind bool
}

// Parse understands the arguments "KIND[,KIND…] [NAME…]" or "KIND/NAME". namespace is
// empty for all of them, and then no name may be given.
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
	if len(kinds) == 0 {
		return nil, unknown(word)
	}
	return kinds, nil
}

func unknown(word string) error {
	hint := ""
	if close := Similar(word); len(close) > 0 {
		hint = "did you mean " + strings.Join(close, " or ") + "? "
	}
	return fmt.Errorf("unknown kind %q: %swrite a kind that is not well known as group/version/Kind, for example example.com/v1/Widget", word, hint)
}

// Kinds returns the selected kinds, each once, in the order in which they were asked
// for.
func (s *Selection) Kinds() []Kind {
	var out []Kind
	seen := map[mirror.Kind]int{}
	for _, t := range s.targets {
		for _, k := range t {
			i, ok := seen[k.Kind]
			if !ok {
				seen[k.Kind] = len(out)
				k.TypeURLs = slices.Clone(k.TypeURLs)
				out = append(out, k)
				continue
			}
			for _, u := range k.TypeURLs {
				if !slices.Contains(out[i].TypeURLs, u) {
					out[i].TypeURLs = append(out[i].TypeURLs, u)
				}
			}
		}
	}
	return out
}

// Single reports whether one resource at most is asked for.
func (s *Selection) Single() bool { return len(s.targets) == 1 && len(s.names) == 1 }

// Matches reports whether a resource of one of the selected kinds is selected. As with
// kubectl, a kind without namespaces is shown whatever the namespace, except that
// "all" in one namespace means what is in that namespace.
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

// Group puts the selected ones of some resources together by kind, in the order in
// which the kinds were asked for, and returns their keys.
func (s *Selection) Group(resources []*mirror.Resource) (groups []cliview.Group, found []mirror.Key) {
	kinds := s.Kinds()
	groups = make([]cliview.Group, len(kinds))
	place := make(map[mirror.Kind]int, len(kinds))
	for i, k := range kinds {
		groups[i] = cliview.Group{Kind: k.Name(), Version: k.Version}
		place[k.Kind] = i
	}
	for _, r := range resources {
		i, ok := place[r.Kind()]
		if !ok || !s.Matches(kinds[i], r.Key()) {
			continue
		}
		groups[i].Resources = append(groups[i].Resources, r)
		found = append(found, r.Key())
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

// NotFoundError is that a resource asked for by name is not there.
type NotFoundError struct{ Plural, Name string }

// Error returns the text that kubectl has for it.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("Error from server (NotFound): %s %q not found", e.Plural, e.Name)
}

// Missing returns an error for each name that was asked for and is not among found.
// Where a word may mean several kinds, one of them suffices.
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
				errs = append(errs, &NotFoundError{t[0].Plural(), name})
			}
		}
	}
	return errs
}

// Words returns the words by which the well-known kinds may be named, for completion:
// plurals, and "all". Plurals of several kinds carry their group.
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

// Similar returns up to three names of well-known kinds that are spelled like word.
func Similar(word string) (near []string) {
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
