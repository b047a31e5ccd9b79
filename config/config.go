// Package config is the relay's config file: its types, their defaults, strict
// loading with line numbers, and validation that finds every mistake in one go.
//
// The package must not know gRPC or xDS, nor how the settings take effect.
package config

import (
	"errors"
	"time"

	"github.com/goccy/go-yaml"
)

// Config is the whole file. See docs/configuration.md for the reference.
type Config struct {
	Node       Node       `yaml:"node"`
	Upstreams  []Upstream `yaml:"upstreams"`
	Merge      []Merge    `yaml:"merge,omitempty"`
	Views      []View     `yaml:"views,omitempty"`
	Provenance Provenance `yaml:"provenance"`
	Downstream Downstream `yaml:"downstream"`
	Push       Push       `yaml:"push"`
	Admin      Admin      `yaml:"admin"`
	State      State      `yaml:"state"`
	Log        Log        `yaml:"log"`
}

// Node is what the relay tells of itself to its upstreams and clients.
type Node struct {
	// ID names this relay. Default: the host name.
	ID string `yaml:"id"`
	// Namespace is the relay's own; the credential that it shows to an istiod must
	// belong to it. Default: $POD_NAMESPACE, or istio-system.
	Namespace string `yaml:"namespace"`
	// IP is the relay's own address. Default: $INSTANCE_IP, $POD_IP, the host's first
	// address, or 127.0.0.1.
	IP string `yaml:"ip"`
	// Revision is the control plane revision whose configs are mirrored. Empty: all.
	Revision string `yaml:"revision"`
	// ClusterID is the cluster that the relay runs in, as it tells relays that it
	// mirrors: they leave out what came from there. Empty: none.
	ClusterID string `yaml:"clusterID"`
}

// GeneratedKeep is a value of Upstream.Generated.
const GeneratedKeep = "keep"

// Upstream is one source, with the section of its kind.
type Upstream struct {
	// Name is unique, and shown wherever the source is spoken of.
	Name string `yaml:"name"`
	// ClusterID is the cluster that the source speaks for. Default: Name.
	ClusterID string `yaml:"clusterID"`
	// DomainSuffix is the cluster domain of the source: a service there is
	// NAME.NAMESPACE.svc.DomainSuffix. Default: cluster.local.
	DomainSuffix string `yaml:"domainSuffix" default:"cluster.local"`
	// Generated configures what becomes of objects that an istiod derives by itself: drop
	// (the default) or keep.
	Generated string   `yaml:"generated" default:"drop" oneof:"drop keep"`
	Import    Import   `yaml:"import,omitempty"`
	Services  Services `yaml:"services,omitempty"`
	Rewrite   Rewrite  `yaml:"rewrite"`
	// Required makes the relay unready while the upstream is stale.
	Required bool `yaml:"required"`
	// FirstSync is auto (the default), wait or optional: how long clients wait at the start of
	// the relay for an upstream that nothing is known about.
	FirstSync string    `yaml:"firstSync" default:"auto" oneof:"auto wait optional"`
	Staleness Staleness `yaml:"staleness"`
	Guard     Guard     `yaml:"guard"`
	Limits    Limits    `yaml:"limits"`
	// Source is the section of the kind of source, under its name.
	Source Source `yaml:"-"`
}

// MarshalYAML implements yaml.InterfaceMarshaler.
func (u Upstream) MarshalYAML() (any, error) {
	type Fields Upstream
	return struct {
		Fields  `yaml:",inline"`
		Section map[string]Source `yaml:",inline"`
	}{Fields(u), map[string]Source{u.Source.Kind(): u.Source}}, nil
}

// CompressionGzip is the one value of Downstream.Compression and of other lists of that name.
const CompressionGzip = "gzip"

