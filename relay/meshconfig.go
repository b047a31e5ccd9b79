package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	mesh "istio.io/api/mesh/v1alpha1"

	"meshrelay/config"
	"meshrelay/internal/doctor"
	"meshrelay/internal/smallfile"
	"meshrelay/internal/yamlpos"
)

const (
	// maxMeshFile bounds a file with mesh configs, in bytes. A ConfigMap has 1 MiB at most, and kubectl
	// may print it twice, in an annotation.
	maxMeshFile = 4 << 20
	// maxMeshes bounds the mesh configs of a file.
	maxMeshes = 20
)

var meshLimits = yamlpos.Limits{Bytes: maxMeshFile, Values: 100_000}

// errNoMesh is the error of a file or value that is not a mesh config.
var errNoMesh = errors.New("this is not a mesh config, which has fields such as configSources")

// istiodMesh is a mesh config, and the name of the object that contains it, if any.
type istiodMesh struct {
	name   string
	config *mesh.MeshConfig
}

// meshConfig checks that an istiod with the mesh configs of a file reads both one of the listeners and its
// own cluster.
func meshConfig(file string, listeners []config.Listener) (found []doctor.Finding) {
	all, err := readMeshes(file)
	if err != nil {
		return []doctor.Finding{doctor.Bad("mesh", file, "the mesh config can not be read", err.Error(),
			"use the mesh config of the istiod, or its ConfigMap: kubectl -n istio-system get configmap istio -o yaml")}
	}
	for _, one := range all {
		target := file
		if one.name != "" {
			target = fmt.Sprintf("%s (%s)", file, one.name)
		}
		found = append(found, sourcesOf(target, one.config.GetConfigSources(), listeners)...)
	}
	return found
}

// sourcesOf checks the configSources of an istiod.
func sourcesOf(target string, sources []*mesh.ConfigSource, listeners []config.Listener) []doctor.Finding {
	var relays []*url.URL
	cluster := len(sources) == 0 // without configSources, an istiod reads its own cluster
	for _, s := range sources {
		u, err := url.Parse(s.GetAddress())
		switch {
		case err != nil:
			return []doctor.Finding{doctor.Bad("mesh", target, "an address in configSources is no URL", err.Error(), "write it as xds://HOST:PORT; with a wrong address, an istiod does not start")}
		case u.Scheme == "xds":
			relays = append(relays, u)
		case u.Scheme == "k8s" && strings.Trim(u.Path, "/") == "": // an istiod ignores one with a path
			cluster = true
		}
	}
	found := []doctor.Finding{doctor.Good("mesh", target, "the istiod reads its own cluster")}
	switch {
	case len(relays) > 0 && !cluster:
		found[0] = doctor.Bad("mesh", target, "configSources has xds:// without k8s://", "the istiod then does not read its own cluster (istio/istio#34134)", `add to configSources: {address: "k8s://"}`)
	case !cluster:
		found[0] = doctor.Good("mesh", target, "configSources has no xds://; its other addresses are not checked")
	}
	return append(found, reachesListener(target, relays, listeners))
}

// reachesListener compares the ports of the relays that an istiod reads with those of the listeners. It
// does not compare hosts: their names need not resolve here.
func reachesListener(target string, relays []*url.URL, listeners []config.Listener) doctor.Finding {
	var ports, addresses []string
	for _, l := range listeners {
		if _, port, err := net.SplitHostPort(l.Address); err == nil { // always so in a valid config
			ports = append(ports, port)
		}
	}
	for _, u := range relays {
		if i := slices.Index(ports, u.Port()); i >= 0 {
			return doctor.Good("mesh", target, "xds://%s has the port of downstream.listeners[%d]", u.Host, i)
		}
		addresses = append(addresses, "xds://"+u.Host)
	}
	why := fmt.Sprintf("it has no xds:// address, and this relay has the ports %s", strings.Join(ports, ", "))
	fix := `add to configSources: {address: "xds://HOST:PORT"} and {address: "k8s://"}, where HOST leads the istiod to this relay`
	if len(addresses) > 0 {
		why = fmt.Sprintf("it has %s, and this relay has the ports %s", some(addresses), strings.Join(ports, ", "))
		fix = "correct the port in configSources, unless a Service or load balancer leads it to a port of this relay"
	}
	return doctor.Doubt("mesh", target, "no address in configSources is a listener of this relay", why, fix)
}

// readMeshes returns the mesh configs in a file.
func readMeshes(file string) (all []istiodMesh, err error) {
	text, err := smallfile.Read(file, maxMeshFile)
	if err != nil {
		return nil, err
	}
	documents, err := yamlpos.Decode(text, meshLimits)
	if err != nil {
		return nil, err
	}
	for _, d := range documents {
		if all, err = appendMeshes(all, d); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, errNoMesh
	}
	return all, nil
}

// appendMeshes appends the mesh configs of a document: the document itself, or a field of it, if it is an
// object or a file of Helm values.
func appendMeshes(all []istiodMesh, document any) ([]istiodMesh, error) {
	fields, ok := document.(map[string]any)
	if !ok {
		return nil, errNoMesh
	}
	if items, ok := fields["items"].([]any); ok {
		for _, item := range items {
			var err error
			if all, err = appendMeshes(all, item); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	kind, _ := fields["kind"].(string)
	name, _ := at(fields, "metadata", "name").(string)
	var value any
	switch {
	case kind == "ConfigMap":
		value = at(fields, "data", "mesh")
	case kind == "MeshConfig": // as relay get prints it
		value = fields["spec"]
	case kind != "": // an IstioOperator, or an Istio of the Sail operator
		if value = at(fields, "spec", "meshConfig"); value == nil {
			value = at(fields, "spec", "values", "meshConfig")
		}
	case fields["meshConfig"] != nil:
		value = fields["meshConfig"]
	default:
		value = fields
	}
	if value == nil {
		return all, nil // another object, such as another ConfigMap
	}
	if len(all) == maxMeshes {
		return nil, fmt.Errorf("the file has more than %d mesh configs", maxMeshes)
	}
	cfg, err := decodeMesh(value)
	if err != nil && name != "" {
		err = fmt.Errorf("%s %s: %w", kind, name, err)
	}
	return append(all, istiodMesh{name, cfg}), err
}

// at returns the value at a path of field names, or nil.
func at(value any, path ...string) any {
	for _, name := range path {
		fields, _ := value.(map[string]any)
		value = fields[name]
	}
	return value
}

// decodeMesh decodes configSources of a mesh config, or of the text of one. Like an istiod, it ignores
// unknown fields and accepts both spellings of a field.
func decodeMesh(value any) (*mesh.MeshConfig, error) {
	if text, ok := value.(string); ok {
		documents, err := yamlpos.Decode([]byte(text), meshLimits)
		if err != nil {
			return nil, fmt.Errorf("mesh: %w", err)
		}
		if value = map[string]any{}; len(documents) > 0 {
			value = documents[0]
		}
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, errNoMesh
	}
	needed := map[string]any{}
	for _, name := range []string{"configSources", "config_sources"} {
		if sources, ok := fields[name]; ok {
			needed[name] = sources
		}
	}
	encoded, err := json.Marshal(needed)
	if err != nil {
		return nil, err
	}
	cfg := &mesh.MeshConfig{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(encoded, cfg); err != nil {
		return nil, fmt.Errorf("configSources must be a list such as configSources: [{address: \"k8s://\"}]: %w", err)
	}
	return cfg, nil
}
