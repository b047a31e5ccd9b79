package config

import (
	"errors"
	"strings"

	"meshrelay/federation/filter"
	"meshrelay/federation/rewrite"
)

// Import selects what of an upstream is mirrored. What it leaves empty lets everything pass. The
// default of its Revision is Node.Revision, for sources that are clusters.
type Import = filter.Rules

// Globs are patterns with * and ? for names.
type Globs = filter.Globs

// The rules of package rewrite.
type (
	// Rewrite configures how the resources of an upstream are reshaped. Its Domain is
	// Upstream.DomainSuffix.
	Rewrite = rewrite.Rules
	// Edit changes labels or annotations.
	Edit = rewrite.Edit
	// HostMapping replaces one domain by another, and its subdomains likewise.
	HostMapping = rewrite.HostMapping
	// Endpoints are fields of the endpoints of services and workloads.
	Endpoints = rewrite.Endpoints
)

// Values of Services.Mode.
const (
	ServicesOmit     = "omit"
	ServicesAsIs     = "asIs"
	ServicesGateway  = "gateway"
	ServicesDiscover = "discover"
)

// Services configures what becomes of the ServiceEntries that an istiod makes of Kubernetes
// services, which have no endpoints (PROTOCOL C9).
type Services struct {
	// Mode is asIs by default when Upstream.Generated is keep, else omit.
	Mode     string   `yaml:"mode" oneof:"omit asIs gateway discover"`
	Gateways []string `yaml:"gateways,omitempty"`
	// Network is the one behind Gateways, or, in the mode discover, that of the consumers.
	Network  string `yaml:"network,omitempty"`
	Locality string `yaml:"locality,omitempty"` // of Gateways
}

// MergeUnion is the value of Merge.Policy that has settings of its own.
const MergeUnion = "union"

// Merge configures what is served when several upstreams have a key.
type Merge struct {
	// Kinds are empty for every kind that no other entry names.
	Kinds            []string `yaml:"kinds,omitempty"`
	Policy           string   `yaml:"policy" default:"first" oneof:"first newest reject union"`
	SameHost         bool     `yaml:"sameHost"`
	AcrossNamespaces bool     `yaml:"acrossNamespaces"`
}

// View is what some clients see. A client has the first view that matches it.
type View struct {
	Name    string `yaml:"name"`
	Match   Match  `yaml:"match,omitempty"`
	Default bool   `yaml:"default"` // for clients that no other view matches
	// Sources are names of upstreams. None: all.
	Sources    []string `yaml:"sources,omitempty"`
	Kinds      []string `yaml:"kinds,omitempty"`
	Namespaces Globs    `yaml:"namespaces,omitempty"`
	Selector   string   `yaml:"selector,omitempty"`
	Expression string   `yaml:"expression,omitempty"`
	ClusterID  string   `yaml:"clusterID,omitempty"` // of the clients
	ExcludeOwn bool     `yaml:"excludeOwn" default:"true"`
}

// Match selects the clients of a view. All that is given must hold; of a list, one element. Only
// listeners (Listener.View) and identities are proof: a client chooses the rest itself.
type Match struct {
	NodeIDs    []string `yaml:"nodeIDs,omitempty"`
	ClusterIDs []string `yaml:"clusterIDs,omitempty"`
	Namespaces []string `yaml:"namespaces,omitempty"`
	Labels     string   `yaml:"labels,omitempty"`
	Identities []string `yaml:"identities,omitempty"`
}

// Provenance configures what served resources tell about their way, and how far they may go.
type Provenance struct {
	Annotations Annotations `yaml:"annotations" default:"true"`
	Relay       string      `yaml:"relay"` // replicas share it; default: Node.ID
	MaxHops     int         `yaml:"maxHops" default:"8" range:"1 64"`
}

// Annotations tells who gets the annotation of provenance: a boolean or the word all.
type Annotations string

// Values of Annotations. The zero value is that of AnnotationsFalse.
const (
	AnnotationsFalse Annotations = "false" // nobody
	AnnotationsTrue  Annotations = "true"  // who may read it: all but istiods
	AnnotationsAll   Annotations = "all"
)

// Given reports whether anybody gets the annotation.
func (a Annotations) Given() bool { return a == AnnotationsTrue || a == AnnotationsAll }

// MarshalYAML implements yaml.InterfaceMarshaler.
func (a Annotations) MarshalYAML() (any, error) {
	if a == AnnotationsAll {
		return string(a), nil
	}
	return a.Given(), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Annotations) UnmarshalText(text []byte) error {
	switch value := Annotations(strings.ToLower(string(text))); value {
	case AnnotationsFalse, AnnotationsTrue, AnnotationsAll:
		*a = value
		return nil
	}
	return errors.New("want true, false or all")
}
