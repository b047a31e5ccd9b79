package kubernetes

import "meshrelay/mirror"

var (
	namespaceKind  = mirror.Kind{Kind: "Namespace"}
	definitionKind = mirror.Kind{Group: definitions, Kind: "CustomResourceDefinition"}
)

// These are followed in addition to what is mirrored. Every server serves them, in this version.
var (
	servedNamespaces  = served{kind: namespaceKind, version: "v1", plural: "namespaces"}
	servedDefinitions = served{kind: definitionKind, version: "v1", plural: "customresourcedefinitions"}
	servedInputs      = []served{
		{kind: ingressClassKind, version: "v1", plural: "ingressclasses"},
		{kind: serviceKind, version: "v1", plural: "services", namespaced: true},
		{kind: ingressKind, version: "v1", plural: "ingresses", namespaced: true, selected: true},
	}
)

// accept returns in which form the objects of a target are asked for.
func (t *target) accept() string {
	if t.kind == namespaceKind || t.kind == definitionKind {
		return acceptMetadata + "," + acceptJSON
	}
	return acceptJSON
}

// needed reports whether the upstream is not complete without a kind that may not be read.
func (s *Source) needed(k mirror.Kind) bool {
	_, input := ingressInputs[k]
	return s.named[k] || input || k == namespaceKind || k == meshKind
}
