package mirror

import (
	"fmt"
	"strings"

	"meshrelay/internal/text"
)

// Kind identifies a kind of configuration. The API version is deliberately not
// part of it: networking.istio.io/v1 and networking.istio.io/v1alpha3
// ServiceEntries are the same objects, served under two spellings (PROTOCOL C1,
// S13).
type Kind struct {
	// Group is the API group, for example "networking.istio.io". The core group
	// is the empty string here and is written "core" in type URLs.
	Group string
	// Kind is the CamelCase kind, for example "ServiceEntry".
	Kind string
}

// MeshConfig is the one kind whose resources travel as a bare
// Any(istio.mesh.v1alpha1.MeshConfig) instead of inside an
// istio.mcp.v1alpha1.Resource.
var MeshConfig = Kind{Kind: "MeshConfig"}

// MeshConfigName is the name under which a source's MeshConfig is kept and, on
// delta streams, served (PROTOCOL S18: a fixed name).
const MeshConfigName = "mesh"

const coreGroup = "core"

// String returns "group/Kind", the form used in logs, metrics and errors.
func (k Kind) String() string {
	if k.Group == "" {
		return coreGroup + "/" + k.Kind
	}
	return k.Group + "/" + k.Kind
}

// MarshalText implements encoding.TextMarshaler: it returns String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: it parses String.
func (k *Kind) UnmarshalText(b []byte) error {
	group, kind, ok := strings.Cut(string(b), "/")
	if !ok {
		return fmt.Errorf("kind %q: want group/Kind", text.Abbreviate(string(b)))
	}
	if group == coreGroup {
		group = ""
	}
	*k = Kind{Group: group, Kind: kind}
	return nil
}

// TypeURL returns the MCP-over-xDS type URL of the kind in one API version,
// "group/version/Kind" without a "type.googleapis.com/" prefix.
func (k Kind) TypeURL(version string) string {
	group := k.Group
	if group == "" {
		group = coreGroup
	}
	return group + "/" + version + "/" + k.Kind
}

// TypeURL returns the type URL of the kind in the version that the relay shows
// when nobody asked for a particular one: the newest known, or "v1".
func (k Kind) PreferredTypeURL() string {
	if info, ok := LookupKind(k); ok {
		return k.TypeURL(info.Versions[0])
	}
	return k.TypeURL("v1")
}

// ParseTypeURL splits "group/version/Kind". It knows no table: any three
// non-empty parts are a kind.
func ParseTypeURL(typeURL string) (Kind, string, error) {
	group, rest, ok := strings.Cut(typeURL, "/")
	version, kind, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 || group == "" || version == "" || kind == "" || strings.Contains(kind, "/") {
		return Kind{}, "", fmt.Errorf("type URL %q: want group/version/Kind, for example networking.istio.io/v1/ServiceEntry", typeURL)
	}
	if group == coreGroup {
		group = ""
	}
	return Kind{Group: group, Kind: kind}, version, nil
}

// Key identifies one resource of the mirror.
type Key struct {
	Kind Kind `json:"kind"`
	// Namespace is empty for cluster-scoped resources and for MeshConfig.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// FullName returns the resource's name on the wire: "namespace/name", or "/name"
// when it is cluster-scoped (PROTOCOL, wire facts), or the fixed name of a
// MeshConfig.
func (k Key) FullName() string {
	if k.Kind == MeshConfig {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// String returns "group/Kind namespace/name".
func (k Key) String() string { return k.Kind.String() + " " + k.FullName() }

// ParseFullName splits a wire name into namespace and name. Exactly one "/" is
// allowed and the name must not be empty: istiod skips every other shape, and so
// deletes the object (PROTOCOL S11).
func ParseFullName(full string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(full, "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("resource name %q: want namespace/name, or /name for a cluster-scoped resource", text.Abbreviate(full))
	}
	return namespace, name, nil
}
