package kubernetes

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/ingress"
)

// Ingress is how Ingresses are converted, as the settings of the same names in a MeshConfig have it.
type Ingress struct {
	Mode      string `yaml:"mode" default:"off" oneof:"off default strict"`
	Class     string `yaml:"class" default:"istio"`
	Service   string `yaml:"service" default:"istio-ingressgateway"`
	Selector  string `yaml:"selector"`
	Namespace string `yaml:"namespace" default:"istio-system"`
	// Names are those of istiods of this age: an istiod that converts the same Ingresses has each
	// once then.
	Names string `yaml:"names" default:"current" oneof:"current 1.23"`
}

// options returns the options of the conversion, nil for none.
func (i Ingress) options(domain string) *ingress.Options {
	mode, ok := map[string]ingress.Mode{"default": ingress.ModeDefault, "strict": ingress.ModeStrict}[i.Mode]
	if !ok {
		return nil
	}
	return &ingress.Options{
		Mode: mode, Class: i.Class, Service: i.Service, Selector: i.Selector, Namespace: i.Namespace, Domain: domain, Older: i.Names == "1.23",
	}
}

// check reports the mistakes of the settings.
func (i Ingress) check(mistakes config.Checker) {
	if len(validation.IsDNS1123Label(i.Namespace)) > 0 {
		mistakes.Errorf("ingress.namespace", "%q is not a namespace: at most 63 lower-case letters, digits and dashes, letters or digits first and last", i.Namespace)
	}
	for field, value := range map[string]string{"ingress.service": i.Service, "ingress.selector": i.Selector} {
		if len(validation.IsValidLabelValue(value)) > 0 {
			mistakes.Errorf(field, "%q is no value of a label: at most 63 letters, digits, dashes, dots and underscores, letters or digits first and last", value)
		}
	}
}

// checkImport reports what the rules of the upstream leave out of what is converted.
func (i Ingress) checkImport(mistakes config.Checker, u config.Upstream) {
	if i.Mode == "off" || len(u.Import.Kinds) == 0 {
		return
	}
	var imported []mirror.Kind
	for _, word := range u.Import.Kinds {
		kinds, _ := mirror.ParseKinds(word) // the config has been checked
		imported = append(imported, kinds...)
	}
	for _, kind := range ingressOutputs {
		if !slices.Contains(imported, kind) {
			mistakes.Errorf("ingress.mode", "Ingresses become Gateways and VirtualServices, and import.kinds leaves out %s: add it, or set mode: off", kind)
		}
	}
}
