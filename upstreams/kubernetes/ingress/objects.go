package ingress

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"meshrelay/internal/text"
)

// Name is the name of an object. Namespace is empty for IngressClasses.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Ingress has the fields of a networking.k8s.io/v1 Ingress that are converted. Nobody may change an Ingress
// in a State.
type Ingress struct {
	Name
	// Created is zero if unknown. Such an Ingress comes before all others.
	Created time.Time
	// Annotation is the value of the annotation kubernetes.io/ingress.class, nil if there is none.
	Annotation *string
	Spec       Spec
}

// Spec is the spec of an Ingress.
type Spec struct {
	// ClassName names an IngressClass, nil for none.
	ClassName      *string  `json:"ingressClassName"`
	DefaultBackend *Backend `json:"defaultBackend"`
	TLS            []TLS    `json:"tls"`
	Rules          []Rule   `json:"rules"`
}

// TLS names the certificate for some hosts. An empty list means all hosts.
type TLS struct {
	Hosts  []string `json:"hosts"`
	Secret string   `json:"secretName"`
}

// Rule has the paths for a host. An empty Host means every host.
type Rule struct {
	Host string `json:"host"`
	HTTP *HTTP  `json:"http"`
}

// HTTP has the paths of a Rule.
type HTTP struct {
	Paths []Path `json:"paths"`
}

// Path directs requests to a backend. Type is Exact, Prefix, ImplementationSpecific or empty.
type Path struct {
	Path    string  `json:"path"`
	Type    string  `json:"pathType"`
	Backend Backend `json:"backend"`
}

// Backend is the target of requests. Service is nil if the target is not a Service.
type Backend struct {
	Service *ServiceBackend `json:"service"`
}

// ServiceBackend names a Service in the namespace of the Ingress, and a port by number or by name.
type ServiceBackend struct {
	Name string `json:"name"`
	Port Port   `json:"port"`
}

// Port is a port of a Service. In a ServiceBackend, the number counts if it is above 0, otherwise the name.
type Port struct {
	Name   string `json:"name"`
	Number int32  `json:"number"`
}

// Class is a networking.k8s.io/v1 IngressClass.
type Class struct {
	Name       string
	Controller string
}

// Service has the ports of a core/v1 Service.
type Service struct {
	Name
	Ports []Port
}

// ClassAnnotation is the annotation of an Ingress with its class.
const ClassAnnotation = "kubernetes.io/ingress.class"

// IngressOf returns an Ingress with a name. annotations may have others, too. spec is JSON, or nil.
func IngressOf(name Name, created time.Time, annotations map[string]string, spec []byte) (*Ingress, error) {
	i := &Ingress{Name: name, Created: created}
	if err := decodeSpec(spec, "Ingress", name, &i.Spec, true); err != nil {
		return nil, err
	}
	if class, ok := annotations[ClassAnnotation]; ok {
		i.Annotation = &class
	}
	for at, rule := range i.Spec.Rules {
		if strings.Contains(rule.Host, "/") {
			return nil, fmt.Errorf("Ingress %s: spec.rules[%d].host: %q is not a host: it has a \"/\"", name, at, text.Abbreviate(rule.Host))
		}
	}
	return i, nil
}

// ClassOf returns an IngressClass with a name. spec is JSON, or nil.
func ClassOf(name Name, spec []byte) (*Class, error) {
	var v struct {
		Controller string `json:"controller"`
	}
	if err := decodeSpec(spec, "IngressClass", name, &v, false); err != nil {
		return nil, err
	}
	return &Class{Name: name.Name, Controller: v.Controller}, nil
}

// ServiceOf returns the ports of a Service with a name. spec is JSON, or nil.
func ServiceOf(name Name, spec []byte) (*Service, error) {
	var v struct {
		Ports []struct {
			Name string `json:"name"`
			Port int32  `json:"port"`
		} `json:"ports"`
	}
	if err := decodeSpec(spec, "Service", name, &v, true); err != nil {
		return nil, err
	}
	s := &Service{Name: name}
	for _, p := range v.Ports {
		s.Ports = append(s.Ports, Port{Name: p.Name, Number: p.Port})
	}
	return s, nil
}

// decodeSpec decodes the spec of an object of a kind, and checks its name. Its errors are for readers who know the
// object but not the Go types.
func decodeSpec(spec []byte, kind string, name Name, to any, namespaced bool) error {
	err := name.check(namespaced)
	if err == nil && len(spec) > 0 {
		err = json.Unmarshal(spec, to)
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		field := strings.TrimSuffix("spec."+wrong.Field, ".")
		err = fmt.Errorf("%s: wrong type or out of range: %s", text.Abbreviate(field), text.Abbreviate(wrong.Value))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, Name{text.Abbreviate(name.Namespace), text.Abbreviate(name.Name)}, err)
	}
	return nil
}

func (n Name) check(namespaced bool) error {
	switch {
	case n.Name == "":
		return errors.New("metadata.name: missing")
	case strings.Contains(n.Name, "/"):
		return errors.New(`metadata.name: has a "/"`)
	case namespaced && n.Namespace == "":
		return errors.New("metadata.namespace: missing")
	case strings.Contains(n.Namespace, "/"):
		return errors.New(`metadata.namespace: has a "/"`)
	}
	return nil
}
