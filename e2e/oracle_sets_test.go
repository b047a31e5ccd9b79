package e2e

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// Random sets are drawn from a small world, so that much of it meets: three namespaces, of
// which one is the root namespace, and a few apps in each, which are called by short hosts
// and full ones.

const rootNamespace = "istio-system"

var (
	worldNamespaces = []string{"shop", "bank", rootNamespace}
	worldApps       = []string{"web", "api", "db"}
	worldVersions   = []string{"v1", "v2"}
	worldNames      = []string{"a", "b", "c", "default", "web", "api"} // of configs, also in several namespaces
	externalHosts   = []string{"db.example", "api.wild.example", "*.wild.example", "*.example"}
)

// addresses are those of the workloads of one random set. No two configs of a set, and of the
// set before, have endpoints of one address: an istiod that sees one of them change forgets
// the address for both (deleteInstanceKeys in its serviceregistry/serviceentry/store.go), so
// that it depends on the order of changes what it knows of the proxy there.
type addresses struct {
	block string
	taken int
}

func addressesOf(seed int) *addresses {
	h := fnv.New32a()
	fmt.Fprint(h, seed)
	return &addresses{block: fmt.Sprintf("10.%d.%d", 100+h.Sum32()%100, h.Sum32()>>8%250)}
}

// of returns the address of an app's workload.
func (a *addresses) of(namespace, app, version string) string {
	n := slices.Index(worldNamespaces, namespace)*len(worldApps) + slices.Index(worldApps, app)
	return fmt.Sprintf("%s.%d", a.block, 1+n*len(worldVersions)+slices.Index(worldVersions, version))
}

// another returns an unused address.
func (a *addresses) another() string {
	a.taken++
	return fmt.Sprintf("%s.%d", a.block, 100+a.taken)
}

// worldProxies are who asks for the random set of a seed.
func worldProxies(seed int) []proxy {
	a := addressesOf(seed)
	workload := func(app, version, namespace string) proxy {
		return proxy{name: app + "-" + version, namespace: namespace, address: a.of(namespace, app, version), labels: map[string]string{"app": app, "version": version}}
	}
	return []proxy{
		workload("web", "v1", "shop"),
		workload("api", "v2", "shop"),
		workload("db", "v1", "bank"),
		{name: "client", namespace: "elsewhere", address: "10.200.0.1"},
		{name: "client", namespace: rootNamespace, address: "10.200.0.2", labels: map[string]string{"app": "client"}},
		{kind: "router", name: "ingress", namespace: rootNamespace, address: "10.200.0.3", labels: map[string]string{"istio": "ingress"}},
		{kind: "router", name: "gateway", namespace: "bank", address: "10.200.0.4", labels: map[string]string{"istio": "private", "app": "web"}},
	}
}

type fields = map[string]any

// world draws one set.
type world struct {
	*rapid.T
	addresses *addresses
	set       []manifest
	keys      map[string]bool
}

// randomSet draws a set of configs that are valid. The same seed gives the same set.
func randomSet(seed int) []manifest {
	return rapid.Custom(func(t *rapid.T) []manifest {
		w := &world{T: t, addresses: addressesOf(seed), keys: map[string]bool{}}
		w.services()
		w.times("rules", 1, 6, w.destinationRule)
		w.times("gateways", 0, 3, w.gateway)
		w.times("routes", 1, 8, w.virtualService)
		w.times("sidecars", 0, 3, w.sidecar)
		w.times("authorization policies", 0, 4, w.authorizationPolicy)
		w.times("peer authentications", 0, 3, w.peerAuthentication)
		w.times("request authentications", 0, 2, w.requestAuthentication)
		return w.set
	}).Example(seed)
}

func (w *world) times(what string, least, most int, draw func()) {
	for range rapid.IntRange(least, most).Draw(w.T, what) {
		draw()
	}
}

func pick[V any](w *world, what string, of []V) V { return rapid.SampledFrom(of).Draw(w.T, what) }

// some draws a part of a list, in its order, of one element at least.
func some[V comparable](w *world, what string, of []V) (part []V) {
	sure := pick(w, what, of)
	for _, v := range of {
		if v == sure || rapid.Bool().Draw(w.T, what) {
			part = append(part, v)
		}
	}
	return part
}

// oneIn is true once in n times.
func (w *world) oneIn(n int, what string) bool {
	return rapid.IntRange(1, n).Draw(w.T, what) == n
}

// add adds a config to the set unless its key is taken, or an istiod would refuse it.
func (w *world) add(apiVersion, kind, name, namespace string, labels map[string]string, spec fields) {
	body, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	m := manifest{APIVersion: apiVersion, Kind: kind, Spec: body, Metadata: manifestMetadata{Name: name, Namespace: namespace, Labels: labels}}
	m.Metadata.CreationTimestamp = createdAt(m.key())
	if w.keys[m.key()] || m.invalid() != nil {
		return
	}
	w.keys[m.key()] = true
	w.set = append(w.set, m)
}

