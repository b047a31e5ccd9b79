package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"meshrelay/internal/certfile"
	"meshrelay/internal/smallfile"
	"meshrelay/internal/yamlpos"
)

// maxFileBytes limits the size of the config file.
const maxFileBytes = 1 << 20

// Load reads and checks a config file. Relative paths in it are relative to its directory. Each
// upstream has a section of the type of one of sources. Load does not use their values.
func Load(path string, sources ...Source) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, sources...)
}

// read returns the content of a config file.
func read(path string) ([]byte, error) {
	data, err := smallfile.Read(path, maxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err) // err names the path
	}
	return data, nil
}

// Parse checks the content of a config file. name is its path, for errors and for relative
// paths. Parse returns all mistakes at once, as a *multierror.Error whose parts begin with file
// and line.
func Parse(name string, data []byte, sources ...Source) (*Config, error) {
	return newValidator(name, sources).parse(data)
}

func (v *validator) parse(data []byte) (*Config, error) {
	body := v.document(data)
	if body == nil {
		return nil, v.err()
	}
	c := &Config{}
	d := decoder{validator: v, anchors: map[string]ast.Node{}}
	if !d.decode("", body, reflect.ValueOf(c).Elem(), 0) {
		return nil, v.err()
	}
	v.complete(c)
	c.resolve(filepath.Dir(v.name)) // before v.config, which checks the lengths of absolute paths
	v.config(c)
	if err := v.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// document returns the only document of the file, or nil after a mistake.
func (v *validator) document(data []byte) ast.Node {
	bodies, err := yamlpos.Parse(data)
	switch syntax, is := errors.AsType[*yamlpos.SyntaxError](err); {
	case is:
		v.note("", syntax.Line)
		v.errorf("", "%s", syntax.Msg)
		return nil
	case err != nil:
		v.errorf("", "the file %v", err)
		return nil
	case len(bodies) == 0:
		v.errorf("", "the file is empty: write at least upstreams and downstream, see docs/configuration.md")
		return nil
	case len(bodies) > 1:
		v.note("", yamlpos.Line(bodies[1]))
		v.errorf("", "a second YAML document begins: remove it, as the config must be one document")
		return nil
	}
	return bodies[0]
}

// complete sets the defaults that are not in tags.
func (v *validator) complete(c *Config) {
	def := func(s *string, values ...string) { *s = cmp.Or(append([]string{*s}, values...)...) }
	host, err := os.Hostname()
	if err != nil {
		host = "relay"
	}
	def(&c.Node.ID, host)
	def(&c.Node.Namespace, os.Getenv("POD_NAMESPACE"), "istio-system")
	def(&c.Node.IP, os.Getenv("INSTANCE_IP"), os.Getenv("POD_IP"), hostIP(), "127.0.0.1")
	def(&c.Provenance.Relay, c.Node.ID)
	for i := range c.Downstream.Listeners {
		l := &c.Downstream.Listeners[i]
		if onLoopback(l.Address) {
			def(&l.Debug, DebugLoopback)
		}
		def(&l.Debug, DebugVerified)
	}
	for i := range c.Upstreams {
		u := &c.Upstreams[i]
		def(&u.ClusterID, u.Name)
		v.completeUpstream(u)
	}
	for i := range c.Clusters {
		v.template(fmt.Sprintf("clusters[%d].upstream", i), &c.Clusters[i])
	}
}

// completeUpstream sets the defaults of an upstream that are not in tags.
func (v *validator) completeUpstream(u *Upstream) {
	if u.relayed() && u.Generated == GeneratedKeep {
		u.Services.Mode = cmp.Or(u.Services.Mode, ServicesAsIs)
	}
	u.Services.Mode = cmp.Or(u.Services.Mode, ServicesOmit)
	if u.Rewrite.Annotations.Remove == nil {
		u.Rewrite.Annotations.Remove = []string{lastApplied}
	}
	if u.Guard.Percent == 100 {
		u.Guard.Empty = cmp.Or(u.Guard.Empty, EmptyPass)
	}
	u.Guard.Empty = cmp.Or(u.Guard.Empty, EmptyHold)
}

// lastApplied is the annotation in which kubectl apply keeps a copy of the whole object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

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

// resolve makes relative paths absolute, from the directory of the file.
func (c *Config) resolve(dir string) {
	eachField("", reflect.ValueOf(c), func(_ string, field reflect.StructField, value reflect.Value) {
		if _, isPath := field.Tag.Lookup("path"); isPath && value.Len() > 0 && !filepath.IsAbs(value.String()) {
			value.SetString(filepath.Join(dir, value.String()))
		}
	})
}

// Check loads a config file as Load does, opens every file that the config names, and reads the
// certificates and keys. If some file is not usable, Check returns the config and a
// *multierror.Error whose parts begin with file and line.
func Check(path string, sources ...Source) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	v := newValidator(path, sources)
	c, err := v.parse(data)
	if err != nil {
		return nil, err
	}
	var certificate string // path in the field before a key
	eachField("", reflect.ValueOf(c), func(path string, field reflect.StructField, value reflect.Value) {
		kind, isPath := field.Tag.Lookup("path")
		if !isPath || kind == "own" || value.Len() == 0 {
			return
		}
		file := value.String()
		if err := readable(file, kind != "file"); err != nil {
			v.errorf(path, "%v", err)
			certificate = "" // its key is not checked
			return
		}
		switch field.Tag.Get("pem") {
		case "roots":
			_, err := certfile.Roots(file)
			v.errorOf(path, err)
		case "certificate":
			certificate = file
		case "key":
			v.pair(path, certificate, file)
		}
	})
	v.kubeconfigs(c)
	return c, v.err()
}

// kubeconfigs reads the kubeconfigs, and the files that they name.
func (v *validator) kubeconfigs(c *Config) {
	i := slices.IndexFunc(v.sources, func(s Source) bool { _, is := s.(Connector); return is })
	eachField("", reflect.ValueOf(c), func(path string, _ reflect.StructField, value reflect.Value) {
		if cluster, is := value.Interface().(Cluster); i >= 0 && is && cluster.Kubeconfig != "" {
			v.errorOf(path+".kubeconfig", v.sources[i].(Connector).CheckCluster(cluster))
		}
	})
}

// pair reports a mistake in a certificate or its key, in the field that has the mistake.
func (v *validator) pair(keyField, certFile, keyFile string) {
	if certFile == "" {
		return // reported
	}
	_, err := certfile.Pair(certFile, keyFile)
	at := keyField
	if err != nil && !errors.As(err, new(*certfile.KeyError)) {
		at = strings.TrimSuffix(keyField, "keyFile") + "certFile"
	}
	v.errorOf(at, err)
}

func readable(path string, mayBeDir bool) error {
	// Opening a named pipe would block until it has a writer, so check the mode first.
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && (!mayBeDir || !info.IsDir()) {
		return fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}
