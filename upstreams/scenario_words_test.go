package upstreams_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	extensions "istio.io/api/extensions/v1alpha1"
	mcp "istio.io/api/mcp/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/upstreams/file"
)

// scriptKinds are the kinds that scripts name. A type is a kind, or a kind and a version as in
// se.v1beta1.
var scriptKinds = map[string]mirror.Kind{
	"se":      {Group: "networking.istio.io", Kind: "ServiceEntry"},
	"vs":      {Group: "networking.istio.io", Kind: "VirtualService"},
	"dr":      {Group: "networking.istio.io", Kind: "DestinationRule"},
	"gw":      {Group: "networking.istio.io", Kind: "Gateway"},
	"sidecar": {Group: "networking.istio.io", Kind: "Sidecar"},
	"wg":      {Group: "networking.istio.io", Kind: "WorkloadGroup"},
	"route":   {Group: "gateway.networking.k8s.io", Kind: "HTTPRoute"},
	"widget":  {Group: "example.com", Kind: "Widget"},
	"wasm":    federation.WasmPlugin,
	"te":      federation.TrafficExtension,
	"mesh":    mirror.MeshConfig,
}

func typeURL(word string) string {
	alias, version, ok := strings.Cut(word, ".")
	if alias == "mesh" {
		return xdsMeshURL
	}
	if !ok {
		version = "v1"
		if alias == "wasm" || alias == "te" {
			version = "v1alpha1"
		}
	}
	kind, known := scriptKinds[alias]
	if !known {
		panic(fmt.Sprintf("script: no type %q: want one of %v", word, slices.Sorted(maps.Keys(scriptKinds))))
	}
	return kind.Group + "/" + version + "/" + kind.Kind
}

func aliasOf(kind mirror.Kind) string {
	for alias, k := range scriptKinds {
		if k == kind {
			return alias
		}
	}
	return kind.String()
}

// resourceWord is a resource as a script writes it: NAME, NAME=HOST, NAME=HOST*TIMES, NAME! with
// a body that can not be decoded, and any of them with ;key=value behind it: rev, from, v, addr.
// NAME may be a0..9. A name without a namespace is in ns.
type resourceWord struct {
	name, host string
	corrupt    bool
	settings   map[string]string
}

func resourceWords(words []string) (out []resourceWord) {
	for _, word := range words {
		parts := strings.Split(word, ";")
		w := resourceWord{settings: map[string]string{}}
		for _, s := range parts[1:] {
			key, value, _ := strings.Cut(s, "=")
			w.settings[key] = strings.ReplaceAll(value, "+", " ")
		}
		var name string
		name, w.corrupt = strings.CutSuffix(parts[0], "!")
		name, w.host, _ = strings.Cut(name, "=")
		if text, times, ok := strings.Cut(w.host, "*"); ok {
			n, _ := strconv.Atoi(times)
			w.host = strings.Repeat(text, n)
		}
		for _, full := range namesOf(name) {
			w.name = full
			out = append(out, w)
		}
	}
	return out
}

// namesOf returns ns/a0 ns/a1 ns/a2 of a0..2.
func namesOf(word string) (names []string) {
	first, last, ok := strings.Cut(word, "..")
	if !strings.Contains(first, "/") {
		first = "ns/" + first
	}
	prefix := strings.TrimRight(first, "0123456789")
	from, _ := strconv.Atoi(first[len(prefix):])
	to, err := strconv.Atoi(last)
	if !ok || err != nil {
		return []string{first}
	}
	for i := from; i <= to; i++ {
		names = append(names, prefix+strconv.Itoa(i))
	}
	return names
}

// elementsOf returns resources as a server sends them. A ? can not be read at all.
func elementsOf(url string, words []string) (out []fakexds.Resource) {
	for _, word := range words {
		if word == "?" {
			out = append(out, unreadable())
			continue
		}
		for _, w := range resourceWords([]string{word}) {
			out = append(out, w.element(url))
		}
	}
	return out
}

