package kubernetes

import (
	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/config"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/ingress"
)

// Ingress has the settings for the conversion of Ingresses.
type Ingress struct {
	// Mode is as ingressControllerMode in a MeshConfig. Mode mesh takes this and the other settings from the MeshConfig of the cluster.
	Mode      string `yaml:"mode" default:"off" oneof:"off default strict mesh"`
	Namespace string `yaml:"namespace" default:"istio-system"`
	// Names is the version of the istiods whose names the outputs get. An istiod that converts the same
	// Ingresses itself then has each output once.
	Names string `yaml:"names" default:"current" oneof:"current 1.23"`
}

// What istiods convert by default.
const usualClass, usualService = "istio", "istio-ingressgateway"

// options returns the options of the conversion, nil for none.
func (i Ingress) options(domain string) *ingress.Options {
	// In mode mesh, nothing is converted before the MeshConfig is read.
	mode, ok := map[string]ingress.Mode{"default": ingress.ModeDefault, "strict": ingress.ModeStrict, modeMesh: ingress.ModeOff}[i.Mode]
	if !ok {
		return nil
	}
	return &ingress.Options{
		Mode: mode, Class: usualClass, Service: usualService, Namespace: i.Namespace, Domain: domain, Older: i.Names == "1.23",
	}
}

// check reports the mistakes of the settings.
func (i Ingress) check(mistakes config.Checker) {
	if len(validation.IsDNS1123Label(i.Namespace)) > 0 {
		mistakes.Errorf("ingress.namespace", "%q is not a namespace: at most 63 lower-case letters, digits and dashes, letters or digits first and last", i.Namespace)
	}
}

// checkImport reports kinds of outputs that import.profile or import.kinds leaves out.
func (i Ingress) checkImport(mistakes config.Checker, u config.Upstream) {
	if i.Mode == "off" {
		return
	}
	asked := intake.Asked(u)
	for _, kind := range ingressOutputs {
		if !asked(kind) {
			mistakes.Errorf("ingress.mode", "Ingresses become Gateways and VirtualServices, and import leaves out %s: add it, or set mode: off", kind)
		}
	}
}
