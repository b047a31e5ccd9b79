// Package config is the relay's config file: its types, their defaults, strict
// loading with line numbers, and validation that finds every mistake in one go.
//
// The package must not know gRPC or xDS, nor how the settings take effect.
package config

import (
	"fmt"
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

// Values of Upstream.Generated.
const (
	GeneratedDrop = "drop"
	GeneratedKeep = "keep"
)

// Upstream is one source. Exactly one of XDS and File is set.
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
	XDS       *XDS      `yaml:"xds,omitempty"`
	File      *File     `yaml:"file,omitempty"`
}

// Values of XDS.Protocol.
const (
	ProtocolAuto  = "auto"
	ProtocolSotW  = "sotw"
	ProtocolDelta = "delta"
)

// XDS is a source that is an MCP-over-xDS server: an istiod or another relay.
type XDS struct {
	// Addresses are host:port, tried in order.
	Addresses []string `yaml:"addresses"`
	// Protocol is auto (the default), sotw or delta.
	Protocol string `yaml:"protocol" default:"auto" oneof:"auto sotw delta"`
	// TLS is required unless Plaintext is set.
	TLS *TLS `yaml:"tls,omitempty"`
	// TokenFile holds a bearer token, read again for each stream.
	TokenFile string `yaml:"tokenFile" path:"file"`
	// ShareToken lets an upstream of another cluster have the same TokenFile. Each can then
	// present the token to the other.
	ShareToken bool `yaml:"shareToken"`
	// Plaintext goes without TLS.
	Plaintext bool `yaml:"plaintext"`
	// ResyncInterval is how often everything is asked for again. Default 5m.
	ResyncInterval Duration `yaml:"resyncInterval" default:"5m" range:"1s 24h"`
	// SyncTimeout is how long a server may bring nothing new before it has answered every
	// type: then the next address is tried. Default 30s.
	SyncTimeout Duration `yaml:"syncTimeout" default:"30s" range:"1s 1h"`
	// FailbackAfter is how long an address must have worked again before it is preferred to
	// those that stand behind it. Default 1m.
	FailbackAfter Duration `yaml:"failbackAfter" default:"1m" range:"1s 24h"`
	// Types are type URLs (group/version/Kind) to mirror in addition to the well-known ones.
	Types []string `yaml:"types,omitempty"`
	// Compression has gzip when the server may compress its responses. Default: none.
	Compression []string `yaml:"compression,omitempty" oneof:"gzip"`
}

// CompressionGzip is the one value of XDS.Compression and Downstream.Compression.
const CompressionGzip = "gzip"

// TLS is how the relay makes sure of an upstream, and shows who it is.
type TLS struct {
	// CAFile has the roots to trust. Default: those of the host.
	CAFile string `yaml:"caFile" path:"file"`
	// CertFile and KeyFile are the client certificate.
	CertFile string `yaml:"certFile" path:"file"`
	KeyFile  string `yaml:"keyFile" path:"file"`
	// ServerName is the name to expect in the server's certificate. Default: the host
	// of the address.
	ServerName string `yaml:"serverName"`
}

// File is a source that is a file or a directory of Kubernetes-style YAML.
type File struct {
	Path string `yaml:"path" path:"file or directory"`
}

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

// Push bounds how long a change may wait for company, and what pushing may cost.
type Push struct {
	// DebounceAfter is the quiet time that ends a burst of changes of one upstream.
	DebounceAfter Duration `yaml:"debounceAfter" default:"100ms" range:"1ms 1m"`
	// DebounceMax is the longest that a change waits.
	DebounceMax Duration `yaml:"debounceMax" default:"1s" range:"1ms 10m"`
	// MaxShare is how much of the CPUs pushing may take.
	MaxShare float64 `yaml:"maxShare" default:"0.5" range:"0.01 1"`
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

// MarshalYAML implements yaml.InterfaceMarshaler.
func (d Duration) MarshalYAML() (any, error) { return d.D().String(), nil }

// UnmarshalYAML implements yaml.BytesUnmarshaler.
func (d *Duration) UnmarshalYAML(data []byte) error {
	var s string
	if err := yaml.Unmarshal(data, &s); err != nil {
		return err
	}
	return d.parse(s)
}

func (d *Duration) parse(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration: write it like 90s, 5m or 250ms", s)
	}
	*d = Duration(v)
	return nil
}

// YAML returns the effective configuration, with all defaults and absolute paths. It
// can be read back, and holds no secrets: of those, a config has only the paths.
func (c *Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
