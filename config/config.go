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

// Config is the whole file. docs/configuration.md describes each field; comments here have what
// the code must know in addition.
type Config struct {
	Node       Node       `yaml:"node"`
	Upstreams  []Upstream `yaml:"upstreams"`
	Clusters   []Clusters `yaml:"clusters,omitempty"`
	Merge      []Merge    `yaml:"merge,omitempty"`
	Views      []View     `yaml:"views,omitempty"`
	Provenance Provenance `yaml:"provenance"`
	Downstream Downstream `yaml:"downstream"`
	Push       Push       `yaml:"push"`
	Admin      Admin      `yaml:"admin"`
	State      State      `yaml:"state"`
	Log        Log        `yaml:"log"`
}

// Node is what the relay tells its upstreams and clients about itself.
type Node struct {
	ID        string `yaml:"id"`
	Namespace string `yaml:"namespace"`
	IP        string `yaml:"ip"`
	Revision  string `yaml:"revision"`  // empty: all
	ClusterID string `yaml:"clusterID"` // empty: none
}

// GeneratedKeep is a value of Upstream.Generated.
const GeneratedKeep = "keep"

// Upstream is one upstream, with the section of its kind of source.
type Upstream struct {
	// Name is unique.
	Name      string `yaml:"name"`
	ClusterID string `yaml:"clusterID"` // default: Name
	// DomainSuffix is the cluster domain of the upstream.
	DomainSuffix string    `yaml:"domainSuffix" default:"cluster.local"`
	Generated    string    `yaml:"generated" default:"drop" oneof:"drop keep"`
	Import       Import    `yaml:"import,omitempty"`
	Services     Services  `yaml:"services,omitempty"`
	Rewrite      Rewrite   `yaml:"rewrite"`
	Required     bool      `yaml:"required"`
	FirstSync    string    `yaml:"firstSync" default:"auto" oneof:"auto wait optional"`
	Staleness    Staleness `yaml:"staleness"`
	Guard        Guard     `yaml:"guard"`
	Limits       Limits    `yaml:"limits"`
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
	Listeners               []Listener `yaml:"listeners"`
	StartupTimeout          Duration   `yaml:"startupTimeout" default:"30s" range:"1ms 24h"`
	MaxConnectionAge        Duration   `yaml:"maxConnectionAge" default:"30m" range:"1s 720h"`
	MaxConnectionAgeGrace   Duration   `yaml:"maxConnectionAgeGrace" default:"10s" range:"1s 1h"`
	DrainTimeout            Duration   `yaml:"drainTimeout" default:"10s" range:"100ms 1h"`
	SendTimeout             Duration   `yaml:"sendTimeout" default:"5m" range:"1s 24h"`
	MaxStreamsPerConnection int        `yaml:"maxStreamsPerConnection" default:"100" range:"1 100000"`
	MaxRequestBytes         int        `yaml:"maxRequestBytes" default:"32Mi" range:"64Ki 1Gi"`
	MaxHeaderBytes          int        `yaml:"maxHeaderBytes" default:"64Ki" range:"4Ki 16Mi"`
	MaxTypesPerClient       int        `yaml:"maxTypesPerClient" default:"256" range:"1 10000"`
	// MaxNodeBytes bounds what a client tells about itself.
	MaxNodeBytes int `yaml:"maxNodeBytes" default:"256Ki" range:"1Ki 16Mi"`
	// These bound the names of resources that one stream, the streams of one peer and all
	// streams subscribe to, and their bytes.
	MaxNamesPerClient     int `yaml:"maxNamesPerClient" default:"65536" range:"1 1Gi"`
	MaxNameBytesPerClient int `yaml:"maxNameBytesPerClient" default:"8Mi" range:"1Ki 1Gi"`
	MaxNamesPerPeer       int `yaml:"maxNamesPerPeer" default:"262144" range:"1 1Gi"`
	MaxNameBytesPerPeer   int `yaml:"maxNameBytesPerPeer" default:"32Mi" range:"1Ki 1Gi"`
	MaxNames              int `yaml:"maxNames" default:"524288" range:"1 1Gi"`
	MaxNameBytes          int `yaml:"maxNameBytes" default:"64Mi" range:"1Ki 1Gi"`
	// MaxVersionBytes bounds the versions that clients resume with, until the relay has sent
	// what differs.
	MaxVersionBytes int `yaml:"maxVersionBytes" default:"128Mi" range:"1Mi 1Gi"`
	MaxConnections  int `yaml:"maxConnections" default:"20000" range:"1 1000000"`
	MaxStreams      int `yaml:"maxStreams" default:"20000" range:"1 1000000"`
	// A peer is an address or an identity. Defaults: three quarters of the above.
	MaxConnectionsPerPeer int      `yaml:"maxConnectionsPerPeer" range:"1 1000000"`
	MaxStreamsPerPeer     int      `yaml:"maxStreamsPerPeer" range:"1 1000000"`
	MaxViewsPerPeer       int      `yaml:"maxViewsPerPeer" default:"256" range:"1 1024"`
	NewStreamsPerSecond   int      `yaml:"newStreamsPerSecond" default:"2000" range:"1 1000000"`
	RequestsPerSecond     int      `yaml:"requestsPerSecond" default:"500" range:"1 1000000"` // of each stream
	Compression           []string `yaml:"compression,omitempty" oneof:"gzip"`
	ShedAtMemoryPercent   int      `yaml:"shedAtMemoryPercent" default:"90" range:"0 100"` // 0: never
}

// Push bounds how long a change may wait for others, and what pushing may cost.
type Push struct {
	DebounceAfter Duration `yaml:"debounceAfter" default:"100ms" range:"1ms 1m"` // of quiet end a burst of one upstream
	DebounceMax   Duration `yaml:"debounceMax" default:"1s" range:"1ms 10m"`
	MaxShare      float64  `yaml:"maxShare" default:"0.5" range:"0.01 1"` // of the CPUs
}

// Admin is the HTTP endpoint for operators.
type Admin struct {
	Address       string `yaml:"address" default:"127.0.0.1:15014"`
	AllowInsecure bool   `yaml:"allowInsecure"`
	// Socket is as in the file. See Config.AdminSocket for its default.
	Socket string `yaml:"socket" path:"own"`
}

// Log is how the relay logs.
type Log struct {
	Level  string `yaml:"level" default:"info" oneof:"debug info warn error"`
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
// can be read back. Of secrets it has only the paths, but for what somebody writes into the
// arguments and the environment of a program: Shown has none of these.
func (c *Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