// Downstream is the endpoint that clients connect to.
type Downstream struct {
	Listeners []Listener `yaml:"listeners"`
	// StartupTimeout is how long clients wait for sources that have not synced, where
	// Upstream.FirstSync does not have them wait for as long as it takes.
	StartupTimeout Duration `yaml:"startupTimeout" default:"30s" range:"1ms 24h"`
	// MaxConnectionAge is how long a connection lives, give or take a tenth, and
	// MaxConnectionAgeGrace how long its streams have to end.
	MaxConnectionAge      Duration `yaml:"maxConnectionAge" default:"30m" range:"1s 720h"`
	MaxConnectionAgeGrace Duration `yaml:"maxConnectionAgeGrace" default:"10s" range:"1s 1h"`
	// DrainTimeout bounds the shutdown.
	DrainTimeout Duration `yaml:"drainTimeout" default:"10s" range:"100ms 1h"`
	// SendTimeout is how long a client may leave a response unread.
	SendTimeout Duration `yaml:"sendTimeout" default:"5m" range:"1s 24h"`
	// MaxStreamsPerConnection, MaxRequestBytes, MaxHeaderBytes and MaxTypesPerClient
	// bound what one client can ask for.
	MaxStreamsPerConnection int `yaml:"maxStreamsPerConnection" default:"100" range:"1 100000"`
	MaxRequestBytes         int `yaml:"maxRequestBytes" default:"32Mi" range:"64Ki 1Gi"`
	MaxHeaderBytes          int `yaml:"maxHeaderBytes" default:"64Ki" range:"4Ki 16Mi"`
	MaxTypesPerClient       int `yaml:"maxTypesPerClient" default:"256" range:"1 10000"`
	// MaxNodeBytes bounds what a client tells of itself, in bytes. Default 256 KiB.
	MaxNodeBytes int `yaml:"maxNodeBytes" default:"256Ki" range:"1Ki 16Mi"`
	// MaxNamesPerClient, MaxNamesPerPeer and MaxNames bound the names of resources that one
	// stream, the streams of one peer and all streams subscribe to; the others their bytes.
	// Defaults 65536 and 8 MiB, 262144 and 32 MiB, 524288 and 64 MiB.
	MaxNamesPerClient     int `yaml:"maxNamesPerClient" default:"65536" range:"1 1Gi"`
	MaxNameBytesPerClient int `yaml:"maxNameBytesPerClient" default:"8Mi" range:"1Ki 1Gi"`
	MaxNamesPerPeer       int `yaml:"maxNamesPerPeer" default:"262144" range:"1 1Gi"`
	MaxNameBytesPerPeer   int `yaml:"maxNameBytesPerPeer" default:"32Mi" range:"1Ki 1Gi"`
	MaxNames              int `yaml:"maxNames" default:"524288" range:"1 1Gi"`
	MaxNameBytes          int `yaml:"maxNameBytes" default:"64Mi" range:"1Ki 1Gi"`
	// MaxVersionBytes bounds what clients say that they have until they were sent what
	// differs. Default 128 MiB.
	MaxVersionBytes int `yaml:"maxVersionBytes" default:"128Mi" range:"1Mi 1Gi"`
	// MaxConnections and MaxStreams bound the clients of all listeners together. Defaults
	// 20000 and 20000.
	MaxConnections int `yaml:"maxConnections" default:"20000" range:"1 1000000"`
	MaxStreams     int `yaml:"maxStreams" default:"20000" range:"1 1000000"`
	// MaxConnectionsPerPeer and MaxStreamsPerPeer bound those of one address, or of one
	// identity. Defaults: three quarters of MaxConnections and MaxStreams.
	MaxConnectionsPerPeer int `yaml:"maxConnectionsPerPeer" range:"1 1000000"`
	MaxStreamsPerPeer     int `yaml:"maxStreamsPerPeer" range:"1 1000000"`
	// MaxViewsPerPeer bounds the views that the streams of one peer have, counting each
	// combination of a configured view, a cluster and a revision. Default 256.
	MaxViewsPerPeer int `yaml:"maxViewsPerPeer" default:"256" range:"1 1024"`
	// NewStreamsPerSecond and RequestsPerSecond (of each stream) bound how fast clients may
	// come and ask. Defaults 1000 and 500.
	NewStreamsPerSecond int `yaml:"newStreamsPerSecond" default:"1000" range:"1 1000000"`
	RequestsPerSecond   int `yaml:"requestsPerSecond" default:"500" range:"1 1000000"`
	// Compression has gzip when clients may compress their requests. Default: none.
	Compression []string `yaml:"compression,omitempty" oneof:"gzip"`
	// ShedAtMemoryPercent is how much of the memory limit may be in use before new clients
	// are turned away. Default 90; 0: never.
	ShedAtMemoryPercent int `yaml:"shedAtMemoryPercent" default:"90" range:"0 100"`
}

// Push bounds how long a change may wait for company.
type Push struct {
	// DebounceAfter is the quiet time that ends the wait while changes keep coming.
	DebounceAfter Duration `yaml:"debounceAfter" default:"100ms" range:"1ms 1m"`
	// DebounceMax is the longest that a change waits.
	DebounceMax Duration `yaml:"debounceMax" default:"1s" range:"1ms 10m"`
}

// Admin is the HTTP endpoint for operators.
type Admin struct {
	Address string `yaml:"address" default:"127.0.0.1:15014"`
	// AllowInsecure lets Address be off loopback. Debug endpoints stay on loopback.
	AllowInsecure bool `yaml:"allowInsecure"`
	// Socket is the Unix socket for what changes something. Default: admin.sock in
	// State.Dir; without that, a file of the user's own below $XDG_RUNTIME_DIR or the
	// temporary directory, named after the port of Address. See Config.AdminSocket.
	Socket string `yaml:"socket" path:"own"`
}

// Log is how the relay logs.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level" default:"info" oneof:"debug info warn error"`
	// Format is text or json.
	Format string `yaml:"format" default:"text" oneof:"text json"`
}

// Duration is a time.Duration that is written as Go writes them: 90s, 1m30s, 250ms.
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.D().String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("want a duration like 90s, 5m or 250ms")
	}
	*d = Duration(v)
	return nil
}

// YAML returns the effective configuration, with all defaults and absolute paths. It
// can be read back, and holds no secrets: of those, a config has only the paths.
func (c *Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
