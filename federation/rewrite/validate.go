package rewrite

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshrelay/federation"

	"k8s.io/apimachinery/pkg/util/validation"
)

// validate reports each wrong rule as a *federation.RuleError.
func (r *Rules) validate() error {
	m := &federation.Mistakes{}
	for _, from := range slices.Sorted(maps.Keys(r.Namespaces)) {
		m.Add(notLabel(from), "namespaces[%s]", from)
		m.Add(notLabel(r.Namespaces[from]), "namespaces[%s]", from)
	}
	// With a prefix, any name must still be a label.
	m.Add(notLabel(r.NamespacePrefix+"x"), "namespacePrefix")
	m.Add(notLabel(r.NamePrefix+"x"), "namePrefix")
	r.Labels.validate(m, "labels", func(v string) error { return wrong(v, validation.IsValidLabelValue(v)) })
	r.Annotations.validate(m, "annotations", func(string) error { return nil })
	for i, to := range r.ExportTo {
		switch to {
		case ".", "*", "~":
		default:
			m.Add(notLabel(to), "exportTo[%d]", i)
		}
	}
	for _, from := range slices.Sorted(maps.Keys(r.Hosts)) {
		m.Add(notDomain(from), "hosts[%s]", from)
		m.Add(notDomain(r.Hosts[from]), "hosts[%s]", from)
	}
	if r.Domain != "" {
		m.Add(notDomain(r.Domain), "domain")
	}
	r.Endpoints.validate(m)
	return m.Err()
}

func (e *Edit) validate(m *federation.Mistakes, field string, value func(string) error) {
	for _, k := range slices.Sorted(maps.Keys(e.Set)) {
		m.Add(wrong(k, validation.IsQualifiedName(strings.ToLower(k))), "%s.set[%s]", field, k)
		m.Add(value(e.Set[k]), "%s.set[%s]", field, k)
	}
	for i, k := range e.Remove {
		if k == "" || strings.Contains(strings.TrimSuffix(k, "*"), "*") {
			m.Add(fmt.Errorf(`%q: want a key, or a prefix of keys with "*" behind it`, k), "%s.remove[%d]", field, i)
		}
	}
}

func (t Endpoints) validate(m *federation.Mistakes) {
	m.Add(wrong(t.Network, validation.IsValidLabelValue(t.Network)), "endpoints.network")
	m.Add(wrong(t.Cluster, validation.IsValidLabelValue(t.Cluster)), "endpoints.cluster")
	if t.Locality == "" {
		return
	}
	parts := strings.Split(t.Locality, "/")
	if len(parts) > 3 || slices.Contains(parts, "") || strings.ContainsAny(t.Locality, " *") {
		m.Add(fmt.Errorf("%q: want region, region/zone or region/zone/subzone", t.Locality), "endpoints.locality")
	}
}

func notLabel(v string) error  { return wrong(v, validation.IsDNS1123Label(v)) }
func notDomain(v string) error { return wrong(v, validation.IsDNS1123Subdomain(v)) }

// wrong makes an error of the messages of a Kubernetes validation.
func wrong(v string, messages []string) error {
	if len(messages) == 0 {
		return nil
	}
	return fmt.Errorf("%q: %w", v, errors.New(messages[0]))
}
