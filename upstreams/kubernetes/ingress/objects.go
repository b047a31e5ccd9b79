package ingress

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"meshrelay/internal/text"
)

// maxObjectBytes bounds an encoded object. API servers take no larger ones.
const maxObjectBytes = 4 << 20

// Name is the name of an object. Namespace is empty for IngressClasses.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Ingress is a networking.k8s.io/v1 Ingress, as far as it is converted. Nobody may change the
// Ingresses that a State has.
type Ingress struct {
	Name
	// Created may be zero: unknown. Such an Ingress comes before all others.
	Created time.Time
	// Annotation is the value of the annotation kubernetes.io/ingress.class, nil without it.
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

// TLS names the certificate of some hosts. No hosts are all hosts.
type TLS struct {
	Hosts  []string `json:"hosts"`
	Secret string   `json:"secretName"`
}

// Rule has the paths of a host. An empty host is every host.
type Rule struct {
	Host string `json:"host"`
	HTTP *HTTP  `json:"http"`
}

// HTTP has the paths of a Rule.
type HTTP struct {
	Paths []Path `json:"paths"`
}

// Path leads requests to a backend. Type is Exact, Prefix, ImplementationSpecific or empty.
type Path struct {
	Path    string  `json:"path"`
	Type    string  `json:"pathType"`
	Backend Backend `json:"backend"`
}

// Backend is where requests go. Service is nil for a resource that is no Service.
type Backend struct {
	Service *ServiceBackend `json:"service"`
}

// ServiceBackend names a Service in the namespace of the Ingress, and a port by number or by name.
type ServiceBackend struct {
	Name string `json:"name"`
	Port Port   `json:"port"`
}

// Port is a port of a Service. In a ServiceBackend, a number above 0 decides, and the name else.
type Port struct {
	Name   string `json:"name"`
	Number int32  `json:"number"`
}

// Class is a networking.k8s.io/v1 IngressClass.
type Class struct {
	Name       string
	Controller string
}

// Service is a core/v1 Service, as far as port names need it.
type Service struct {
	Name
	Ports []Port
}

type metadata struct {
	Name        string      `json:"name"`
	Namespace   string      `json:"namespace"`
	Created     time.Time   `json:"creationTimestamp"`
	Annotations annotations `json:"annotations"`
}

// annotations keeps one annotation of all.
type annotations struct{ class *string }

// UnmarshalJSON implements json.Unmarshaler.
func (a *annotations) UnmarshalJSON(b []byte) error {
	// A struct with the key would take other spellings of the key as well.
	var all map[string]string
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	if class, ok := all["kubernetes.io/ingress.class"]; ok {
		a.class = &class
	}
	return nil
}

// DecodeIngress decodes an Ingress from JSON. Fields that are not converted may be of any shape.
func DecodeIngress(b []byte) (*Ingress, error) {
	var o struct {
		Metadata metadata `json:"metadata"`
		Spec     Spec     `json:"spec"`
	}
	name, err := decode(b, "Ingress", &o, &o.Metadata)
	if err != nil {
		return nil, err
	}
	for i, rule := range o.Spec.Rules {
		if strings.Contains(rule.Host, "/") {
			return nil, fmt.Errorf("Ingress %s: spec.rules[%d].host: %q is not a host: it has a \"/\"", name, i, text.Abbreviate(rule.Host))
		}
	}
	return &Ingress{Name: name, Created: o.Metadata.Created, Annotation: o.Metadata.Annotations.class, Spec: o.Spec}, nil
}

// DecodeClass decodes an IngressClass from JSON.
func DecodeClass(b []byte) (*Class, error) {
	var o struct {
		Metadata metadata `json:"metadata"`
		Spec     struct {
			Controller string `json:"controller"`
		} `json:"spec"`
	}
	name, err := decode(b, "IngressClass", &o, &o.Metadata)
	if err != nil {
		return nil, err
	}
	return &Class{Name: name.Name, Controller: o.Spec.Controller}, nil
}

// DecodeService decodes the ports of a Service from JSON.
func DecodeService(b []byte) (*Service, error) {
	var o struct {
		Metadata metadata `json:"metadata"`
		Spec     struct {
			Ports []struct {
				Name string `json:"name"`
				Port int32  `json:"port"`
			} `json:"ports"`
		} `json:"spec"`
	}
	name, err := decode(b, "Service", &o, &o.Metadata)
	if err != nil {
		return nil, err
	}
	s := &Service{Name: name}
	for _, p := range o.Spec.Ports {
		s.Ports = append(s.Ports, Port{Name: p.Name, Number: p.Port})
	}
	return s, nil
}

// decode decodes an object of a kind, and checks the name that is then in its metadata.
func decode(b []byte, kind string, object any, m *metadata) (Name, error) {
	if len(b) > maxObjectBytes {
		return Name{}, fmt.Errorf("%s: larger than %d MiB", kind, maxObjectBytes>>20)
	}
	err := readable(json.Unmarshal(b, object))
	name := Name{Namespace: m.Namespace, Name: m.Name}
	if err == nil {
		err = name.check(kind != "IngressClass")
	}
	if err != nil {
		return Name{}, fmt.Errorf("%s %s: %w", kind, Name{text.Abbreviate(name.Namespace), text.Abbreviate(name.Name)}, err)
	}
	return name, nil
}

// readable words an error of the decoder for people who know the object, not the code.
func readable(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s: wrong type or out of range: %s", text.Abbreviate(wrong.Field), text.Abbreviate(wrong.Value))
	}
	return err
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
