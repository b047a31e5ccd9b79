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

// accept returns in which form the objects of a target are asked for. A server does not fall back to the
// next where a list is asked for as an object.
func (t *target) accept(watch bool) string {
	switch {
	case t.kind != namespaceKind && t.kind != definitionKind:
		return acceptJSON
	case watch:
		return acceptMetadata + "," + acceptJSON
	}
	return acceptMetadataList
}

// needed reports whether the upstream is not complete without a kind that may not be read.
func (s *Source) needed(k mirror.Kind) bool {
	_, input := ingressInputs[k]
	return s.named[k] || input || k == namespaceKind || k == meshKind
}
