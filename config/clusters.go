package config

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"meshrelay/federation/filter"
	"meshrelay/internal/servers"
	"meshrelay/internal/text"
)

// Clusters finds upstreams: the API servers of clusters that come and go by themselves.
type Clusters struct {
	// Name is unique among Config.Clusters.
	Name string `yaml:"name"`
	// Secrets is the place where the relay finds the clusters.
	Secrets *ClusterSecrets `yaml:"secrets,omitempty"`
	// Ignore lists IDs of clusters that are not followed.
	Ignore []string `yaml:"ignore,omitempty"`
	// AllowServers lists the networks, addresses and patterns of DNS names of the servers that the
	// kubeconfigs may name.
	AllowServers []string `yaml:"allowServers,omitempty"`
	// AllowExec lists the programs that the kubeconfigs may run.
	AllowExec   []Program `yaml:"allowExec,omitempty"`
	RemoveAfter OpenEnded `yaml:"removeAfter" default:"24h" range:"1m 8760h" endless:"never"`
	// Upstream is a template. It has no name, no clusterID and no connection.
	Upstream Upstream `yaml:"upstream"`
}

// Program is a program with its arguments, and with variables in addition to those of the relay. Its
// short form in the file is the command alone.
type Program struct {
	Command string            `yaml:"command"` // as in the kubeconfigs
	Args    []string          `yaml:"args,omitempty"`
	Env     map[string]string `yaml:"env,omitempty"`
}

// ClusterSecrets selects Secrets of a hub. Each key is a cluster's ID, and its value a kubeconfig.
type ClusterSecrets struct {
	Cluster   Cluster `yaml:"cluster"` // the hub
	Namespace string  `yaml:"namespace" default:"istio-system"`
	Selector  string  `yaml:"selector" default:"istio/multiCluster=true"`
}

// hidden replaces a text that may be a secret.
const hidden = "[hidden]"

// Shown returns the config as YAML without secrets: it hides the arguments and environments of
// programs.
func (c *Config) Shown() ([]byte, error) {
	shown := *c
	shown.Clusters = slices.Clone(c.Clusters)
	for i := range shown.Clusters {
		part := &shown.Clusters[i]
		part.AllowExec = slices.Clone(part.AllowExec)
		for k := range part.AllowExec {
			p := &part.AllowExec[k]
			p.Args, p.Env = slices.Repeat([]string{hidden}, len(p.Args)), maps.Clone(p.Env)
			for name := range p.Env {
				p.Env[name] = hidden
			}
		}
	}
	return shown.YAML()
}

// Template is a Source that found clusters can have. The relay adds the connection to the section.
type Template interface {
	Source
	// CheckTemplate reports mistakes in the section of a template, which has no connection.
	CheckTemplate(c Checker, template Upstream)
}

// ClusterPlaceholder stands for the cluster's ID in clusters[].upstream.rewrite.
const ClusterPlaceholder = "{cluster}"

// For returns the upstream of a found cluster, or an error if the template does not fit the cluster.
func (c Clusters) For(name, id string, source Source) (Upstream, error) {
	u := c.Upstream
	u.Name, u.ClusterID, u.Source = name, id, source
	u.Rewrite = substitute(reflect.ValueOf(u.Rewrite), id).Interface().(Rewrite) // the type stays
	v := newValidator("", []Source{source})
	v.label("name", u.Name)
	v.id("clusterID", u.ClusterID)
	v.federation("", u)
	if len(v.mistakes) > 0 {
		m := v.mistakes[0]
		return u, fmt.Errorf("%s: %s", strings.TrimPrefix(m.field, "."), m.text)
	}
	return u, nil
}

// substitute returns a copy of v in which id replaces ClusterPlaceholder.
func substitute(v reflect.Value, id string) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.String:
		out.SetString(strings.ReplaceAll(v.String(), ClusterPlaceholder, id))
	case reflect.Struct:
		for i := range v.NumField() {
			out.Field(i).Set(substitute(v.Field(i), id))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(substitute(v.Elem(), id))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(substitute(v.Index(i), id))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
			for _, key := range v.MapKeys() {
				out.SetMapIndex(substitute(key, id), substitute(v.MapIndex(key), id))
			}
		}
	default:
		out.Set(v)
	}
	return out
}

// template sets those defaults of a template that are not in tags.
func (v *validator) template(at string, c *Clusters) {
	u := &c.Upstream
	if u.Source == nil && len(v.given(at)) == 0 {
		i := slices.IndexFunc(v.sources, func(s Source) bool { _, is := s.(Template); return is })
		if i < 0 {
			v.errorf(at, "this program has no kind of upstream for found clusters")
			return
		}
		section := reflect.New(reflect.TypeOf(v.sources[i]).Elem())
		setDefaults(section.Elem())
		u.Source = section.Interface().(Source) // it is of that type
	}
	if u.FirstSync != FirstSyncOptional {
		v.errorIf(v.noted(at+".firstSync"), at+".firstSync", "%q: clients never wait for found clusters: leave it out", u.FirstSync)
		u.FirstSync = FirstSyncOptional
	}
	v.completeUpstream(u)
	u.Import.Profile = cmp.Or(u.Import.Profile, filter.ProfileServices)
}

