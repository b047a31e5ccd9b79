package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"meshrelay/internal/text"
)

// Kind identifies a kind of resource, without the API version: networking.istio.io/v1 and
// networking.istio.io/v1alpha3 ServiceEntries are the same objects (PROTOCOL C1, S13).
type Kind struct {
	// Group is the API group, for example "networking.istio.io". The core group is empty here
	// and "core" in type URLs.
	Group string
	// Kind is the CamelCase kind, for example "ServiceEntry".
	Kind string
}

// MeshConfig is the one kind whose resources travel as an Any(istio.mesh.v1alpha1.MeshConfig), not inside
// an istio.mcp.v1alpha1.Resource. So they have no namespace, labels, annotations or times.
var MeshConfig = Kind{Kind: "MeshConfig"}

// MeshConfigName is the fixed name of a source's MeshConfig (PROTOCOL S18).
const MeshConfigName = "mesh"

// Singleton reports whether a source has at most one resource of the kind, with a fixed name and for its own
// mesh only. The aggregate serves that of the first source that has one, and never merges two.
func (k Kind) Singleton() bool { return k == MeshConfig }

// protecting are the kinds whose resources deny, limit or check something: what is missing of them opens something. Some
// may be how a mesh authorizes, or keeps its clients in.
var protecting = []Kind{
	{Group: "networking.istio.io", Kind: "EnvoyFilter"},
	{Group: "extensions.istio.io", Kind: "WasmPlugin"}, {Group: "extensions.istio.io", Kind: "TrafficExtension"},
	{Group: "security.istio.io", Kind: "AuthorizationPolicy"}, {Group: "security.istio.io", Kind: "PeerAuthentication"},
	{Group: "security.istio.io", Kind: "RequestAuthentication"},
	{Group: "networking.istio.io", Kind: "Sidecar"},
}

// Protecting returns the kinds that protect something.
func Protecting() []Kind { return slices.Clone(protecting) }

// Protects reports whether something may be open when a resource of the kind is missing.
func (k Kind) Protects() bool { return slices.Contains(protecting, k) }

const coreGroup = "core"

// kindOf is the inverse of longGroup.
func kindOf(group, kind string) Kind {
	if group == coreGroup {
		group = ""
	}
	return Kind{Group: group, Kind: kind}
}

func (k Kind) longGroup() string { return cmp.Or(k.Group, coreGroup) }

// String returns "group/Kind", the form used in logs, metrics and errors.
func (k Kind) String() string { return k.longGroup() + "/" + k.Kind }

// MarshalText implements encoding.TextMarshaler: it returns String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: it parses String.
func (k *Kind) UnmarshalText(b []byte) error {
	group, kind, ok := strings.Cut(string(b), "/")
	if !ok {
		return fmt.Errorf("kind %q: want group/Kind", text.Abbreviate(string(b)))
	}
	*k = kindOf(group, kind)
	return nil
}

// TypeURL returns the MCP-over-xDS type URL of the kind in one API version,
// "group/version/Kind" without a "type.googleapis.com/" prefix.
func (k Kind) TypeURL(version string) string { return k.longGroup() + "/" + version + "/" + k.Kind }

// PreferredTypeURL returns the type URL of the kind in its newest known version, or in "v1".
func (k Kind) PreferredTypeURL() string {
	if info, ok := LookupKind(k); ok {
		return info.typeURLs[0]
	}
	return k.TypeURL("v1")
}

// ParseTypeURL splits "group/version/Kind". Any three non-empty parts are a kind.
func ParseTypeURL(typeURL string) (Kind, string, error) {
	group, rest, ok := strings.Cut(typeURL, "/")
	version, kind, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 || group == "" || version == "" || kind == "" || strings.Contains(kind, "/") {
		return Kind{}, "", fmt.Errorf("type URL %q: want group/version/Kind, for example networking.istio.io/v1/ServiceEntry", typeURL)
	}
	return kindOf(group, kind), version, nil
}

// Key identifies one resource of the mirror.
type Key struct {
	Kind Kind `json:"kind"`
	// Namespace is empty for cluster-scoped resources and for MeshConfig.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// FullName returns the resource's name on the wire: "namespace/name", "/name" when it is
// cluster-scoped (PROTOCOL, wire facts), or the fixed name of a MeshConfig.
func (k Key) FullName() string {
	if k.Kind == MeshConfig {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// appendFullName appends FullName.
func (k Key) appendFullName(b []byte) []byte {
	if k.Kind != MeshConfig {
		b = append(append(b, k.Namespace...), '/')
	}
	return append(b, k.Name...)
}

// String returns "group/Kind namespace/name".
func (k Key) String() string { return k.Kind.String() + " " + k.FullName() }

// ParseFullName splits a wire name into namespace and name. The name must have exactly one "/"
// and a text after it: istiod skips others, and so deletes the object (PROTOCOL S11).
func ParseFullName(full string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(full, "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("resource name %q: want namespace/name, or /name for a cluster-scoped resource", text.Abbreviate(full))
	}
	return namespace, name, nil
}
