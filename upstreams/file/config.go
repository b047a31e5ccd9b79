package file

import "meshrelay/config"

// Config is the section of an upstream that is a file or a directory of Kubernetes-style YAML.
type Config struct {
	Path string `yaml:"path" path:"file or directory"`
}

// Kind implements config.Source.
func (*Config) Kind() string { return "file" }

// Relayed implements config.Source.
func (*Config) Relayed() bool { return false }

// pathOf returns the path in the section of an upstream of this kind.
func pathOf(u config.Upstream) string { return u.Source.(*Config).Path }

// Check implements config.Source.
func (c *Config) Check(mistakes config.Checker, _ config.Upstream, _ []config.Upstream) {
	if c.Path == "" {
		mistakes.Errorf("path", "missing: name a file or a directory")
	}
}
