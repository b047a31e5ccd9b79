package clusters

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/fswatch"
	"meshrelay/internal/smallfile"
	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/clusters/registry"
	"meshrelay/upstreams/kubernetes/hub"
	"meshrelay/upstreams/kubernetes/object"
)

// reader reads the entries of one part of the config.
type reader interface {
	// follow calls tell with all entries, or with an error, now and after each change, until ctx ends.
	follow(ctx context.Context, tell func([]registry.Entry, error))
	// list returns all entries.
	list(ctx context.Context) ([]registry.Entry, error)
	// probe returns all entries and findings about reading them. ok is false if they can not be read.
	probe(ctx context.Context) ([]registry.Entry, []doctor.Finding, bool)
	// close closes connections and watches.
	close()
}

// readerOf returns the reader of a part of the config.
func readerOf(c config.Clusters, pace hub.Pace) reader {
	purpose := "clusters " + c.Name
	switch {
	case c.Secrets != nil:
		s := c.Secrets
		return &hubReader{
			hub:     hub.New(&apiserver.Credentials{Kubeconfig: s.Kubeconfig, Context: s.Context, InCluster: s.InCluster, AllowExec: s.AllowExec}, purpose, pace),
			of:      hub.Collection{Paths: []string{"/api/v1/namespaces/" + s.Namespace + "/secrets"}, Selector: s.Selector},
			entries: secretEntries, checker: &checker{trust: TrustOf(c)},
		}
	case c.Profiles != nil:
		p := c.Profiles
		var paths []string
		for _, version := range profileVersions {
			paths = append(paths, "/apis/multicluster.x-k8s.io/"+version+"/namespaces/"+p.Namespace+"/clusterprofiles")
		}
		return &hubReader{
			hub: hub.New(&apiserver.Credentials{Kubeconfig: p.Kubeconfig, Context: p.Context, InCluster: p.InCluster, AllowExec: p.AllowExec}, purpose, pace),
			of:  hub.Collection{Paths: paths, Selector: p.Selector},
			entries: func(o *object.Object) []registry.Entry {
				return []registry.Entry{profileEntry(o, p.AccessProviders)}
			},
			checker: &checker{trust: TrustOf(c)},
		}
	default:
		return &directory{path: c.Directory.Path, checker: &checker{trust: TrustOf(c)}}
	}
}

// TrustOf returns what the kubeconfigs of a part may use.
func TrustOf(c config.Clusters) apiserver.Trust {
	t := apiserver.Trust{OwnPrograms: c.Profiles != nil, AllowProxy: c.AllowProxy, AllowServers: c.AllowServers}
	if c.Profiles != nil {
		for _, p := range c.Profiles.AccessProviders {
			t.AllowExec = append(t.AllowExec, apiserver.Program{Command: p.Exec.Command})
		}
		return t
	}
	for _, p := range c.AllowExec {
		t.AllowExec = append(t.AllowExec, apiserver.Program(p))
	}
	return t
}

// checker checks kubeconfigs, each content once.
type checker struct {
	trust apiserver.Trust
	known map[[sha256.Size]byte]string // the problems of the last entries, empty for a good kubeconfig
}

// check sets Problem of entries with a bad kubeconfig, and shortens their texts.
func (c *checker) check(entries []registry.Entry) []registry.Entry {
	next := map[[sha256.Size]byte]string{}
	for i := range entries {
		e := &entries[i]
		e.Note = text.Abbreviate(e.Note)
		if e.Problem != "" {
			e.Problem = text.Abbreviate(e.Problem)
			continue
		}
		sum := sha256.Sum256(e.Kubeconfig)
		problem, known := c.known[sum]
		if !known {
			if err := apiserver.CheckKubeconfig(e.Kubeconfig, c.trust); err != nil {
				problem = text.Abbreviate(err.Error())
			}
		}
		if next[sum] = problem; problem != "" {
			e.Kubeconfig, e.Problem = nil, problem
		}
	}
	c.known = next
	return entries
}

// hubReader reads entries from objects of a hub.
type hubReader struct {
	*checker
	hub     *hub.Hub
	of      hub.Collection
	entries func(*object.Object) []registry.Entry
}

func (r *hubReader) close() { r.hub.Close() }

func (r *hubReader) follow(ctx context.Context, tell func([]registry.Entry, error)) {
	r.hub.Follow(ctx, r.of, func(objects []*object.Object, err error) {
		if err != nil {
			tell(nil, err)
			return
		}
		tell(r.all(objects), nil)
	})
}

func (r *hubReader) list(ctx context.Context) ([]registry.Entry, error) {
	objects, err := r.hub.List(ctx, r.of)
	return r.all(objects), err
}

