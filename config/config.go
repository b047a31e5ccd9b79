// Package config loads the relay's config file: its types and defaults, strict decoding
// with line numbers, and a validation that reports every mistake at once.
//
// The package must not depend on gRPC, on xDS, or on the code that applies the settings.
package config

import (
	"errors"
	"time"

	"github.com/goccy/go-yaml"
)

// Config is the whole file. docs/configuration.md describes each field. The comments here add
// what only the code needs.
type Config struct {
	Node      Node       `yaml:"node"`
	Upstreams []Upstream `yaml:"upstreams"`
	Clusters  []Clusters `yaml:"clusters,omitempty"`
	Merge     []Merge    `yaml:"merge,omitempty"`
	// HostConflicts is about hosts that resources of different keys and upstreams claim.
	HostConflicts string `yaml:"hostConflicts" default:"serve" oneof:"serve first reject"`
	Views         []View `yaml:"views,omitempty"`
	// Sinks write resources into clusters.
	Sinks      []Sink     `yaml:"sinks,omitempty"`
	Provenance Provenance `yaml:"provenance"`
	Downstream Downstream `yaml:"downstream"`
	Admin      Admin      `yaml:"admin"`
	State      State      `yaml:"state"`
	Replicas   *Replicas  `yaml:"replicas,omitempty"` // nil: the relay is alone
	Log        Log        `yaml:"log"`
}

// Node describes the relay to its upstreams and clients.
type Node struct {
	ID        string `yaml:"id"`
	Namespace string `yaml:"namespace"`
	ClusterID string `yaml:"clusterID"` // empty: none
	IP        string `yaml:"-"`         // of the environment or the host
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

// Downstream is the endpoint that clients connect to.
type Downstream struct {
	Listeners      []Listener `yaml:"listeners"`
	StartupTimeout Duration   `yaml:"startupTimeout" default:"30s" range:"1ms 24h"`
	// These follow the memory limit (Config.FitMemory).
	MaxStreams      int `yaml:"maxStreams,omitempty" range:"1 1000000"`
	MaxRequestBytes int `yaml:"-"`
}

// Admin is the HTTP endpoint for operators.
type Admin struct {
	Address       string `yaml:"address" default:"127.0.0.1:15014"`
	AllowInsecure bool   `yaml:"allowInsecure"`
	// Socket is the value in the file. Config.AdminSocket adds the default.
	Socket string `yaml:"socket" path:"own"`
}

// Log configures the relay's log.
type Log struct {
	Level  string `yaml:"level" default:"info" oneof:"debug info warn error"`
	Format string `yaml:"format" default:"text" oneof:"text json"`
}

// Duration is a time.Duration in the text form of Go: 90s, 1m30s, 250ms.
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

// YAML returns the effective config, with all defaults and absolute paths. Parse reads it back.
// It has the paths of secrets, not the secrets. But arguments and environments of programs are
// included, and these may contain secrets: Shown hides them.
func (c *Config) YAML() ([]byte, error) { return yaml.Marshal(c) }
