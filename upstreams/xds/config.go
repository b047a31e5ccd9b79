package xds

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// Config is the section of an upstream that is an MCP-over-xDS server: an istiod or another relay.
type Config struct {
	Addresses      []string        `yaml:"addresses"` // in order of preference
	Protocol       string          `yaml:"protocol" default:"auto" oneof:"auto sotw delta"`
	TLS            *TLS            `yaml:"tls,omitempty"` // nil with Plaintext
	TokenFile      string          `yaml:"tokenFile" path:"file"`
	Token          *Token          `yaml:"token,omitempty"` // nil with TokenFile
	Plaintext      bool            `yaml:"plaintext"`
	ResyncInterval config.Duration `yaml:"resyncInterval" default:"5m" range:"1s 24h"`
	// Partial: the server may offer only some of the types.
	Partial bool `yaml:"partial"`
	// Types are type URLs to mirror in addition to the well-known ones.
	Types []string `yaml:"types,omitempty"`
	// Second: an upstream before this one in the config has an address of this one. Check sets it.
	Second bool `yaml:"-"`
}

// TLS configures how the relay verifies a server, and which certificate it shows.
type TLS struct {
	CAFile     string `yaml:"caFile" path:"file" pem:"roots"` // empty: the roots of the host
	CertFile   string `yaml:"certFile" path:"file" pem:"certificate"`
	KeyFile    string `yaml:"keyFile" path:"file" pem:"key"`
	ServerName string `yaml:"serverName"` // empty: the host of the address
}

// Token names the service account of a cluster whose tokens the relay asks for.
type Token struct {
	Cluster        config.Cluster `yaml:"cluster"`
	Namespace      string         `yaml:"namespace"` // empty: that of the node
	ServiceAccount string         `yaml:"serviceAccount"`
	Audience       string         `yaml:"audience" default:"istio-ca"`
}

func (t *Token) credentials() *apiserver.Credentials {
	return &apiserver.Credentials{Cluster: t.Cluster}
}

// sectionOf returns the section of an upstream of this kind.
func sectionOf(u config.Upstream) *Config { return u.Source.(*Config) }

// Kind implements config.Source.
func (*Config) Kind() string { return "xds" }

// Relayed implements config.Source.
func (*Config) Relayed() bool { return true }

// Check implements config.Source, and sets Second.
func (c *Config) Check(mistakes config.Checker, u config.Upstream, before []config.Upstream) {
	c.Second = slices.ContainsFunc(before, func(other config.Upstream) bool {
		o, is := other.Source.(*Config)
		return is && slices.ContainsFunc(o.Addresses, func(a string) bool { return slices.Contains(c.Addresses, a) })
	})
	if len(c.Addresses) == 0 {
		mistakes.Errorf("addresses", "missing: give at least one host:port")
	}
	for i, a := range c.Addresses {
		mistakes.Address(fmt.Sprintf("addresses[%d]", i), a)
	}
	for i, t := range c.Types {
		if _, _, err := mirror.ParseTypeURL(t); err != nil {
			mistakes.Errorf(fmt.Sprintf("types[%d]", i), "%v", err)
		}
	}
	switch {
	case c.Plaintext && c.TLS != nil:
		mistakes.Errorf("plaintext", "plaintext and tls are both set: leave out one")
	case !c.Plaintext && c.TLS == nil && !mistakes.Reported("plaintext"):
		mistakes.Errorf("tls", "neither tls nor plaintext is set: set tls, or plaintext: true to serve without TLS")
	}
	field := "tokenFile"
	if t := c.Token; t != nil {
		field = "token"
		mistakes.Cluster("token.cluster", t.Cluster)
		if len(validation.IsDNS1123Subdomain(t.ServiceAccount)) > 0 || t.Namespace != "" && len(validation.IsDNS1123Label(t.Namespace)) > 0 {
			mistakes.Errorf("token.serviceAccount", "%q, with namespace %q, is not the name of a service account: name one that the istiod accepts", t.ServiceAccount, t.Namespace)
		}
	}
	switch {
	case c.TokenFile != "" && c.Token != nil:
		mistakes.Errorf("token", "token and tokenFile are both set: leave out one")
	case c.Plaintext && (c.TokenFile != "" || c.Token != nil):
		mistakes.Errorf(field, "a token is not sent over plaintext, where anybody can read it, and an istiod ignores it there: set tls, or leave out %s", field)
	}
	if c.Plaintext && len(u.Import.RequireVia) > 0 {
		mistakes.Errorf("plaintext", "a server proves no identity over plaintext, so that import.requireVia believes none: set tls, or leave out requireVia")
	}
	if t := c.TLS; t != nil && (t.CertFile == "") != (t.KeyFile == "") {
		mistakes.Errorf("tls", "set both certFile and keyFile, or neither")
	}
	// Of two clusters with the same token, each could use it with the other.
	for n, other := range before {
		o, ok := other.Source.(*Config)
		if !ok || c.TokenFile == "" && c.Token == nil || o.TokenFile != c.TokenFile || !reflect.DeepEqual(o.Token, c.Token) || other.ClusterID == u.ClusterID {
			continue
		}
		mistakes.Errorf(field, "upstreams[%d] (%q) of cluster %q has the same token, so that each upstream can use it with the other: give each its own", n, other.Name, other.ClusterID)
	}
}