func (r *hubReader) probe(ctx context.Context) ([]registry.Entry, []doctor.Finding, bool) {
	objects, found, ok := r.hub.Probe(ctx, r.of)
	return r.all(objects), found, ok
}

func (r *hubReader) all(objects []*object.Object) (all []registry.Entry) {
	for _, o := range objects {
		all = append(all, r.entries(o)...)
	}
	return r.check(all)
}

// maxKeys bounds the keys of a Secret: it has 1 MiB at most.
const maxKeys = 1_000

// priorityOf returns the priority of the clusters of an object.
func priorityOf(o *object.Object) (priority int, problem string) {
	text := o.Annotations[priorityAnnotation]
	if text == "" {
		return 0, ""
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Sprintf("the annotation %s is %.32q: it is no whole number, and counts as 0", priorityAnnotation, text)
	}
	return int(n), ""
}

// maxLabels bounds the labels of an object, in bytes: they are kept on disk for each cluster.
const maxLabels = 2 << 10

// labelsOf returns the labels of an object, by which import rules are chosen.
func labelsOf(o *object.Object) (labels map[string]string, problem string) {
	size := 0
	for key, value := range o.Labels {
		size += len(key) + len(value)
	}
	if size > maxLabels {
		return nil, fmt.Sprintf("its labels have %d bytes, and %d at most are read: remove labels", size, maxLabels)
	}
	return o.Labels, ""
}

// priorityAnnotation has the priority of clusters: those with smaller numbers come first. It is 0 without the
// annotation.
const priorityAnnotation = "meshrelay.io/priority"

// secretEntries returns the entries of a Secret. Each key is the ID of a cluster, and its value the
// kubeconfig.
func secretEntries(o *object.Object) (all []registry.Entry) {
	origin := "secret " + o.Namespace + "/" + o.Name
	var data map[string][]byte
	err := o.Err
	if err == nil && yamlpos.CheckJSON(o.Data, 1+maxKeys) != nil {
		err = fmt.Errorf("it has more than %d keys: keep kubeconfigs in several secrets", maxKeys)
	}
	if err == nil && len(o.Data) > 0 {
		err = json.Unmarshal(o.Data, &data)
	}
	if err != nil {
		return []registry.Entry{{Origin: origin, Problem: "the secret can not be read: " + err.Error()}}
	}
	priority, note := priorityOf(o)
	labels, problem := labelsOf(o)
	for _, id := range slices.Sorted(maps.Keys(data)) {
		all = append(all, registry.Entry{ID: id, Origin: origin, Kubeconfig: data[id], Priority: priority, Note: note, Labels: labels, Problem: problem})
	}
	return all
}

// profileVersions are the supported versions of ClusterProfile, the preferred one first.
var profileVersions = []string{"v1", "v1beta1", "v1alpha1"}

// profile is the status of a ClusterProfile. Earlier versions have credentialProviders instead of
// accessProviders.
type profile struct {
	Conditions []struct {
		Type    string `json:"type"`
		Status  string `json:"status"`
		Message string `json:"message"`
	} `json:"conditions"`
	AccessProviders     []provider `json:"accessProviders"`
	CredentialProviders []provider `json:"credentialProviders"`
}

type provider struct {
	Name    string         `json:"name"`
	Cluster profileCluster `json:"cluster"`
}

// profileCluster is the cluster in a kubeconfig.
type profileCluster struct {
	Server        string             `json:"server"`
	TLSServerName string             `json:"tls-server-name,omitempty"`
	Insecure      bool               `json:"insecure-skip-tls-verify,omitempty"`
	CA            string             `json:"certificate-authority,omitempty"`
	CAData        string             `json:"certificate-authority-data,omitempty"`
	ProxyURL      string             `json:"proxy-url,omitempty"`
	Extensions    []profileExtension `json:"extensions,omitempty"`
}

type profileExtension struct {
	Name      string          `json:"name"`
	Extension json.RawMessage `json:"extension"`
}

// execExtension is the extension with the data of a cluster for the program of a provider.
const execExtension = "client.authentication.k8s.io/exec"

