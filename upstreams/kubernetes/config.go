package kubernetes

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/ingress"
)

// maxNamespaces bounds the namespaces of one upstream: each kind has a watch for each namespace.
const maxNamespaces = 64

// Config is the section of an upstream that is the API server of a Kubernetes cluster.
type Config struct {
	Cluster config.Cluster `yaml:"cluster"`
	// Namespaces are the namespaces to watch, for identities that may not read others. Empty means all, with
	// one watch.
	Namespaces []string `yaml:"namespaces,omitempty"`
	// Selector is a label selector for objects. The server applies it.
	Selector string `yaml:"selector"`
	// Kinds are group/Kind to mirror in addition to the well-known ones.
	Kinds []string `yaml:"kinds,omitempty"`
	// DiscoverySelectors are label selectors for namespaces. Objects in other namespaces are not mirrored.
	// Empty means all namespaces.
	DiscoverySelectors []string `yaml:"discoverySelectors,omitempty"`
	Ingress            Ingress  `yaml:"ingress"`
	// Status is the type of the condition that the relay writes into the status of each object. Empty: none.
	Status string `yaml:"status"`
	// ClusterUID is the UID of the namespace kube-system in the cluster to mirror. Empty means the first
	// cluster that the kubeconfig led to.
	ClusterUID string `yaml:"clusterUID"`
	// Account is the directory of the service account for Cluster.InCluster. Empty means the usual one.
	Account string `yaml:"-"`
	// Found has the kubeconfig of a found cluster. It is nil for an upstream in the config file.
	Found *apiserver.Kubeconfig `yaml:"-"`
}

// credentials returns the credentials of the section.
func (c *Config) credentials() *apiserver.Credentials {
	return &apiserver.Credentials{Cluster: c.Cluster, Account: c.Account, Found: c.Found}
}

// Connection returns the connection to the API server, which that of a sink is compared with.
func (c *Config) Connection() config.Cluster { return c.Cluster }

// sectionOf returns the section of an upstream of this kind.
func sectionOf(u config.Upstream) *Config { return u.Source.(*Config) }

// Kind implements config.Source.
func (*Config) Kind() string { return "kubernetes" }

// Relayed implements config.Source.
func (*Config) Relayed() bool { return false }

// OfCluster tells package config that the resources are those of a cluster.
func (*Config) OfCluster() bool { return true }

