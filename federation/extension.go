package federation

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	extensions "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshrelay/mirror"
)

// The kinds of plugins for proxies. Istiods from 1.30 read TrafficExtensions over MCP, and WasmPlugins only from their
// own API server.
var (
	WasmPlugin       = mirror.Kind{Group: "extensions.istio.io", Kind: "WasmPlugin"}
	TrafficExtension = mirror.Kind{Group: "extensions.istio.io", Kind: "TrafficExtension"}
)

// Translated ends the names of TrafficExtensions that are made of WasmPlugins, as istiods name theirs (istio's
// pilot/pkg/config/kube/extensions). No object of Kubernetes has such a name.
const Translated = "~istio-translated-wasmplugin"

// ExtensionOf returns the TrafficExtension that an istiod makes of a WasmPlugin, with the provenance of the WasmPlugin.
func ExtensionOf(r *mirror.Resource) (*mirror.Resource, error) {
	p := &extensions.WasmPlugin{}
	if err := proto.Unmarshal(r.BodyValue(), p); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	e := &extensions.TrafficExtension{
		Selector: p.Selector, TargetRefs: p.TargetRefs, Phase: extensions.TrafficExtension_ExecutionPhase(p.Phase), Priority: p.Priority,
		FilterConfig: &extensions.TrafficExtension_Wasm{Wasm: &extensions.WasmConfig{
			Url: p.Url, Sha256: p.Sha256, ImagePullPolicy: p.ImagePullPolicy, ImagePullSecret: p.ImagePullSecret, PluginConfig: p.PluginConfig,
			PluginName: p.PluginName, FailStrategy: p.FailStrategy, VmConfig: p.VmConfig, Type: p.Type,
		}},
	}
	if p.TargetRef != nil && len(p.TargetRefs) == 0 {
		e.TargetRefs = []*typev1beta1.PolicyTargetReference{p.TargetRef}
	}
	for _, m := range p.Match {
		e.Match = append(e.Match, &extensions.TrafficSelector{Mode: m.Mode, Ports: m.Ports})
	}
	body, s := &anypb.Any{}, r.Spec()
	if err := anypb.MarshalFrom(body, e, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Key(), err)
	}
	from, known := s.Annotations[mirror.ProvenanceAnnotation]
	s.Kind, s.Name, s.Labels, s.Annotations, s.Body = TrafficExtension, s.Name+Translated, nil, nil, body
	if known {
		s.Annotations = map[string]string{mirror.ProvenanceAnnotation: from}
	}
	return mirror.New(s)
}
