package federation

import "meshrelay/mirror"

// ParseKinds returns the kinds that a word means: one as kubectl takes it, or "group/Kind",
// which need not be a well-known one.
func ParseKinds(word string) ([]mirror.Kind, error) { return kindsOf(word) }

// MatchGlob reports whether a name is like a pattern, in which * stands for any text and ?
// for any character.
func MatchGlob(pattern, name string) bool { return matchGlob(pattern, name) }

// PassesScope reports whether its namespace alone, or that it has none, lets a key pass.
func (f *Filter) PassesScope(key mirror.Key) bool { return f.passesNamespace(key.Kind, key.Namespace) }

// PassesNamespace reports whether its namespace alone lets a resource pass that has one.
func (f *Filter) PassesNamespace(namespace string) bool {
	return namespace == "" || f.passesNamespace(mirror.Kind{}, namespace)
}
