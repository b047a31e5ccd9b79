package config

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/hashicorp/go-multierror"

	"meshrelay/mirror"
)

var nameShape = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// validator collects what is wrong with a config.
type validator struct {
	name string
	file *ast.File
	errs *multierror.Error
}

// errorf reports a mistake in a field, with the line that it, or what encloses it,
// stands on.
func (v *validator) errorf(field, format string, args ...any) {
	v.errs = multierror.Append(v.errs, fmt.Errorf("%s:%d: %s: %s", v.name, v.line(field), field, fmt.Sprintf(format, args...)))
}

func (v *validator) line(field string) int {
	for field != "" {
		if p, err := yaml.PathString(yamlPath(field)); err == nil {
			if n, err := p.FilterFile(v.file); err == nil && n != nil {
				return n.GetToken().Position.Line
			}
		}
		i := strings.LastIndexAny(field, ".[")
		if i < 0 {
			break
		}
		field = field[:i]
	}
	return 1
}

func (v *validator) config(c *Config) {
	if net.ParseIP(c.Node.IP) == nil {
		v.errorf("node.ip", "%q is not an IP address", c.Node.IP)
	}
	if !nameShape.MatchString(c.Node.Namespace) {
		v.errorf("node.namespace", "%q is not a namespace", c.Node.Namespace)
	}
	if strings.Contains(c.Node.ID, "~") || len(c.Node.ID) > 253 {
		v.errorf("node.id", "%q: at most 253 characters, and no ~", c.Node.ID)
	}
	if len(c.Upstreams) == 0 {
		v.errorf("upstreams", "there must be at least one")
	}
	first := map[string]int{}
	for i, u := range c.Upstreams {
		at := fmt.Sprintf("upstreams[%d]", i)
		v.upstream(at, u)
		if n, taken := first[u.Name]; taken && u.Name != "" {
			v.errorf(at+".name", "%q is the name of upstreams[%d] already: names must differ", u.Name, n)
		} else {
			first[u.Name] = i
		}
	}
	v.downstream(c.Downstream)
	v.duration("push.debounceAfter", c.Push.DebounceAfter, time.Millisecond, time.Minute)
	v.duration("push.debounceMax", c.Push.DebounceMax, time.Millisecond, 10*time.Minute)
	if c.Push.DebounceMax < c.Push.DebounceAfter {
		v.errorf("push.debounceMax", "%v is less than debounceAfter, which is %v", c.Push.DebounceMax.D(), c.Push.DebounceAfter.D())
	}
	v.address("admin.address", c.Admin.Address)
	if !c.Admin.AllowInsecure && !loopback(c.Admin.Address) {
		v.errorf("admin.address", "%q is not a loopback address: listen on 127.0.0.1, or set admin.allowInsecure: true", c.Admin.Address)
	}
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "text", "json")
}

func (v *validator) upstream(at string, u Upstream) {
	if !nameShape.MatchString(u.Name) {
		v.errorf(at+".name", "%q: 1 to 63 lower-case letters, digits and dashes, neither first nor last a dash", u.Name)
	}
	v.oneOf(at+".generated", u.Generated, GeneratedDrop, GeneratedKeep)
	switch {
	case (u.XDS == nil) == (u.File == nil):
		v.errorf(at, "upstream %q needs exactly one of xds and file", u.Name)
	case u.XDS != nil:
		v.xds(at+".xds", *u.XDS)
	case u.File.Path == "":
		v.errorf(at+".file.path", "missing: name a file or a directory")
	}
}

