package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

// servedTypes are the types that an istiod asks another for, as it asks.
func servedTypes() []string {
	networking, security, telemetry := "networking.istio.io/v1alpha3/", "security.istio.io/v1beta1/", "telemetry.istio.io/v1alpha1/"
	if allNewest() {
		networking, security, telemetry = "networking.istio.io/v1/", "security.istio.io/v1/", "telemetry.istio.io/v1/"
	}
	return []string{
		networking + "DestinationRule", networking + "Gateway", networking + "ServiceEntry", networking + "Sidecar", networking + "VirtualService",
		networking + "WorkloadEntry", networking + "WorkloadGroup", "networking.istio.io/v1alpha3/EnvoyFilter", "networking.istio.io/v1beta1/ProxyConfig",
		security + "AuthorizationPolicy", security + "PeerAuthentication", security + "RequestAuthentication",
		telemetry + "Telemetry", "extensions.istio.io/v1alpha1/WasmPlugin",
	}
}

// defineIstio has an API server serve all kinds of Istio, as the definitions of the istiods' release have them.
func (k *kubernetes) defineIstio() {
	k.t.Helper()
	module := "."
	if allNewest() {
		module = "newest"
	}
	k.defineKinds(module)
}

// defineKinds does so as the definitions have them that the module in a directory has.
func (k *kubernetes) defineKinds(module string) {
	k.t.Helper()
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/api")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOWORK=off")
	dir, err := cmd.Output()
	if err != nil {
		k.t.Fatal(err)
	}
	all, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "kubernetes", "customresourcedefinitions.gen.yaml"))
	if err != nil {
		k.t.Fatal(err)
	}
	var paths []string
	for _, doc := range strings.Split(string(all), "\n---\n") {
		var d struct {
			Spec struct {
				Group    string                  `json:"group"`
				Names    struct{ Plural string } `json:"names"`
				Versions []struct{ Name string } `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
			k.t.Fatal(err)
		}
		if d.Spec.Group == "" {
			continue // a comment
		}
		k.apply(doc)
		for _, v := range d.Spec.Versions {
			paths = append(paths, "/apis/"+d.Spec.Group+"/"+v.Name+"/"+d.Spec.Names.Plural)
		}
	}
	for _, path := range paths { // once all are defined: a server takes a while for each
		eventually(k.t, path+" is served", func() error { return k.do(http.MethodGet, path, "", nil) })
	}
}

// newNativeIstiod returns an istiod, not yet started, that reads its configs and services from an
// API server, as in a cluster.
func newNativeIstiod(t *testing.T, k *kubernetes) *istiod {
	t.Helper()
	i := newIstiod(t, k.name)
	i.args = append(i.args, "--registries=Kubernetes", "--configDir=", "--kubeconfig", k.kubeconfig)
	return i
}

// put creates or changes an object of a set, in place of what it was.
func (k *kubernetes) put(m manifest) error {
	m.Metadata.CreationTimestamp = time.Now().UTC().Format(time.RFC3339) // the server gives it another
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	path := objectPath(m.APIVersion, m.Kind, m.Metadata.Namespace, m.Metadata.Name)
	return k.do(http.MethodPatch, path+"?fieldManager=e2e&force=true", "application/apply-patch+yaml", b)
}

// changing is a set of objects in an API server that change at random.
type changing struct {
	k    *kubernetes
	rand *rand.Rand
	have map[string]manifest
	pool []manifest // that may come, or whose content may
	next int
	seen map[string]int // how often each sort of change was accepted
}

// from returns a manifest whose name nobody else has.
func (c *changing) from(m manifest) manifest {
	c.next++
	m.Metadata.Name = fmt.Sprintf("%s-%d", m.Metadata.Name, c.next)
	m.Metadata.Annotations = maps.Clone(m.Metadata.Annotations)
	if m.Metadata.Annotations == nil {
		m.Metadata.Annotations = map[string]string{}
	}
	if c.rand.IntN(3) == 0 { // as kubectl does
		m.Metadata.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = string(m.Spec)
	}
	return m
}

// give has the API server take a manifest, and returns whether it does: Istio's definitions are
// stricter than an istiod.
func (c *changing) give(m manifest) (accepted bool, err error) {
	err = c.k.put(m)
	if refusedBySchema(err) {
		return false, nil
	}
	if err == nil {
		c.have[m.key()] = m
	}
	return err == nil, err
}

func refusedBySchema(err error) bool { return err != nil && strings.Contains(err.Error(), "422") }

func (c *changing) create() (accepted bool, err error) {
	return c.give(c.from(c.pool[c.rand.IntN(len(c.pool))]))
}

// revisionLabel tells which istiod an object is for: the one with oracleRevision, another one, or,
// without it, each.
const (
	revisionLabel  = "istio.io/rev"
	oracleRevision = "canary"
)

// served returns how many of the objects are for oracleRevision.
func (c *changing) served() (n int) {
	for _, m := range c.have {
		if revision, ok := m.Metadata.Labels[revisionLabel]; !ok || revision == oracleRevision {
			n++
		}
	}
	return n
}

// change makes one change, and returns whether there is one: the API server may refuse it, and what
// is drawn may be what is there.
func (c *changing) change() (accepted bool, err error) {
	keys := slices.Sorted(maps.Keys(c.have))
	was := c.have[keys[c.rand.IntN(len(keys))]]
	is := was
	is.Metadata.Labels, is.Metadata.Annotations = maps.Clone(was.Metadata.Labels), maps.Clone(was.Metadata.Annotations)
	if is.Metadata.Labels == nil {
		is.Metadata.Labels = map[string]string{}
	}
	what := "spec"
	switch c.rand.IntN(10) {
	case 0:
		what = "created"
		accepted, err = c.create()
	case 1:
		what = "deleted"
		delete(c.have, was.key())
		err = c.k.do(http.MethodDelete, objectPath(was.APIVersion, was.Kind, was.Metadata.Namespace, was.Metadata.Name), "", nil)
		accepted = err == nil
	case 2, 3: // which istiod it is for
		what = "revision"
		delete(is.Metadata.Labels, revisionLabel)
		if r := c.rand.IntN(3); r < 2 {
			is.Metadata.Labels[revisionLabel] = []string{oracleRevision, "stable"}[r]
		}
	case 4:
		what = "label"
		is.Metadata.Labels["flip"] = strconv.Itoa(c.rand.IntN(1000))
	case 5:
		what = "annotation"
		is.Metadata.Annotations["example.com/note"] = strconv.Itoa(c.rand.IntN(1000))
	default:
		var others []manifest
		for _, m := range c.pool {
			if m.Kind == was.Kind && m.APIVersion == was.APIVersion {
				others = append(others, m)
			}
		}
		is.Spec = others[c.rand.IntN(len(others))].Spec
	}
	if !maps.Equal(is.Metadata.Labels, was.Metadata.Labels) || !maps.Equal(is.Metadata.Annotations, was.Metadata.Annotations) || !bytes.Equal(is.Spec, was.Spec) {
		accepted, err = c.give(is)
	}
	if accepted {
		c.seen[what]++
	}
	return accepted, err
}

// times calls try until it was accepted n times, and done with the number each time.
func times(t *testing.T, what string, n int, try func() (accepted bool, err error), done func(n int)) {
	t.Helper()
	for accepted, tries := 0, 0; accepted < n; tries++ {
		if tries > 10*n {
			t.Fatalf("%d of %d %s were accepted in %d tries", accepted, n, what, tries)
		}
		is, err := try()
		if err != nil {
			t.Fatal(err)
		}
		if is {
			accepted++
			done(accepted)
		}
	}
}

// kubernetesDifferences are the differences between what the relay and an istiod make of an object,
// each with what makes the two equal. docs/kubernetes.md has them.
var kubernetesDifferences = []struct {
	what  string
	apply func(*mcp.Resource)
}{
	{"the relay adds the annotation `meshrelay.io/from`", func(r *mcp.Resource) { delete(r.Metadata.Annotations, "meshrelay.io/from") }},
	{"the relay puts allocated addresses into `spec.addresses`", func(r *mcp.Resource) {
		entry, allocated := &networking.ServiceEntry{}, r.Metadata.Annotations["meshrelay.io/allocated"]
		if allocated == "" || !r.Body.MessageIs(entry) {
			return
		}
		if err := r.Body.UnmarshalTo(entry); err != nil {
			panic(err)
		}
		delete(r.Metadata.Annotations, "meshrelay.io/allocated")
		entry.Addresses = slices.DeleteFunc(entry.Addresses, func(a string) bool { return slices.Contains(strings.Split(allocated, ","), a) })
		r.Body.Value = encoded(entry)
	}},
	{"an istiod passes kubectl's `last-applied-configuration`", func(r *mcp.Resource) {
		delete(r.Metadata.Annotations, "kubectl.kubernetes.io/last-applied-configuration")
	}},
	{"an istiod passes the host of a DestinationRule as it has completed it, and leaves all other hosts as they are written", func(r *mcp.Resource) {
		rule := &networking.DestinationRule{}
		if r.Body.MessageIs(rule) {
			if err := r.Body.UnmarshalTo(rule); err != nil {
				panic(err)
			}
			if namespace, _, _ := strings.Cut(r.Metadata.Name, "/"); !strings.Contains(rule.Host, ".") && rule.Host != "*" {
				rule.Host = full(rule.Host, namespace)
				r.Body.Value = encoded(rule)
			}
		}
	}},
	{"the version is the relay's", func(r *mcp.Resource) { r.Metadata.Version = "" }},
}

// synthetic is in the names of the ServiceEntries that an istiod makes of the Services of its cluster,
// such as that of the API server. It is a difference, too.
const synthetic = "/synthetic-"

// sameAsNative compares what two servers have of all types, byte for byte.
func sameAsNative(native, relayed *xdsClient) (resources int, err error) {
	for _, typeURL := range servedTypes() {
		want, err := native.list(typeURL)
		if err != nil {
			return 0, fmt.Errorf("the istiod: %s: %w", typeURL, err)
		}
		have, err := relayed.list(typeURL)
		if err != nil {
			return 0, fmt.Errorf("the relay: %s: %w", typeURL, err)
		}
		maps.DeleteFunc(want, func(name string, _ *mcp.Resource) bool { return strings.Contains(name, synthetic) })
		for name := range have {
			if want[name] == nil {
				return 0, fmt.Errorf("%s %s: only the relay has it", typeURL, name)
			}
		}
		for name, w := range want {
			h := have[name]
			if h == nil {
				return 0, fmt.Errorf("%s %s: only the istiod has it", typeURL, name)
			}
			for _, d := range kubernetesDifferences {
				d.apply(w)
				d.apply(h)
			}
			switch {
			case w.Body.TypeUrl != h.Body.TypeUrl || !bytes.Equal(w.Body.Value, h.Body.Value):
				return 0, fmt.Errorf("%s %s: the bodies differ: %s and %s", typeURL, name, w.Body, h.Body)
			case !bytes.Equal(encoded(w.Metadata), encoded(h.Metadata)):
				return 0, fmt.Errorf("%s %s: the metadata differ: %s and %s", typeURL, name, w.Metadata, h.Metadata)
			}
		}
		resources += len(want)
	}
	return resources, nil
}

func countFrom(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number", name, text)
	}
	return n
}

// TestKubernetesIsServedAsAnIstiodServesIt_K10 has a relay and an istiod read one API server:
// KUBERNETES_OBJECTS random objects (50 if it is not set) and those of the fixed set, and then
// KUBERNETES_CHANGES random changes (100). What the API server refuses does not count.
func TestKubernetesIsServedAsAnIstiodServesIt_K10(t *testing.T) {
	t.Parallel()
	objects, changes := countFrom(t, "KUBERNETES_OBJECTS", 50), countFrom(t, "KUBERNETES_CHANGES", 100)
	k := newKubernetes(t, "east")
	k.defineIstio()
	c := &changing{k: k, rand: rand.New(rand.NewPCG(15, 1)), have: map[string]manifest{}, seen: map[string]int{}, pool: readManifests(t, "testdata/oracle")}
	fixed := len(c.pool)
	for seed := 1; seed <= 12; seed++ {
		c.pool = append(c.pool, randomSet(seed)...)
	}
	namespaces := map[string]bool{}
	for _, m := range c.pool {
		if !namespaces[m.Metadata.Namespace] {
			namespaces[m.Metadata.Namespace] = true
			k.createNamespace(m.Metadata.Namespace)
		}
	}
	for _, m := range c.pool[:fixed] {
		if _, err := c.give(c.from(m)); err != nil {
			t.Fatal(err)
		}
	}
	times(t, "objects", objects, c.create, func(int) {})
	i := newNativeIstiod(t, k)
	i.env = append(i.env, "REVISION="+oracleRevision)
	i.start().ready()
	r := relayOf(t, "oracle", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}, import: {revision: %s}, rewrite: {shortHosts: keep}, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.kubeconfig, oracleRevision)).start().ready()
	native, relayed := dial(t, i.grpc), dial(t, r.xds)
	compared := 0
	same := func(when string) {
		t.Helper()
		eventually(t, when, func() (err error) {
			compared, err = sameAsNative(native, relayed)
			if err == nil && compared != c.served() {
				err = fmt.Errorf("%d resources are served, and there are %d objects of the revision", compared, c.served())
			}
			return err
		})
	}
	same("both serve the same")
	t.Logf("%d resources of %d objects are the same, %d of them fixed", compared, len(c.have), len(c.have)-objects)
	times(t, "changes", changes, c.change, func(n int) {
		if n%50 == 0 || n == changes {
			same(fmt.Sprintf("both serve the same after %d changes", n))
		}
	})
	t.Logf("%d resources are the same, of %d objects, after changes %v", compared, len(c.have), c.seen)
}

// TestAPIServersAreFederatedForEnvoys_C23 has each of two API servers have half of the fixed set. An
// istiod behind a relay of both sends its proxies what one sends that has everything itself.
func TestAPIServersAreFederatedForEnvoys_C23(t *testing.T) {
	t.Parallel()
	clusters := []*kubernetes{newKubernetes(t, "east"), newKubernetes(t, "west")}
	for _, k := range clusters {
		k.defineIstio()
	}
	var set []manifest
	made := map[string]bool{}
	for n, m := range applied(readManifests(t, "testdata/oracle")) {
		k := clusters[n%2]
		if where := k.name + m.Metadata.Namespace; !made[where] {
			made[where] = true
			k.createNamespace(m.Metadata.Namespace)
		}
		m.Metadata.Annotations = maps.Clone(m.Metadata.Annotations)
		if m.Metadata.Annotations == nil {
			m.Metadata.Annotations = map[string]string{}
		}
		m.Metadata.Annotations[markerKey] = "halves-1"
		if err := k.put(m); refusedBySchema(err) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := k.ask(http.MethodGet, objectPath(m.APIVersion, m.Kind, m.Metadata.Namespace, m.Metadata.Name), "", nil)
		var is manifest
		if err == nil {
			err = json.Unmarshal(b, &is)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.Metadata.CreationTimestamp = is.Metadata.CreationTimestamp // who was first decides
		set = append(set, m)
	}
	clusters[0].createNamespace("istio-system")
	o := newOracle(t, fixedProxies...)
	o.mark = clusters[0].apply
	o.feed("two API servers", relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}
- {name: west, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, clusters[0].kubeconfig, clusters[1].kubeconfig)).start())
	o.same("halves", set)
	o.saw(fromRules...)
}
