package config

import (
	"fmt"

	"meshrelay/internal/identity"
)

// Peers tells where the replicas of a relay ask each other, and how they prove who they are. The relay reads the files
// again when they change.
type Peers struct {
	// Service is the host:port of all replicas. The host resolves to the address of each.
	Service string `yaml:"service"`
	Listen  string `yaml:"listen" default:":15016"`
	// A replica shows the certificate both as a server and as a client. CAFile verifies those of the others.
	CertFile string `yaml:"certFile" path:"file" pem:"certificate"`
	KeyFile  string `yaml:"keyFile" path:"file" pem:"key"`
	CAFile   string `yaml:"caFile" path:"file" pem:"roots"`
	// Identities are patterns of SPIFFE IDs and DNS names. Empty: a replica has an identity of the own certificate.
	Identities []string `yaml:"identities,omitempty"`
}

// peers checks how replicas ask each other.
func (v *validator) peers(at string, p *Peers, c *Config) {
	if p.Service == "" {
		v.errorf(at+".service", "missing: name a host that resolves to the address of each replica, such as relay-peers.istio-system.svc:15016")
	} else {
		v.address(at+".service", p.Service, 1)
	}
	v.address(at+".listen", p.Listen, 0)
	for i, l := range c.Downstream.Listeners {
		v.errorIf(collide(l.Address, p.Listen), at+".listen", "%q is already the address of downstream.listeners[%d]: choose another port", p.Listen, i)
	}
	v.errorIf(collide(c.Admin.Address, p.Listen), at+".listen", "%q is already admin.address: choose another port", p.Listen)
	v.errorIf(p.CertFile == "" || p.KeyFile == "" || p.CAFile == "", at, "certFile, keyFile and caFile are all needed: replicas always prove who they are")
	for i, text := range p.Identities {
		_, err := identity.Parse(text)
		v.errorOf(fmt.Sprintf("%s.identities[%d]", at, i), err)
	}
}
