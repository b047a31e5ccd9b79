package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Listener is one address to serve on, in plaintext or with TLS.
type Listener struct {
	Address string `yaml:"address"`
	// Plaintext goes without TLS. Off loopback it also needs AllowInsecure.
	Plaintext     bool `yaml:"plaintext"`
	AllowInsecure bool `yaml:"allowInsecure"`
	// AllowAnonymous lets clients without a certificate use TLS without a client CA.
	AllowAnonymous bool `yaml:"allowAnonymous"`
	// AllowAnyIdentity lets every certificate of the client CA see what views without
	// identities show.
	AllowAnyIdentity bool         `yaml:"allowAnyIdentity"`
	TLS              *ListenerTLS `yaml:"tls,omitempty"`
	// View names the view of all clients of the listener.
	View string `yaml:"view,omitempty"`
	// Debug is off, loopback or verified: who is answered istioctl's debug types. Default:
	// loopback on a loopback address, else verified.
	Debug string `yaml:"debug"`
}

// Values of Listener.Debug.
const (
	DebugOff      = "off"
	DebugLoopback = "loopback"
	DebugVerified = "verified"
)

// ListenerTLS are the files of a TLS listener. They are read again when they change.
type ListenerTLS struct {
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// ClientCAFile, when set, makes a client certificate mandatory.
	ClientCAFile string `yaml:"clientCAFile"`
}

// verifies reports whether clients of the listener show a certificate.
func (l Listener) verifies() bool { return l.TLS != nil && l.TLS.ClientCAFile != "" }

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
			return "view", fmt.Sprintf("the view %q is for identities, and this listener can not verify any: set tls.clientCAFile, or name a view without match.identities", l.View)
		}
		views = views[i : i+1]
	}
	switch {
	case l.verifies() && !l.AllowAnyIdentity && !identified(views, l.View):
		return "tls.clientCAFile", "whoever has a certificate of these roots can read what is served here: give every view match.identities and none default: true, or set allowAnyIdentity: true"
	case l.TLS != nil && !l.verifies() && !l.AllowAnonymous:
		return "tls", "anybody who reaches this listener can read all configs, as clients need no certificate: set tls.clientCAFile, or allowAnonymous: true"
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
			if collide(l.Address, other.Address) {
				v.errorf(at+".address", "%q is the address of listeners[%d] (%q) already", l.Address, n, other.Address)
			}
		}
		v.oneOf(at+".debug", l.Debug, DebugOff, DebugLoopback, DebugVerified)
		switch {
		case l.Plaintext && l.TLS != nil:
			v.errorf(at+".plaintext", "both plaintext and tls: leave out one")
			continue
		case !l.Plaintext && l.TLS == nil && !v.reported(at+".plaintext"):
			v.errorf(at+".tls", "neither tls nor plaintext: set tls, or plaintext: true to go without")
		case l.Plaintext && !l.AllowInsecure && !loopback(l.Address):
			v.errorf(at+".address", "plaintext on %q, which is not a loopback address, needs allowInsecure: true: anybody who reaches it can read all configs", l.Address)
		case l.TLS != nil && (l.TLS.CertFile == "" || l.TLS.KeyFile == ""):
			v.errorf(at+".tls", "certFile and keyFile are both needed")
		}
		if l.AllowAnonymous && l.verifies() {
			v.errorf(at+".allowAnonymous", "clients of this listener must show a certificate: leave this out, or leave out tls.clientCAFile")
		}
		if l.AllowAnyIdentity && !l.verifies() {
			v.errorf(at+".allowAnyIdentity", "no client of this listener shows a certificate: set tls.clientCAFile, or leave this out")
		}
		if field, text := l.exposure(c.Views); text != "" {
			v.errorf(join(at, field), "%s", text)
		}
	}
}
