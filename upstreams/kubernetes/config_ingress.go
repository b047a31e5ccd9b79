package kubernetes

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/ingress"
)

// Ingress has the settings for the conversion of Ingresses. They mean what the settings of the same names in
// a MeshConfig mean.
type Ingress struct {
	Mode string `yaml:"mode" default:"off" oneof:"off default strict mesh"`
	// MeshConfig is the ConfigMap, NAMESPACE/NAME, that mode mesh reads. Empty means the ConfigMap of the
	// revision.
	MeshConfig string `yaml:"meshConfig"`
	Class      string `yaml:"class" default:"istio"`
	Service    string `yaml:"service" default:"istio-ingressgateway"`
	Selector   string `yaml:"selector"`
	Namespace  string `yaml:"namespace" default:"istio-system"`
	// Names is the version of the istiods whose names the outputs get. An istiod that converts the same
	// Ingresses itself then has each output once.
	Names string `yaml:"names" default:"current" oneof:"current 1.23"`
}

// options returns the options of the conversion, nil for none.
func (i Ingress) options(domain string) *ingress.Options {
	// In mode mesh, nothing is converted before the MeshConfig is read.
	mode, ok := map[string]ingress.Mode{"default": ingress.ModeDefault, "strict": ingress.ModeStrict, modeMesh: ingress.ModeOff}[i.Mode]
	if !ok {
		return nil
	}
	return &ingress.Options{
		Mode: mode, Class: i.Class, Service: i.Service, Selector: i.Selector, Namespace: i.Namespace, Domain: domain, Older: i.Names == "1.23",
	}
}

// check reports the mistakes of the settings.
func (i Ingress) check(mistakes config.Checker) {
	i.checkMesh(mistakes)
	if len(validation.IsDNS1123Label(i.Namespace)) > 0 {
		mistakes.Errorf("ingress.namespace", "%q is not a namespace: at most 63 lower-case letters, digits and dashes, letters or digits first and last", i.Namespace)
	}
	for field, value := range map[string]string{"ingress.service": i.Service, "ingress.selector": i.Selector} {
		if len(validation.IsValidLabelValue(value)) > 0 {
			mistakes.Errorf(field, "%q is not the value of a label: at most 63 letters, digits, dashes, dots and underscores, letters or digits first and last", value)
		}
	}
}

// checkMesh reports settings that contradict the mode.
func (i Ingress) checkMesh(mistakes config.Checker) {
	if i.Mode != modeMesh {
		if i.MeshConfig != "" {
			mistakes.Errorf("ingress.meshConfig", "only mode: mesh reads a MeshConfig: set that, or leave it out")
		}
		return
	}
	if namespace, name, _ := strings.Cut(i.MeshConfig, "/"); i.MeshConfig != "" && (len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0) {
		mistakes.Errorf("ingress.meshConfig", "%q is not NAMESPACE/NAME of a ConfigMap, for example istio-system/istio", i.MeshConfig)
	}
	for _, one := range []struct{ field, value, usual string }{
		{"ingress.class", i.Class, "istio"}, {"ingress.service", i.Service, "istio-ingressgateway"}, {"ingress.selector", i.Selector, ""},
	} {
		if one.value != one.usual {
			mistakes.Errorf(one.field, "with mode: mesh the MeshConfig of the cluster has it: leave it out")
		}
	}
}

// fits reports whether import.profile and import.kinds let in the outputs.
func (i Ingress) fits(u config.Upstream) bool {
	return i.Mode == "off" || !slices.ContainsFunc(ingressOutputs, func(k mirror.Kind) bool { return !intake.Asked(u)(k) })
}

// checkImport reports kinds of outputs that import.profile or import.kinds leaves out.
func (i Ingress) checkImport(mistakes config.Checker, u config.Upstream) {
	if i.fits(u) {
		return
	}
	asked := intake.Asked(u)
	for _, kind := range ingressOutputs {
		if !asked(kind) {
			mistakes.Errorf("ingress.mode", "Ingresses become Gateways and VirtualServices, and import leaves out %s: add it, or set mode: off", kind)
		}
	}
}
