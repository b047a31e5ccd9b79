package config

import (
	"meshrelay/federation/filter"
	"meshrelay/federation/rewrite"
)

// Import selects what of an upstream is mirrored. What it leaves empty lets everything pass. The
// default of its Revision is Node.Revision, for xds sources.
type Import = filter.Rules

// Globs are patterns with * and ? for names.
type Globs = filter.Globs

// Rewrite configures how the resources of an upstream are reshaped, in the order of the fields.
type Rewrite struct {
	// Namespaces maps namespaces of the source; NamespacePrefix is put before the others.
	Namespaces      map[string]string `yaml:"namespaces,omitempty"`
	NamespacePrefix string            `yaml:"namespacePrefix,omitempty"`
	NamePrefix      string            `yaml:"namePrefix,omitempty"`
	NameSuffix      string            `yaml:"nameSuffix,omitempty"`
	Labels          Edit              `yaml:"labels,omitempty"`
	Annotations     Edit              `yaml:"annotations"`
	// ExportTo replaces exportTo where a kind has it.
	ExportTo []string `yaml:"exportTo,omitempty"`
	// ShortHosts is complete (the default) or keep: what becomes of the hosts of VirtualServices
	// and DestinationRules that have no dots (PROTOCOL C23).
	ShortHosts string `yaml:"shortHosts" default:"complete" oneof:"complete keep"`
	// Hosts maps domains.
	Hosts []HostMapping `yaml:"hosts,omitempty"`
	// Endpoints is stamped on the endpoints of services and workloads.
	Endpoints Endpoints `yaml:"endpoints,omitempty"`
}

// Values of Rewrite.ShortHosts.
const (
	ShortHostsComplete = "complete"
	ShortHostsKeep     = "keep"
)

// The rules of package rewrite that the file writes as they are.
type (
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
	// Mode is omit, asIs, gateway or discover. Default: asIs when Upstream.Generated is
	// keep, else omit.
	Mode string `yaml:"mode" oneof:"omit asIs gateway discover"`
	// Gateways are the addresses of the cluster's east-west gateways, for the mode gateway.
	Gateways []string `yaml:"gateways,omitempty"`
	// Network is, in the mode gateway, the network behind those; in the mode discover, the
	// network of the consumers.
	Network string `yaml:"network,omitempty"`
	// Locality is that of the gateways: region/zone/subzone.
	Locality string `yaml:"locality,omitempty"`
}

// MergeUnion is the value of Merge.Policy that has settings of its own.
const MergeUnion = "union"

// Merge configures what is served when several upstreams have a key.
type Merge struct {
	// Kinds are as kubectl takes them, or group/Kind. None: every kind that no other entry
	// names.
	Kinds []string `yaml:"kinds,omitempty"`
	// Policy is first (the default), newest, reject or union.
	Policy string `yaml:"policy" default:"first" oneof:"first newest reject union"`
	// SameHost makes union merge ServiceEntries of different names that have the same hosts.
	SameHost bool `yaml:"sameHost"`
	// AcrossNamespaces makes it merge also those of different namespaces.
	AcrossNamespaces bool `yaml:"acrossNamespaces"`
}

// View is what some clients see. The first view that matches a client is its.
type View struct {
	Name  string `yaml:"name"`
	Match Match  `yaml:"match,omitempty"`
	// Default makes the view that of clients that no other matches.
	Default bool `yaml:"default"`
	// Sources are names of upstreams. None: all.
	Sources    []string `yaml:"sources,omitempty"`
	Kinds      []string `yaml:"kinds,omitempty"`
	Namespaces Globs    `yaml:"namespaces,omitempty"`
	// Selector is a Kubernetes label selector, Expression is in CEL.
	Selector   string `yaml:"selector,omitempty"`
	Expression string `yaml:"expression,omitempty"`
	// ClusterID is the cluster of the clients, who do not always say.
	ClusterID string `yaml:"clusterID,omitempty"`
	// ExcludeOwn leaves out what came from the client's own cluster. Default: true.
	ExcludeOwn bool `yaml:"excludeOwn" default:"true"`
}

// Match selects the clients of a view. All that is given must hold; of a list, one
// element. Only listeners (Listener.View) and identities are proof: the rest is what a
// client tells of itself.
type Match struct {
	NodeIDs    []string `yaml:"nodeIDs,omitempty"`
	ClusterIDs []string `yaml:"clusterIDs,omitempty"`
	Namespaces []string `yaml:"namespaces,omitempty"`
	// Labels is a label selector over those in the client's metadata.
	Labels string `yaml:"labels,omitempty"`
	// Identities are patterns for the client's verified certificate: SPIFFE IDs, and DNS names
	// as dns:NAME.
	Identities []string `yaml:"identities,omitempty"`
}

// Provenance is what served resources tell of their way, and how far they may go.
type Provenance struct {
	// Annotations puts it into annotations. Default: true.
	Annotations bool `yaml:"annotations" default:"true"`
	// Relay names this relay in paths. Replicas share it. Default: Node.ID.
	Relay string `yaml:"relay"`
	// MaxHops is how many relays a resource may have passed. Default: 8.
	MaxHops int `yaml:"maxHops" default:"8" range:"1 64"`
}
