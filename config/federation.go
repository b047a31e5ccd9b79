package config

import (
	"meshrelay/federation/filter"
	"meshrelay/federation/rewrite"
)

// Import selects the resources of an upstream to mirror. An empty rule lets everything pass.
type Import = filter.Rules

// Globs are patterns with * and ? for names.
type Globs = filter.Globs

// Hosts are patterns of hosts that resources may claim.
type Hosts = filter.Hosts

// The types of package rewrite.
type (
	// Rewrite configures how the resources of an upstream are rewritten. Rewrite.Domain comes from
	// Upstream.DomainSuffix.
	Rewrite = rewrite.Rules
	// Edit changes labels or annotations.
	Edit = rewrite.Edit
	// Endpoints sets fields in the endpoints of services and workloads.
	Endpoints = rewrite.Endpoints
)

// Values of Services.Mode.
const (
	ServicesOmit     = "omit"
	ServicesAsIs     = "asIs"
	ServicesGateway  = "gateway"
	ServicesDiscover = "discover"

	ServicesExported = "exported" // of Services.Only
)

// Services configures the ServiceEntries that an istiod generates from Kubernetes services. These
// have no endpoints (PROTOCOL C9).
type Services struct {
	// Mode defaults to asIs if Upstream.Generated is keep, and to omit otherwise.
	Mode     string   `yaml:"mode" oneof:"omit asIs gateway discover"`
	Gateways []string `yaml:"gateways,omitempty"`
	// Network is the network behind Gateways, or in mode discover the network of the clients.
	Network string `yaml:"network,omitempty"`
	// Selector is a label selector of Services, for API servers. Empty: all.
	Selector string `yaml:"selector,omitempty"`
	// Only is exported to share only Services that have a ServiceExport of the MCS API, for API servers. Empty: all.
	Only string `yaml:"only,omitempty" oneof:"exported"`
	// Pods is whether the Pods of an API server are read. Nil: they are.
	Pods *bool `yaml:"pods,omitempty"`
	// Ambient tells how clients reach Pods in an ambient mesh: by HBONE. Empty: as other Pods.
	Ambient string `yaml:"ambient,omitempty" oneof:"hbone"`
}

// ReadsPods reports whether the Pods of an API server are read.
func (s Services) ReadsPods() bool { return s.Mode == ServicesDiscover && (s.Pods == nil || *s.Pods) }

// Merge configures the merge policy for keys that several upstreams have.
type Merge struct {
	// Kinds is empty to mean every kind that no other entry names.
	Kinds  []string `yaml:"kinds,omitempty"`
	Policy string   `yaml:"policy" default:"first" oneof:"first newest reject union unionByHost"`
}

// View selects what some clients are served. A client gets the first view that matches it.
type View struct {
	Name    string `yaml:"name"`
	Match   Match  `yaml:"match,omitempty"`
	Default bool   `yaml:"default"` // for clients that no other view matches
	// Sources names upstreams. Empty: all.
	Sources    []string `yaml:"sources,omitempty"`
	Kinds      []string `yaml:"kinds,omitempty"`
	Namespaces Globs    `yaml:"namespaces,omitempty"`
	Selector   string   `yaml:"selector,omitempty"`
	Expression string   `yaml:"expression,omitempty"`
	ClusterID  string   `yaml:"clusterID,omitempty"` // of the clients
}

// Match selects the clients of a view. Every given field must match; one element of a list is
// enough. Only identities, and listeners (Listener.View), are secure: a client chooses the rest.
type Match struct {
	NodeIDs    []string `yaml:"nodeIDs,omitempty"`
	ClusterIDs []string `yaml:"clusterIDs,omitempty"`
	Namespaces []string `yaml:"namespaces,omitempty"`
	Identities []string `yaml:"identities,omitempty"`
}

// Provenance configures what served resources tell of where they come from.
type Provenance struct {
	Relay string `yaml:"relay"` // replicas share it; default: Node.ID
}
