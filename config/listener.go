package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"meshrelay/internal/identity"
)

// Listener is one address on which the relay serves clients, in plaintext or with TLS.
type Listener struct {
	Address          string       `yaml:"address"`
	Plaintext        bool         `yaml:"plaintext"`
	AllowInsecure    bool         `yaml:"allowInsecure"`    // plaintext off loopback
	AllowAnonymous   bool         `yaml:"allowAnonymous"`   // TLS without a certificate of the client
	AllowAnyIdentity bool         `yaml:"allowAnyIdentity"` // views without identities
	TLS              *ListenerTLS `yaml:"tls,omitempty"`
	View             string       `yaml:"view,omitempty"` // of all clients of the listener
	// Debug defaults to loopback on a loopback address, and to verified elsewhere.
	Debug string `yaml:"debug" oneof:"off loopback verified"`
}

// Values of Listener.Debug.
const (
	DebugOff      = "off"
	DebugLoopback = "loopback"
	DebugVerified = "verified"
)

// ListenerTLS names the files of a TLS listener. The relay reads them again when they change.
type ListenerTLS struct {
	CertFile string `yaml:"certFile" path:"file" pem:"certificate"`
	KeyFile  string `yaml:"keyFile" path:"file" pem:"key"`
	// With ClientCAs, clients must have a certificate, unless the listener has AllowAnonymous.
	ClientCAs []ClientCA `yaml:"clientCAs,omitempty"`
}

// ClientCA names the roots that verify the SPIFFE IDs of one trust domain, or, without one, every identity
// except SPIFFE IDs of the trust domains of others.
type ClientCA struct {
	TrustDomain string `yaml:"trustDomain,omitempty"`
	File        string `yaml:"file" path:"file" pem:"roots"`
}

// verifies reports whether the listener verifies client certificates, so that clients can prove who they are.
func (l Listener) verifies() bool { return l.TLS != nil && len(l.TLS.ClientCAs) > 0 }

// CheckListeners checks the views against the listeners of a running relay, which a reload does
// not change. It reports listeners that would expose resources without a field that allows it, and
// listeners whose view no client could have.
func (c *Config) CheckListeners(listeners []Listener) error {
	var errs []error
	for i, l := range listeners {
		if field, text := l.exposure(c.Views); text != "" {
			errs = append(errs, fmt.Errorf("%s: %s", join(fmt.Sprintf("downstream.listeners[%d]", i), field), text))
		}
	}
	return errors.Join(errs...)
}

// exposure checks which clients can read which views on the listener. It returns the first mistake
// and its field.
func (l Listener) exposure(views []View) (field, text string) {
	// A listener that names a view serves no other.
	if i := slices.IndexFunc(views, func(w View) bool { return l.View != "" && w.Name == l.View }); i >= 0 {
		if len(views[i].Match.Identities) > 0 && !l.verifies() {
			return "view", fmt.Sprintf("the view %q needs identities, and this listener verifies none: set tls.clientCAs, or name a view without match.identities", l.View)
		}
		views = views[i : i+1]
	}
	switch {
	case l.verifies() && !l.AllowAnyIdentity && !l.AllowAnonymous && !identified(views, l.View):
		return "tls.clientCAs", "every client with a certificate of these roots can read what is served here: give every view match.identities and none default: true, or set allowAnyIdentity: true"
	case l.TLS != nil && !l.verifies() && !l.AllowAnonymous:
		return "tls", "clients need no certificate, so anybody who reaches this listener can read all resources: set tls.clientCAs, or allowAnonymous: true"
	}
	return "", ""
}

// identified reports whether every client that gets a view has an identity that the view names. A
// view without a match is used only by the listeners that name it.
func identified(views []View, named string) bool {
	return len(views) > 0 && !slices.ContainsFunc(views, func(w View) bool {
		if named == "" && !w.Default && reflect.ValueOf(w.Match).IsZero() {
			return false
		}
		return len(w.Match.Identities) == 0 || w.Default && named == ""
	})
}