func (w resourceWord) element(url string) fakexds.Resource {
	kind, _, _ := mirror.ParseTypeURL(url)
	_, base, _ := strings.Cut(w.name, "/")
	switch {
	case kind == mirror.MeshConfig:
		return meshRooted(base, w.settings["root"])
	case w.corrupt:
		return corrupt(w.name).WithVersion(w.settings["v"])
	}
	if kind == scriptKinds["route"] {
		return fakexds.MCP(w.name, w.route()).WithVersion(w.settings["v"])
	}
	entry := &networking.ServiceEntry{}
	if w.host != "" {
		entry.Hosts = []string{w.host}
	}
	if addresses := w.settings["addr"]; addresses != "" {
		entry.Addresses = strings.Split(addresses, ",")
	}
	w.addEndpoints(entry)
	var body proto.Message = entry
	switch kind {
	case federation.WasmPlugin:
		body = &extensions.WasmPlugin{Url: w.host}
	case federation.TrafficExtension:
		body = &extensions.TrafficExtension{FilterConfig: &extensions.TrafficExtension_Wasm{Wasm: &extensions.WasmConfig{Url: w.host}}}
	}
	r := fakexds.MCP(w.name, body, func(m *mcp.Resource) {
		if rev := w.settings["rev"]; rev != "" {
			m.Metadata.Labels = map[string]string{"istio.io/rev": rev}
		}
		if from := w.settings["from"]; from != "" {
			m.Metadata.Annotations = map[string]string{mirror.ProvenanceAnnotation: from}
		}
		if is := w.settings["endpoints"]; is != "" {
			m.Metadata.Annotations = map[string]string{services.EndpointsAnnotation: is}
			if from := w.settings["from"]; from != "" {
				m.Metadata.Annotations[mirror.ProvenanceAnnotation] = from
			}
		}
		if version := w.settings["is"]; version != "" {
			m.Metadata.Version = version
		}
	})
	if kind.Group == "networking.istio.io" && kind != xdsEntryKind {
		r = fakexds.Resource{Name: w.name, Any: rewrapped(r, &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3." + kind.Kind})}
	}
	return r.WithVersion(w.settings["v"])
}

// route returns a route of HOST with the parent in ;parent=NAMESPACE/NAME, a ServiceEntry.
func (w resourceWord) route() *structpb.Struct {
	fields := map[string]any{}
	if w.host != "" {
		fields["hostnames"] = []any{w.host}
	}
	if namespace, name, ok := strings.Cut(w.settings["parent"], "/"); ok {
		fields["parentRefs"] = []any{map[string]any{"group": "networking.istio.io", "kind": "ServiceEntry", "namespace": namespace, "name": name}}
	}
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic("script: " + err.Error())
	}
	return s
}

// addEndpoints gives a ServiceEntry the endpoints in ;ep=ADDRESS,ADDRESS and the port in ;port=NUMBER, which is 80
// where it has endpoints or is made of a Kubernetes service.
func (w resourceWord) addEndpoints(entry *networking.ServiceEntry) {
	port, given := w.settings["port"]
	addresses, has := w.settings["ep"]
	if !has && !given && !strings.Contains(w.name, "/synthetic-") {
		return
	}
	number, err := strconv.ParseUint(cmp.Or(port, "80"), 10, 32)
	if err != nil {
		panic("script: " + err.Error())
	}
	entry.Location, entry.Resolution = networking.ServiceEntry_MESH_INTERNAL, networking.ServiceEntry_STATIC
	if w.settings["by"] == "dns" {
		entry.Resolution = networking.ServiceEntry_DNS
	}
	entry.Ports = []*networking.ServicePort{{Number: uint32(number), Name: "http", Protocol: "HTTP"}}
	for address := range strings.SplitSeq(addresses, ",") {
		if address != "" {
			entry.Endpoints = append(entry.Endpoints, &networking.WorkloadEntry{Address: address})
		}
	}
}

// documentsOf returns resources as a file has them: TYPE RESOURCE... [and TYPE RESOURCE...].
func documentsOf(words []string) string {
	var b strings.Builder
	kind, version := mirror.Kind{}, ""
	next := true
	for _, word := range words {
		switch {
		case word == "and":
			next = true
		case next:
			kind, version, _ = mirror.ParseTypeURL(typeURL(word))
			next = false
		default:
			for _, w := range resourceWords([]string{word}) {
				namespace, name, _ := strings.Cut(w.name, "/")
				fmt.Fprintf(&b, "---\napiVersion: %s/%s\nkind: %s\nmetadata:\n  name: %s\n  namespace: %s\n", kind.Group, version, kind.Kind, name, namespace)
				if from := w.settings["from"]; from != "" {
					fmt.Fprintf(&b, "  annotations:\n    %s: %s\n", mirror.ProvenanceAnnotation, from)
				}
				if kind == federation.WasmPlugin {
					fmt.Fprintf(&b, "spec: {url: %s}\n", w.host)
				}
				if kind == xdsEntryKind {
					if w.host == "" {
						w.host = name + ".example"
					}
					fmt.Fprintf(&b, "spec:\n  hosts:\n  - %s\n", w.host)
					if app := w.settings["selects"]; app != "" {
						fmt.Fprintf(&b, "  resolution: STATIC\n  ports:\n  - {number: 80, name: http, protocol: HTTP}\n  workloadSelector: {labels: {app: %s}}\n", app)
					}
				}
			}
		}
	}
	return b.String()
}

// contentOf returns what list prints of a resource.
func contentOf(t *testing.T, r *mirror.Resource) string {
	switch r.Kind() {
	case xdsEntryKind:
		if host := hostOf(t, r); host != "" {
			return "=" + host + endpointsShown(t, r)
		}
	case federation.TrafficExtension:
		e := &extensions.TrafficExtension{}
		if err := r.Body().UnmarshalTo(e); err != nil {
			t.Fatal(err)
		}
		return "=" + e.GetWasm().GetUrl()
	case mirror.MeshConfig:
		m := &mesh.MeshConfig{}
		if err := r.Body().UnmarshalTo(m); err != nil {
			t.Fatal(err)
		}
		return "=" + m.TrustDomain
	}
	return ""
}

// endpointsShown returns the endpoints of a ServiceEntry that has some, or was told to have none, and a port that is not
// 80.
func endpointsShown(t *testing.T, r *mirror.Resource) (out string) {
	se := &networking.ServiceEntry{}
	if err := r.Body().UnmarshalTo(se); err != nil {
		t.Fatal(err)
	}
	for _, p := range se.Ports {
		if p.Number != 80 {
			out += fmt.Sprintf(":%d", p.Number)
		}
	}
	if len(se.Addresses) > 0 {
		out += "[" + strings.Join(se.Addresses, ",") + "]"
	}
	switch {
	case services.Told(r):
		return out + "@none"
	case len(se.Endpoints) == 0:
		return out
	}
	var all []string
	for _, e := range se.Endpoints {
		all = append(all, e.Address)
	}
	return out + "@" + strings.Join(all, ",")
}

// guardSettings may be named without "guard.".
var guardSettings = []string{"percent", "count", "holdFor", "profile"}

// configOf returns the config of an upstream: settings of the upstream as in guard.percent=30 or
// import.namespaces.include=["shop"].
func configOf(kind, dir string, settings []string) (*config.Config, error) {
	u, node := xdsConfig("127.0.0.1:1")
	u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold, HoldFor: config.OpenEnded(10 * time.Minute)}
	u.Staleness = config.Staleness{StaleAfter: config.Duration(5 * time.Minute)}
	if kind == "file" {
		u.Source = &file.Config{Path: dir}
	}
	c := &config.Config{Node: node, Provenance: config.Provenance{Relay: "hub"}}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		switch name {
		case "empty":
			u.Guard.Empty = value
			continue
		case "maxResourceBytes":
			u.Limits.MaxResourceBytes, _ = strconv.Atoi(value)
			continue
		}
		if slices.Contains(guardSettings, name) {
			name = "guard." + name
		}
		var into any = &u
		if rest, ok := strings.CutPrefix(name, u.Source.Kind()+"."); ok {
			name, into = rest, u.Source
		}
		path := strings.Split(name, ".")
		text := strings.Join(path, ": {") + ": " + value + strings.Repeat("}", len(path)-1)
		if err := yaml.UnmarshalWithOptions([]byte("{"+text+"}"), into, yaml.Strict()); err != nil {
			return nil, fmt.Errorf("%w: setting %s: %w", errScript, s, err)
		}
	}
	c.Upstreams = []config.Upstream{u}
	return c, nil
}