// createdAt makes a time of a key: who was first does not follow from names, and is as it is
// in a set of its own when the set before had the same key. (An istiod keeps the time of a
// config that changes.)
func createdAt(key string) string {
	h := fnv.New32a()
	h.Write([]byte(key))
	return time.Date(2024, 1, 1, 0, 0, int(h.Sum32()%10_000_000), 0, time.UTC).Format(time.RFC3339)
}

// host draws a host as somebody in the namespace would write it.
func (w *world) host(namespace string) string {
	app := pick(w, "app", worldApps)
	switch rapid.IntRange(0, 9).Draw(w.T, "host") {
	case 0:
		return pick(w, "external host", externalHosts)
	case 1:
		return "nobody" // a short host of no service
	case 2, 3:
		return full(app, pick(w, "namespace of host", worldNamespaces))
	case 4:
		return full(app, namespace)
	default:
		return app
	}
}

// exportTo puts a visibility into a spec, most often none.
func (w *world) exportTo(spec fields) fields {
	switch rapid.IntRange(0, 5).Draw(w.T, "exportTo") {
	case 0:
		spec["exportTo"] = []string{"."}
	case 1:
		spec["exportTo"] = []string{"*"}
	case 2:
		spec["exportTo"] = some(w, "exportTo namespaces", []string{".", "shop", "bank"})
	}
	return spec
}

// selector puts a selector of that field into a spec, or none.
func (w *world) selector(spec fields, field, labels string) fields {
	if rapid.Bool().Draw(w.T, "selects") {
		spec[field] = fields{labels: w.appLabels()}
	}
	return spec
}

func (w *world) appLabels() fields {
	l := fields{"app": pick(w, "app", worldApps)}
	if w.oneIn(3, "by version") {
		l["version"] = pick(w, "version", worldVersions)
	}
	return l
}

// services draws what services there are, and who claims a host that another has.
func (w *world) services() {
	for _, namespace := range worldNamespaces {
		for _, app := range worldApps {
			if !w.oneIn(4, "no service") {
				w.service(app, namespace, full(app, namespace), app)
			}
		}
	}
	w.times("conflicts", 0, 2, func() {
		host := full(pick(w, "claimed app", worldApps), pick(w, "claimed namespace", worldNamespaces))
		w.service(pick(w, "name", worldNames), pick(w, "claimant", worldNamespaces), host, fmt.Sprintf("other-%d", len(w.set)))
	})
	w.times("external services", 0, 3, func() {
		host := pick(w, "external host", externalHosts)
		resolution := "DNS"
		if host[0] == '*' {
			resolution = "NONE"
		}
		spec := fields{
			"hosts": []string{host}, "location": "MESH_EXTERNAL", "resolution": resolution,
			"ports": []fields{{"number": 80, "name": "http", "protocol": "HTTP"}, {"number": 443, "name": "tls", "protocol": "TLS"}},
		}
		w.add("networking.istio.io/v1beta1", "ServiceEntry", pick(w, "name", worldNames), pick(w, "namespace", worldNamespaces), nil, w.exportTo(spec))
	})
}

var worldPorts = []fields{
	{"number": 80, "name": "http", "protocol": "HTTP"},
	{"number": 8080, "name": "grpc", "protocol": "GRPC", "targetPort": 18080},
	{"number": 443, "name": "https", "protocol": "HTTPS"},
	{"number": 3306, "name": "tcp", "protocol": "TCP"},
}

// service draws a ServiceEntry for the host, whose workloads have the label app.
func (w *world) service(name, namespace, host, app string) {
	spec := fields{"hosts": []string{host}, "location": "MESH_INTERNAL", "resolution": "STATIC"}
	ports := []fields{worldPorts[0]}
	for _, p := range worldPorts[1:] {
		if w.oneIn(3, "port") {
			ports = append(ports, p)
		}
	}
	spec["ports"] = ports
	if w.oneIn(3, "address of its own") {
		spec["addresses"] = []string{fmt.Sprintf("10.99.0.%d", 1+len(w.set))}
	}
	if w.oneIn(5, "account") {
		spec["subjectAltNames"] = []string{"spiffe://mesh.example/ns/" + namespace + "/sa/" + app}
	}
	var workloads []fields
	for _, v := range some(w, "versions", worldVersions) {
		workload := fields{"address": w.addresses.another(), "labels": fields{"app": app, "version": v}}
		if slices.Contains(worldApps, app) {
			workload["address"] = w.addresses.of(namespace, app, v)
		}
		if w.oneIn(3, "weight") {
			workload["weight"] = rapid.IntRange(1, 5).Draw(w.T, "weight")
		}
		if w.oneIn(3, "locality") {
			workload["locality"] = "eu/zone-" + v
		}
		workloads = append(workloads, workload)
	}
	if w.oneIn(3, "by selector") {
		spec["workloadSelector"] = fields{"labels": fields{"app": app}}
		for _, workload := range workloads {
			version := workload["labels"].(fields)["version"].(string)
			w.add("networking.istio.io/v1beta1", "WorkloadEntry", app+"-"+version, namespace, map[string]string{"app": app}, workload)
		}
	} else {
		spec["endpoints"] = workloads
	}
	w.add("networking.istio.io/v1beta1", "ServiceEntry", name, namespace, map[string]string{"app": app}, w.exportTo(spec))
}