func (v *validator) clusters(c *Config) {
	for i, one := range c.Clusters {
		at := fmt.Sprintf("clusters[%d]", i)
		v.label(at+".name", one.Name)
		if n := slices.IndexFunc(c.Clusters[:i], func(o Clusters) bool { return o.Name == one.Name }); n >= 0 {
			v.errorf(at+".name", "%q is the name of clusters[%d] already: names must differ", one.Name, n)
		}
		v.errorIf(one.Secrets == nil, at+".secrets", "missing: name the hub whose secrets have the kubeconfigs of the clusters")
		if s := one.Secrets; s != nil {
			v.cluster(at+".secrets.cluster", s.Cluster)
			v.namespace(at+".secrets.namespace", s.Namespace)
			v.selector(at+".secrets.selector", s.Selector)
		}
		for j, program := range one.AllowExec {
			field := fmt.Sprintf("%s.allowExec[%d]", at, j)
			v.errorIf(program.Command == "", field, "no command: write it as in the kubeconfigs")
			if n := slices.IndexFunc(one.AllowExec[:j], func(o Program) bool { return o.Command == program.Command && slices.Equal(o.Args, program.Args) }); n >= 0 {
				v.errorf(field, "the same command and arguments as in allowExec[%d]: leave out one", n)
			}
		}
		for j, server := range one.AllowServers {
			_, err := servers.Parse([]string{server})
			v.errorOf(fmt.Sprintf("%s.allowServers[%d]", at, j), err)
		}
		for j, id := range one.Ignore {
			v.errorIf(!idShape.MatchString(id), fmt.Sprintf("%s.ignore[%d]", at, j), "%q is not the ID of a cluster: write 1 to 253 letters, digits, dots, dashes and underscores", id)
		}
		v.clusterTemplate(at+".upstream", one)
	}
}

func (v *validator) clusterTemplate(at string, c Clusters) {
	u := c.Upstream
	v.errorIf(u.Name != "", at+".name", "a found cluster is named after its ID: leave it out")
	v.errorIf(u.ClusterID != "", at+".clusterID", "a found cluster has an ID: leave it out")
	v.errorIf(u.Required, at+".required", "clients never wait for found clusters: leave it out")
	v.errorIf(u.Services.Mode == ServicesGateway, at+".services.mode", "%q needs the gateways of each cluster, and a found cluster tells of none: choose omit or discover", u.Services.Mode)
	v.staleness(at+".staleness", u.Staleness)
	given := v.given(at)
	if len(given) > 1 {
		v.errorf(at, "has more than one of %s: leave out all but one", strings.Join(given, ", "))
		return
	}
	template, is := u.Source.(Template)
	if u.Source == nil || !is {
		v.errorIf(len(given) == 1, strings.Join(append([]string{at}, given...), "."), "found clusters are API servers: leave it out")
		return
	}
	template.CheckTemplate(Checker{v, join(at, template.Kind())}, u)
	example, id := u, "example"
	example.Rewrite = substitute(reflect.ValueOf(u.Rewrite), id).Interface().(Rewrite) // the type stays
	v.federation(at, example)
}

// Warnings returns one line for each setting that is valid but probably a mistake.
func (c *Config) Warnings() (lines []string) {
	for i, u := range c.Upstreams {
		for _, o := range c.Upstreams[:i] {
			if u.ClusterID == o.ClusterID && u.ofCluster() && o.ofCluster() && u.relayed() != o.relayed() {
				lines = append(lines, fmt.Sprintf("upstreams %s (%s) and %s (%s) read the same cluster, %s: each resource comes twice, and the copies of %s are shadowed: leave out one upstream, or give them different import.kinds",
					o.Name, o.Source.Kind(), u.Name, u.Source.Kind(), u.ClusterID, u.Name))
			}
		}
	}
	for i, c := range c.Clusters {
		if len(c.AllowExec) > 0 && len(c.AllowServers) == 0 {
			lines = append(lines, fmt.Sprintf("clusters %s: no cluster whose credentials a program gives is followed, because clusters[%d].allowServers is missing: list the servers that may get those credentials", c.Name, i))
		}
	}
	if line := c.Unlimited(); line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Unlimited names the upstreams that let everything in because nothing says otherwise. It is empty if there are none.
func (c *Config) Unlimited() string {
	var open []string
	for _, u := range c.Upstreams {
		if u.Import.Profile == "" && !u.Import.LimitsContent() {
			open = append(open, u.Name)
		}
	}
	if len(open) == 0 {
		return ""
	}
	return fmt.Sprintf("import.profile is not set for upstream %s, and everything is let in, also what affects every mesh behind this relay: set services, routing or all", text.Some(open, 5))
}

// OfAPIServer reports whether an upstream is the API server of a cluster.
func (u Upstream) OfAPIServer() bool { return u.ofCluster() && !u.relayed() }