// profileEntry returns the entry of a ClusterProfile. The address of the API server comes from the profile.
// The program for the credentials comes only from the config.
func profileEntry(o *object.Object, providers []config.AccessProvider) registry.Entry {
	e := registry.Entry{ID: o.Name, Origin: "profile " + o.Namespace + "/" + o.Name}
	var p profile
	if err := o.Err; err != nil {
		e.Problem = "the profile can not be read: " + err.Error()
		return e
	}
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &p); err != nil {
			e.Problem = "the status of the profile can not be read: " + err.Error()
			return e
		}
	}
	e.Priority, e.Note = priorityOf(o)
	if e.Labels, e.Problem = labelsOf(o); e.Problem != "" {
		return e
	}
	for _, c := range p.Conditions {
		if c.Type == "ControlPlaneHealthy" && c.Status == "False" {
			e.Note = strings.TrimPrefix(e.Note+"; its control plane is not healthy: "+c.Message, "; ")
			break // there is one of a type
		}
	}
	offered := append(p.AccessProviders, p.CredentialProviders...)
	for _, mine := range providers {
		i := slices.IndexFunc(offered, func(its provider) bool { return its.Name == mine.Name })
		if i >= 0 {
			e.Kubeconfig = kubeconfigOf(offered[i].Cluster, mine.Exec)
			return e
		}
	}
	names := make([]string, 0, len(offered))
	for _, its := range offered {
		names = append(names, its.Name)
	}
	slices.Sort(names)
	e.Problem = fmt.Sprintf("none of its access providers (%.200s) is in profiles.accessProviders", strings.Join(slices.Compact(names), ", "))
	return e
}

// kubeconfigOf returns a kubeconfig with a program for the credentials.
func kubeconfigOf(c profileCluster, exec config.ProviderExec) []byte {
	c.Extensions = slices.DeleteFunc(slices.Clone(c.Extensions), func(e profileExtension) bool { return e.Name != execExtension })
	type m = map[string]any
	env := []m{}
	for _, name := range slices.Sorted(maps.Keys(exec.Env)) {
		env = append(env, m{"name": name, "value": exec.Env[name]})
	}
	text, _ := json.Marshal(m{ // texts, and JSON that was decoded
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []m{{"name": "c", "cluster": c}},
		"users": []m{{"name": "c", "user": m{"exec": m{
			"apiVersion": exec.APIVersion, "command": exec.Command, "args": exec.Args, "env": env, "provideClusterInfo": true, "interactiveMode": "Never",
		}}}},
		"contexts": []m{{"name": "c", "context": m{"cluster": "c", "user": "c"}}},
	})
	return text
}

const (
	maxFiles     = 5_000    // in a directory
	maxDirectory = 64 << 20 // bytes of all files in a directory
)

// directory reads the kubeconfigs in a directory.
type directory struct {
	*checker
	path string
}

func (*directory) close() {}

func (d *directory) follow(ctx context.Context, tell func([]registry.Entry, error)) {
	files := fswatch.New(fswatch.Options{})
	defer files.Close()
	for soon := true; ; soon = false {
		if _, err := files.Wait(ctx, soon, nil); err != nil {
			return
		}
		_ = files.Watch(d.path, d.path) // on failure it polls
		tell(d.list(ctx))
	}
}

func (d *directory) probe(ctx context.Context) ([]registry.Entry, []doctor.Finding, bool) {
	all, err := d.list(ctx)
	if err != nil {
		return nil, []doctor.Finding{doctor.Bad("directory", d.path, "the directory can not be read", err.Error(),
			"create it, or correct clusters[].directory.path; the user of the relay needs rights to read and to enter it")}, false
	}
	return all, []doctor.Finding{doctor.Good("directory", d.path, "it can be read")}, true
}

func (d *directory) list(context.Context) (all []registry.Entry, err error) {
	dir, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	found, err := dir.ReadDir(maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(found) > maxFiles {
		return nil, fmt.Errorf("%s has more than %d files: name a directory that has only kubeconfigs", d.path, maxFiles)
	}
	size := 0
	for _, f := range found {
		path := filepath.Join(d.path, f.Name())
		if strings.HasPrefix(f.Name(), ".") { // files of editors, and the versions of a mounted Secret
			continue
		}
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			continue
		}
		e := registry.Entry{ID: idOf(f.Name()), Origin: "file " + path}
		if err == nil {
			e.Kubeconfig, err = smallfile.Read(path, apiserver.MaxKubeconfig)
		}
		if size += len(e.Kubeconfig); size > maxDirectory {
			return nil, fmt.Errorf("%s has more than %d MiB: name a directory that has only kubeconfigs", d.path, maxDirectory>>20)
		}
		if err != nil {
			e.Problem = err.Error()
		}
		all = append(all, e)
	}
	return d.check(all), nil
}

// idOf returns the cluster ID in the name of a file.
func idOf(name string) string {
	switch ext := filepath.Ext(name); ext {
	case ".yaml", ".yml", ".json", ".conf", ".config", ".kubeconfig":
		return strings.TrimSuffix(name, ext)
	}
	return name
}