// listeners checks the address, the TLS settings and the exposure of each listener.
func (v *validator) listeners(c *Config) {
	all := c.Downstream.Listeners
	for i, l := range all {
		at := fmt.Sprintf("downstream.listeners[%d]", i)
		v.address(at+".address", l.Address, 0)
		for n, other := range all[:i] {
			v.errorIf(collide(l.Address, other.Address), at+".address", "%q is already the address of listeners[%d] (%q)", l.Address, n, other.Address)
		}
		switch {
		case l.Plaintext && l.TLS != nil:
			v.errorf(at+".plaintext", "plaintext and tls are both set: leave out one")
			continue
		case !l.Plaintext && l.TLS == nil && !v.reported(at+".plaintext"):
			v.errorf(at+".tls", "neither tls nor plaintext is set: set tls, or plaintext: true to serve without TLS")
		case l.Plaintext && !l.AllowInsecure && !onLoopback(l.Address):
			v.errorf(at+".address", "plaintext on %q, which is not a loopback address, needs allowInsecure: true: anybody who reaches it can read all resources", l.Address)
		case l.TLS != nil && (l.TLS.CertFile == "" || l.TLS.KeyFile == ""):
			v.errorf(at+".tls", "certFile and keyFile are both needed")
		}
		if l.TLS != nil {
			v.clientCAs(at+".tls.clientCAs", l.TLS.ClientCAs)
		}
		v.errorIf(l.AllowAnyIdentity && !l.verifies(), at+".allowAnyIdentity", "clients of this listener need no certificate: set tls.clientCAs, or leave this out")
		if field, text := l.exposure(c.Views); text != "" {
			v.errorf(join(at, field), "%s", text)
		}
	}
}

// clientCAs checks that each trust domain, or none, is valid, listed once and has a file.
func (v *validator) clientCAs(at string, all []ClientCA) {
	v.errorIf(all != nil && len(all) == 0, at, "empty: leave it out, or name at least one file with roots")
	for i, ca := range all {
		here := fmt.Sprintf("%s[%d]", at, i)
		if err := identity.CheckTrustDomain(ca.TrustDomain); ca.TrustDomain != "" && err != nil {
			v.errorf(here+".trustDomain", "%q is not a trust domain: %v", ca.TrustDomain, err)
		}
		v.errorIf(ca.File == "", here+".file", "missing: name a file with roots")
		if n := slices.IndexFunc(all[:i], func(o ClientCA) bool { return o.TrustDomain == ca.TrustDomain }); n >= 0 {
			v.errorf(here+".trustDomain", "%q already has roots in clientCAs[%d]: put all roots into one file", ca.TrustDomain, n)
		}
	}
}

// identities checks patterns of client identities. Each must be one that a listener can verify.
func (v *validator) identities(at string, patterns []string, listeners []Listener) {
	verifying := slices.ContainsFunc(listeners, Listener.verifies)
	for i, text := range patterns {
		field := fmt.Sprintf("%s[%d]", at, i)
		p, err := identity.Parse(text)
		switch {
		case err != nil:
			v.errorf(field, "%v", err)
		case !verifying || slices.ContainsFunc(listeners, func(l Listener) bool { return l.proves(p) }):
		case p.IsDNS():
			v.errorf(field, "%q matches nobody: only certificates of tls.clientCAs without a trust domain have DNS names: write a SPIFFE ID, or add such roots to a listener", text)
		default:
			v.errorf(field, "%q matches nobody: no listener has client CAs for its trust domain: add it to tls.clientCAs of one", text)
		}
	}
}

// proves reports whether a client of the listener can prove an identity that a pattern matches.
func (l Listener) proves(p identity.Pattern) bool {
	return l.verifies() && slices.ContainsFunc(l.TLS.ClientCAs, func(ca ClientCA) bool {
		return ca.TrustDomain == "" || !p.IsDNS() && p.MatchesTrustDomain(ca.TrustDomain)
	})
}
