package federation

import "meshrelay/mirror"

// ParseKinds returns the kinds that a word means: one as kubectl takes it, or "group/Kind",
// which need not be a well-known one.
func ParseKinds(word string) ([]mirror.Kind, error) { return kindsOf(word) }

// PassesNamespace reports whether its namespace alone lets a resource pass.
func (f *Filter) PassesNamespace(namespace string) bool { return f.passesNamespace(namespace) }
