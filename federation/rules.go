package federation

import "meshrelay/mirror"

// ParseKinds returns the kinds that a word means: one as kubectl takes it, or "group/Kind",
// which need not be a well-known one.
func ParseKinds(word string) ([]mirror.Kind, error) { return kindsOf(word) }

// MatchGlob reports whether a name is like a pattern, in which * stands for any text and ?
// for any character.
func MatchGlob(pattern, name string) bool { return matchGlob(pattern, name) }

// PassesNamespace reports whether its namespace alone lets a resource pass.
func (f *Filter) PassesNamespace(namespace string) bool { return f.passesNamespace(namespace) }