// groupKind matches group/Kind, the form of a kind that is not well known.
var groupKind = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Z][A-Za-z0-9]{0,62}$`)

// Check implements config.Source.
func (c *Config) Check(mistakes config.Checker, u config.Upstream, _ []config.Upstream) {
	mistakes.Cluster("cluster", c.Cluster)
	c.check(mistakes, u)
}

// CheckCluster implements config.Connector.
func (*Config) CheckCluster(c config.Cluster) error {
	return (&apiserver.Credentials{Cluster: c}).Check()
}

// CheckTemplate implements config.Template.
func (c *Config) CheckTemplate(mistakes config.Checker, template config.Upstream) {
	if !reflect.ValueOf(c.Cluster).IsZero() {
		mistakes.Errorf("cluster", "found clusters bring their own connection, and clusters[].allowExec names their programs: leave it out")
	}
	c.check(mistakes, template)
}

// check reports mistakes in all fields but those of the connection.
func (c *Config) check(mistakes config.Checker, u config.Upstream) {
	c.Ingress.checkImport(mistakes, u)
	if len(c.Namespaces) > maxNamespaces {
		mistakes.Errorf("namespaces", "%d namespaces, and each is a watch for every kind: name at most %d, or none and select by import.namespaces", len(c.Namespaces), maxNamespaces)
	}
	for i, ns := range c.Namespaces {
		checkNamespace(mistakes, fmt.Sprintf("namespaces[%d]", i), ns)
	}
	if _, err := labels.Parse(c.Selector); err != nil {
		mistakes.Errorf("selector", "%q is not a label selector: %v", c.Selector, err)
	}
	if len(c.Namespaces) > 0 && len(c.DiscoverySelectors) > 0 {
		mistakes.Errorf("discoverySelectors", "namespaces and discoverySelectors are both set: leave out one")
	}
	for i, text := range c.DiscoverySelectors {
		if selector, err := labels.Parse(text); err != nil {
			mistakes.Errorf(fmt.Sprintf("discoverySelectors[%d]", i), "%q is not a label selector: %v", text, err)
		} else if selector.Empty() {
			mistakes.Errorf(fmt.Sprintf("discoverySelectors[%d]", i), "it selects every namespace: leave discoverySelectors out")
		}
	}
	if c.ClusterUID != "" && !apiserver.UID.MatchString(c.ClusterUID) {
		mistakes.Errorf("clusterUID", "it is not the UID of a cluster, which has 1 to 128 letters, digits and dashes: kubectl get namespace kube-system -o jsonpath='{.metadata.uid}' prints it")
	}
	checkNamespace(mistakes, "ingress.namespace", c.Ingress.Namespace)
	if problems := validation.IsQualifiedName(c.Status); c.Status != "" && len(problems) > 0 {
		mistakes.Errorf("status", "%q is not a type of a condition, such as meshrelay.io/Distributed: %s", c.Status, problems[0])
	}
	for i, k := range c.Kinds {
		field := fmt.Sprintf("kinds[%d]", i)
		kind, ok := kindOf(k)
		if !ok {
			mistakes.Errorf(field, "%q is not group/Kind, for example example.com/Widget", k)
		} else if _, known := mirror.LookupKind(kind); known {
			mistakes.Errorf(field, "%q is mirrored anyway: leave it out", k)
		}
	}
}

// checkNamespace reports that a field has no name of a namespace.
func checkNamespace(mistakes config.Checker, field, ns string) {
	if len(validation.IsDNS1123Label(ns)) > 0 {
		mistakes.Errorf(field, "%q is not a namespace: at most 63 lower-case letters, digits and dashes, letters or digits first and last", ns)
	}
}

func kindOf(text string) (k mirror.Kind, ok bool) {
	group, name, _ := strings.Cut(text, "/")
	return mirror.Kind{Group: group, Kind: name}, groupKind.MatchString(text)
}

// Ingress has the settings for the conversion of Ingresses.
type Ingress struct {
	// Mode is as ingressControllerMode in a MeshConfig. Mode mesh takes this and the other settings from the MeshConfig of the cluster.
	Mode      string `yaml:"mode" default:"off" oneof:"off default strict mesh"`
	Namespace string `yaml:"namespace" default:"istio-system"`
	// Names is the version of the istiods whose names the outputs get. An istiod that converts the same
	// Ingresses itself then has each output once.
	Names string `yaml:"names" default:"current" oneof:"current 1.23"`
}

// options returns the options of the conversion, nil for none. Class and Service are those that istiods have by default.
func (i Ingress) options(domain string) *ingress.Options {
	// In mode mesh, nothing is converted before the MeshConfig is read.
	mode, ok := map[string]ingress.Mode{"default": ingress.ModeDefault, "strict": ingress.ModeStrict, modeMesh: ingress.ModeOff}[i.Mode]
	if !ok {
		return nil
	}
	return &ingress.Options{Mode: mode, Namespace: i.Namespace, Domain: domain, Older: i.Names == "1.23"}
}

// checkImport reports kinds of outputs that import.profile or import.kinds leaves out.
func (i Ingress) checkImport(mistakes config.Checker, u config.Upstream) {
	if i.Mode == "off" {
		return
	}
	asked := records.Asked(u)
	for _, kind := range ingressOutputs {
		if !asked(kind) {
			mistakes.Errorf("ingress.mode", "Ingresses become Gateways and VirtualServices, and import leaves out %s: add it, or set mode: off", kind)
		}
	}
}
