package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/yamlpos"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ingress"
)

// modeMesh is the mode of ingress that takes the options of the conversion from the MeshConfig of the cluster.
const modeMesh = "mesh"

// meshKind is the kind of the object that has the MeshConfig. It is polled, not watched.
var (
	meshKind     = mirror.Kind{Kind: "ConfigMap"}
	meshResource = discovery.Resource{Kind: meshKind, Version: "v1", Plural: "configmaps", Namespaced: true}
)

// meshOf returns the name of the ConfigMap with the MeshConfig of a revision.
func meshOf(revision string) string {
	if revision != "" && revision != "default" {
		return "istio-" + revision
	}
	return "istio"
}

// readMesh reads the options of the conversion from the MeshConfig. After an error, the last options stay.
func (s *Source) readMesh(ctx context.Context, conn *apiserver.Conn) {
	all := s.following(meshKind)
	if len(all) == 0 {
		return
	}
	c := all[0]
	options, err := s.meshOptions(ctx, conn)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		s.ledger.Settle(c.entry, func() { s.ingresses.settle(func() { s.ingresses.state.SetOptions(options) }) })
		s.enter(c, Following, nil)
	case apierrors.IsForbidden(err):
		s.ledger.Lost(c.entry)
		s.enter(c, Denied, err)
	default:
		s.ledger.Lost(c.entry)
		s.enter(c, Failing, err)
	}
}

// meshOptions reads the options of the conversion from the MeshConfig.
func (s *Source) meshOptions(ctx context.Context, conn *apiserver.Conn) (ingress.Options, error) {
	text, err := s.meshText(ctx, conn)
	if err != nil {
		return ingress.Options{}, err
	}
	o, err := withMesh(*s.ingressOptions, text)
	if err != nil {
		return o, fmt.Errorf("ConfigMap %s/%s: mesh: %w", s.meshNamespace, s.meshName, err)
	}
	return o, nil
}

// meshText reads the MeshConfig, which is YAML.
func (s *Source) meshText(ctx context.Context, conn *apiserver.Conn) (string, error) {
	var object struct {
		Data json.RawMessage `json:"data"`
	}
	var data map[string]string
	where := "ConfigMap " + s.meshNamespace + "/" + s.meshName
	err := conn.Read(ctx, meshResource.Path(s.meshNamespace)+"/"+s.meshName, apiserver.AcceptJSON, &object)
	if err == nil {
		err = yamlpos.CheckJSON(object.Data, maxMeshKeys)
	}
	if err == nil && len(object.Data) > 0 {
		err = json.Unmarshal(object.Data, &data)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", where, err)
	}
	text, is := data["mesh"]
	if !is {
		return "", fmt.Errorf("%s has no key mesh", where)
	}
	return text, nil
}

// meshFields returns the fields of a MeshConfig.
func meshFields(text string) (map[string]any, error) {
	documents, err := yamlpos.Decode([]byte(text), meshLimits)
	if err != nil {
		return nil, fmt.Errorf("it is not the YAML of a MeshConfig: %.200w", err)
	}
	documents = append(documents, map[string]any{}) // of an empty text
	fields, is := documents[0].(map[string]any)
	if !is {
		return nil, errors.New("it is not the YAML of a MeshConfig: it has no fields")
	}
	return fields, nil
}

// meshModes are the values of ingressControllerMode. An istiod takes a number as well.
var meshModes = map[string]ingress.Mode{
	"OFF": ingress.ModeOff, "DEFAULT": ingress.ModeDefault, "STRICT": ingress.ModeStrict,
	"1": ingress.ModeOff, "2": ingress.ModeDefault, "3": ingress.ModeStrict,
}

// meshLimits bound a MeshConfig. An API server takes no larger ConfigMap.
var meshLimits = yamlpos.Limits{Bytes: 1 << 20, Values: 20_000}

const (
	maxMeshKeys = 1_000 // of the ConfigMap
	maxOption   = 253   // bytes of an option, as of a name
)

// withMesh returns options with the values of a MeshConfig. For values that it lacks, it uses the defaults of
// an istiod.
func withMesh(o ingress.Options, text string) (ingress.Options, error) {
	fields, err := meshFields(text)
	if err != nil {
		return o, err
	}
	value := "STRICT"
	o.Class, o.Service, o.Selector = "", "", ""
	options := map[string]*string{"ingressControllerMode": &value, "ingressClass": &o.Class, "ingressService": &o.Service, "ingressSelector": &o.Selector}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		switch v := fields[name].(type) {
		case nil:
		case map[string]any, []any:
			return o, fmt.Errorf("%s is a map or a list: it has to be a text", name)
		default:
			if *options[name] = fmt.Sprint(v); len(*options[name]) > maxOption {
				return o, fmt.Errorf("%s has more than %d bytes: shorten it", name, maxOption)
			}
		}
	}
	mode, is := meshModes[value]
	if !is {
		return o, fmt.Errorf("ingressControllerMode is %.40q, and an istiod knows OFF, DEFAULT and STRICT", value)
	}
	o.Mode = mode
	return o, nil
}
