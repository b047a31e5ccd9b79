package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/hashicorp/go-multierror"
)

// maxFileBytes bounds the config file.
const maxFileBytes = 4 << 20

// Load reads and checks a config file. Relative paths in it are relative to its
// directory.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("config file %s: larger than %d bytes", path, maxFileBytes)
	}
	return Parse(path, data)
}

// Parse checks the content of a config file. name is where it comes from, for
// errors and for relative paths. All that is wrong with it is returned at once, as a
// *multierror.Error whose parts begin with file and line.
func Parse(name string, data []byte) (*Config, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, located(name, err)
	}
	docs := documents(file)
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: the file is empty: it needs at least upstreams and downstream", name)
	}
	if len(docs) > 1 {
		return nil, fmt.Errorf("%s:%d: a second YAML document: the config is one document", name, docs[1].GetToken().Position.Line)
	}
	c := defaults()
	dec := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := dec.Decode(c); err != nil {
		return nil, located(name, err)
	}
	c.complete()
	v := &validator{name: name, file: file}
	v.config(c)
	if err := v.errs.ErrorOrNil(); err != nil {
		return nil, err
	}
	c.resolve(filepath.Dir(name))
	return c, nil
}

func documents(file *ast.File) (bodies []ast.Node) {
	for _, d := range file.Docs {
		if d.Body != nil && d.Body.Type() != ast.NullType && d.Body.Type() != ast.CommentType {
			bodies = append(bodies, d.Body)
		}
	}
	return bodies
}

// located puts file, line and column in front of a YAML error.
func located(name string, err error) error {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil {
		p := e.GetToken().Position
		msg := e.GetMessage()
		var unknown *yaml.UnknownFieldError
		if errors.As(err, &unknown) {
			msg += ": check its spelling and indentation, or see docs/configuration.md"
		}
		err = fmt.Errorf("%s:%d:%d: %s", name, p.Line, p.Column, msg)
	} else {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return multierror.Append(nil, err)
}

func defaults() *Config {
	return &Config{
		Downstream: Downstream{
			StartupTimeout:          Duration(30 * time.Second),
			MaxConnectionAge:        Duration(30 * time.Minute),
			MaxConnectionAgeGrace:   Duration(10 * time.Second),
			DrainTimeout:            Duration(10 * time.Second),
			SendTimeout:             Duration(5 * time.Minute),
			MaxStreamsPerConnection: 100,
			MaxRequestBytes:         32 << 20,
			MaxHeaderBytes:          64 << 10,
			MaxTypesPerClient:       256,
		},
		Push:  Push{DebounceAfter: Duration(100 * time.Millisecond), DebounceMax: Duration(time.Second)},
		Admin: Admin{Address: "127.0.0.1:15014"},
		Log:   Log{Level: "info", Format: "text"},
	}
}

// complete fills in the defaults that depend on the host or on other fields.
func (c *Config) complete() {
	def := func(s *string, values ...string) {
		for _, v := range values {
			if *s != "" {
				return
			}
			*s = v
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "relay"
	}
	def(&c.Node.ID, host)
	def(&c.Node.Namespace, os.Getenv("POD_NAMESPACE"), "istio-system")
	def(&c.Node.IP, os.Getenv("INSTANCE_IP"), os.Getenv("POD_IP"), hostIP(), "127.0.0.1")
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		def(&u.ClusterID, u.Name)
		def(&u.Generated, GeneratedDrop)
		if u.XDS != nil {
			def(&u.XDS.Protocol, ProtocolAuto)
			if u.XDS.ResyncInterval == 0 {
				u.XDS.ResyncInterval = Duration(5 * time.Minute)
			}
		}
	}
}

func hostIP() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return ""
}

// paths calls f with every path in the config and the name of its field.
func (c *Config) paths(f func(field string, path *string)) {
	for i := range c.Upstreams {
		u, at := &c.Upstreams[i], fmt.Sprintf("upstreams[%d]", i)
		if u.File != nil {
			f(at+".file.path", &u.File.Path)
		}
		if u.XDS == nil {
			continue
		}
		f(at+".xds.tokenFile", &u.XDS.TokenFile)
		if t := u.XDS.TLS; t != nil {
			f(at+".xds.tls.caFile", &t.CAFile)
			f(at+".xds.tls.certFile", &t.CertFile)
			f(at+".xds.tls.keyFile", &t.KeyFile)
		}
	}
	for i := range c.Downstream.Listeners {
		if t := c.Downstream.Listeners[i].TLS; t != nil {
			at := fmt.Sprintf("downstream.listeners[%d].tls", i)
			f(at+".certFile", &t.CertFile)
			f(at+".keyFile", &t.KeyFile)
			f(at+".clientCAFile", &t.ClientCAFile)
		}
	}
}

func (c *Config) resolve(dir string) {
	c.paths(func(_ string, p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	})
}

// CheckFiles reports every file that the config names and that can not be read.
func (c *Config) CheckFiles() error {
	var errs *multierror.Error
	c.paths(func(field string, p *string) {
		if *p == "" {
			return
		}
		f, err := os.Open(*p)
		if err != nil {
			errs = multierror.Append(errs, fmt.Errorf("%s: %w", field, err))
			return
		}
		f.Close()
	})
	return errs.ErrorOrNil()
}

// yamlPath turns upstreams[0].xds into the YAML path of the field.
func yamlPath(field string) string { return "$." + strings.TrimPrefix(field, ".") }
