package kube

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/util/validation"

	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// Objection returns why Kubernetes, or the validation of an istiod, would refuse a resource that relays and istiods
// take over MCP. It is empty when neither would. It looks at names and labels, and at the ports of ServiceEntries.
func Objection(r *mirror.Resource) string {
	key, labels := r.Key(), []map[string]string{r.Metadata().Labels}
	switch {
	case key.Kind == mirror.MeshConfig:
		return ""
	case len(validation.IsDNS1123Subdomain(key.Name)) > 0:
		return fmt.Sprintf("its name is not of at most %d lower-case letters, digits, dashes and dots", validation.DNS1123SubdomainMaxLength)
	case key.Namespace != "" && len(validation.IsDNS1123Label(key.Namespace)) > 0:
		return fmt.Sprintf("its namespace is not of at most %d lower-case letters, digits and dashes", validation.DNS1123LabelMaxLength)
	}
	se := &networking.ServiceEntry{}
	if key.Kind.Kind == "ServiceEntry" && proto.Unmarshal(r.BodyValue(), se) == nil {
		if i := slices.IndexFunc(se.Ports, func(p *networking.ServicePort) bool { return p.GetNumber() == 0 }); i >= 0 {
			return fmt.Sprintf("its port %d has the number 0", i+1)
		}
		for _, e := range se.Endpoints {
			labels = append(labels, e.GetLabels())
		}
	}
	for _, of := range labels {
		for _, k := range slices.Sorted(maps.Keys(of)) {
			if len(validation.IsQualifiedName(k)) > 0 || len(validation.IsValidLabelValue(of[k])) > 0 {
				return fmt.Sprintf("the label %q has the value %q", text.Abbreviate(k), text.Abbreviate(of[k]))
			}
		}
	}
	return ""
}
