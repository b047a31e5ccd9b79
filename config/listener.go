package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"meshrelay/internal/identity"
)

// Listener is one address to serve on, in plaintext or with TLS.
type Listener struct {
	Address          string       `yaml:"address"`
	Plaintext        bool         `yaml:"plaintext"`
	AllowInsecure    bool         `yaml:"allowInsecure"`    // plaintext off loopback
	AllowAnonymous   bool         `yaml:"allowAnonymous"`   // TLS without a client CA
	AllowAnyIdentity bool         `yaml:"allowAnyIdentity"` // views without identities
	TLS              *ListenerTLS `yaml:"tls,omitempty"`
	View             string       `yaml:"view,omitempty"` // of all clients of the listener
	// Debug is loopback by default on a loopback address, else verified.
	Debug string `yaml:"debug" oneof:"off loopback verified"`
}

// Values of Listener.Debug.
const (
	DebugOff      = "off"
	DebugLoopback = "loopback"
	DebugVerified = "verified"
)

// ListenerTLS are the files of a TLS listener. They are read again when they change.
type ListenerTLS struct {
	CertFile string `yaml:"certFile" path:"file" pem:"certificate"`
	KeyFile  string `yaml:"keyFile" path:"file" pem:"key"`
	// ClientCAFile and ClientCAs, when one of them is set, make a client certificate
	// mandatory. Roots in ClientCAFile vouch for every identity, but for SPIFFE IDs of the
	// trust domains in ClientCAs.
	ClientCAFile string     `yaml:"clientCAFile" path:"file" pem:"roots"`
	ClientCAs    []ClientCA `yaml:"clientCAs,omitempty"`
}

// ClientCA are roots that vouch for the SPIFFE IDs of one trust domain.
type ClientCA struct {
	TrustDomain string `yaml:"trustDomain"`
	File        string `yaml:"file" path:"file" pem:"roots"`
}

// verifies reports whether clients of the listener show a certificate.
func (l Listener) verifies() bool {
	return l.TLS != nil && (l.TLS.ClientCAFile != "" || len(l.TLS.ClientCAs) > 0)
}

// clientCAs returns the field of the roots that vouch for clients.
func (l Listener) clientCAs() string {
	if l.TLS.ClientCAFile != "" {
		return "tls.clientCAFile"
	}
	return "tls.clientCAs"
}

// CheckListeners returns what views would open on listeners without a field that allows it,
// and what they would close to everybody. The listeners of a running relay stay when its
// views are replaced.
func CheckListeners(listeners []Listener, views []View) error {
	var errs []error
	for i, l := range listeners {
		if field, text := l.exposure(views); text != "" {
			errs = append(errs, fmt.Errorf("%s: %s", join(fmt.Sprintf("downstream.listeners[%d]", i), field), text))
		}
	}
	return errors.Join(errs...)
}

// exposure returns what is wrong with who can see what on the listener, and the field.
func (l Listener) exposure(views []View) (field, text string) {
	// A listener that names a view shows no other.
	if i := slices.IndexFunc(views, func(w View) bool { return l.View != "" && w.Name == l.View }); i >= 0 {
		if len(views[i].Match.Identities) > 0 && !l.verifies() {
			return "view", fmt.Sprintf("the view %q is for identities, and this listener can not verify any: set tls.clientCAFile or tls.clientCAs, or name a view without match.identities", l.View)
		}
		views = views[i : i+1]
	}
	switch {
	case l.verifies() && !l.AllowAnyIdentity && !identified(views, l.View):
		return l.clientCAs(), "whoever has a certificate of these roots can read what is served here: give every view match.identities and none default: true, or set allowAnyIdentity: true"
	case l.TLS != nil && !l.verifies() && !l.AllowAnonymous:
		return "tls", "anybody who reaches this listener can read all resources, as clients need no certificate: set tls.clientCAFile or tls.clientCAs, or allowAnonymous: true"
	}
	return "", ""
}

// identified reports whether only identities that the views name can have one of them. A view
// that matches nobody is for the listeners that name it.
func identified(views []View, named string) bool {
	return len(views) > 0 && !slices.ContainsFunc(views, func(w View) bool {
		if named == "" && !w.Default && reflect.ValueOf(w.Match).IsZero() {
			return false
		}
		return len(w.Match.Identities) == 0 || w.Default && named == ""
	})
}