func (v *validator) xds(at string, x XDS) {
	if len(x.Addresses) == 0 {
		v.errorf(at+".addresses", "missing: give at least one host:port")
	}
	for i, a := range x.Addresses {
		v.address(fmt.Sprintf("%s.addresses[%d]", at, i), a)
	}
	v.oneOf(at+".protocol", x.Protocol, ProtocolAuto, ProtocolSotW, ProtocolDelta)
	v.duration(at+".resyncInterval", x.ResyncInterval, time.Second, 24*time.Hour)
	for i, t := range x.Types {
		if _, _, err := mirror.ParseTypeURL(t); err != nil {
			v.errorf(fmt.Sprintf("%s.types[%d]", at, i), "%v", err)
		}
	}
	switch {
	case x.Plaintext && x.TLS != nil:
		v.errorf(at+".plaintext", "both plaintext and tls: leave out one")
	case !x.Plaintext && x.TLS == nil:
		v.errorf(at, "neither tls nor plaintext: set tls, or plaintext: true to go without")
	case x.Plaintext && x.TokenFile != "":
		v.errorf(at+".tokenFile", "a token is not sent over plaintext, where anybody can read it: set tls")
	}
	if t := x.TLS; t != nil && (t.CertFile == "") != (t.KeyFile == "") {
		v.errorf(at+".tls", "certFile and keyFile go together")
	}
}

func (v *validator) downstream(d Downstream) {
	if len(d.Listeners) == 0 {
		v.errorf("downstream.listeners", "there must be at least one")
	}
	first := map[string]int{}
	for i, l := range d.Listeners {
		at := fmt.Sprintf("downstream.listeners[%d]", i)
		v.address(at+".address", l.Address)
		if n, taken := first[l.Address]; taken && !strings.HasSuffix(l.Address, ":0") {
			v.errorf(at+".address", "%q is the address of listeners[%d] already", l.Address, n)
		} else {
			first[l.Address] = i
		}
		switch {
		case l.Plaintext == (l.TLS != nil):
			v.errorf(at, "needs exactly one of tls and plaintext: true")
		case l.Plaintext && !l.AllowInsecure && !loopback(l.Address):
			v.errorf(at+".address", "plaintext on %q, which is not a loopback address, needs allowInsecure: true", l.Address)
		case l.TLS != nil && (l.TLS.CertFile == "" || l.TLS.KeyFile == ""):
			v.errorf(at+".tls", "certFile and keyFile are needed")
		}
	}
	v.duration("downstream.startupTimeout", d.StartupTimeout, time.Millisecond, 24*time.Hour)
	v.duration("downstream.maxConnectionAge", d.MaxConnectionAge, time.Second, 30*24*time.Hour)
	v.duration("downstream.maxConnectionAgeGrace", d.MaxConnectionAgeGrace, time.Second, time.Hour)
	v.duration("downstream.drainTimeout", d.DrainTimeout, 100*time.Millisecond, time.Hour)
	v.duration("downstream.sendTimeout", d.SendTimeout, time.Second, 24*time.Hour)
	v.number("downstream.maxStreamsPerConnection", d.MaxStreamsPerConnection, 1, 100000)
	v.number("downstream.maxRequestBytes", d.MaxRequestBytes, 64<<10, 1<<30)
	v.number("downstream.maxHeaderBytes", d.MaxHeaderBytes, 4<<10, 16<<20)
	v.number("downstream.maxTypesPerClient", d.MaxTypesPerClient, 1, 10000)
}

func (v *validator) address(field, a string) {
	host, port, err := net.SplitHostPort(a)
	if err != nil {
		v.errorf(field, "%q is not host:port", a)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		v.errorf(field, "%q: the port must be a number from 0 to 65535", a)
	}
	if host == "" && strings.Contains(field, "xds") {
		v.errorf(field, "%q has no host", a)
	}
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true // said elsewhere
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

func (v *validator) duration(field string, d Duration, least, most time.Duration) {
	if d.D() < least || d.D() > most {
		v.errorf(field, "%v is out of range: %v to %v", d.D(), least, most)
	}
}

func (v *validator) number(field string, n, least, most int) {
	if n < least || n > most {
		v.errorf(field, "%d is out of range: %d to %d", n, least, most)
	}
}

func (v *validator) oneOf(field, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.errorf(field, "%q: want one of %s", value, strings.Join(allowed, ", "))
	}
}