// listeners checks each address, how it is guarded, and who can see what there.
func (v *validator) listeners(c *Config) {
	all := c.Downstream.Listeners
	for i, l := range all {
		at := fmt.Sprintf("downstream.listeners[%d]", i)
		v.address(at+".address", l.Address, 0)
		for n, other := range all[:i] {
			v.errorIf(collide(l.Address, other.Address), at+".address", "%q is the address of listeners[%d] (%q) already", l.Address, n, other.Address)
		}
		switch {
		case l.Plaintext && l.TLS != nil:
			v.errorf(at+".plaintext", "both plaintext and tls: leave out one")
			continue
		case !l.Plaintext && l.TLS == nil && !v.reported(at+".plaintext"):
			v.errorf(at+".tls", "neither tls nor plaintext: set tls, or plaintext: true to go without")
		case l.Plaintext && !l.AllowInsecure && !onLoopback(l.Address):
			v.errorf(at+".address", "plaintext on %q, which is not a loopback address, needs allowInsecure: true: anybody who reaches it can read all resources", l.Address)
		case l.TLS != nil && (l.TLS.CertFile == "" || l.TLS.KeyFile == ""):
			v.errorf(at+".tls", "certFile and keyFile are both needed")
		}
		if l.TLS != nil {
			v.clientCAs(at+".tls.clientCAs", l.TLS.ClientCAs)
		}
		if l.AllowAnonymous && l.verifies() {
			v.errorf(at+".allowAnonymous", "clients of this listener must show a certificate: leave this out, or leave out %s", l.clientCAs())
		}
		v.errorIf(l.AllowAnyIdentity && !l.verifies(), at+".allowAnyIdentity", "no client of this listener shows a certificate: set tls.clientCAFile or tls.clientCAs, or leave this out")
		if field, text := l.exposure(c.Views); text != "" {
			v.errorf(join(at, field), "%s", text)
		}
	}
}

// clientCAs checks that each trust domain is one, and has one file.
func (v *validator) clientCAs(at string, all []ClientCA) {
	v.errorIf(all != nil && len(all) == 0, at, "is empty: leave it out, or name at least one trust domain")
	for i, ca := range all {
		here := fmt.Sprintf("%s[%d]", at, i)
		if err := identity.CheckTrustDomain(ca.TrustDomain); err != nil {
			v.errorf(here+".trustDomain", "%q is not a trust domain: %v", ca.TrustDomain, err)
		}
		v.errorIf(ca.File == "", here+".file", "missing: name a file with the roots of %s", ca.TrustDomain)
		if n := slices.IndexFunc(all[:i], func(o ClientCA) bool { return o.TrustDomain == ca.TrustDomain }); n >= 0 {
			v.errorf(here+".trustDomain", "%q has roots in clientCAs[%d] already: put all of them into one file", ca.TrustDomain, n)
		}
	}
}

// identities checks patterns for the certificates of clients: each matches something that a
// listener can verify.
func (v *validator) identities(at string, patterns []string, listeners []Listener) {
	verifying := slices.DeleteFunc(slices.Clone(listeners), func(l Listener) bool { return !l.verifies() })
	for i, text := range patterns {
		field := fmt.Sprintf("%s[%d]", at, i)
		p, err := identity.Parse(text)
		if err != nil {
			v.errorf(field, "%v", err)
			continue
		}
		vouched := slices.ContainsFunc(verifying, func(l Listener) bool {
			return l.TLS.ClientCAFile != "" || slices.ContainsFunc(l.TLS.ClientCAs, func(ca ClientCA) bool { return p.MatchesTrustDomain(ca.TrustDomain) })
		})
		switch {
		case vouched || len(verifying) == 0:
		case p.IsDNS():
			v.errorf(field, "%q matches nothing, as tls.clientCAs vouch for SPIFFE IDs only: write a SPIFFE ID, or set tls.clientCAFile of a listener", text)
		default:
			v.errorf(field, "%q matches nothing, as no listener has client CAs for its trust domain: add it to tls.clientCAs", text)
		}
	}
}
