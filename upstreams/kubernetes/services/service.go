package services

import (
	"cmp"
	"maps"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/util/intstr"

	endpoints "meshrelay/federation/services"
	"meshrelay/upstreams/kubernetes/object"
)

// service is a Service.
type service struct {
	created  time.Time
	labels   map[string]string
	entry    *networking.ServiceEntry // without host; nobody changes it
	targets  []intstr.IntOrString     // of the ports
	selector string                   // of WorkloadEntries, as EncodeLabels returns it; empty for none
	local    bool                     // internalTrafficPolicy is Local
	publish  bool                     // publishNotReadyAddresses
	ipv6     bool                     // the first family
}

func decodeService(o *object.Object) (any, int, error) {
	var spec struct {
		Type, ExternalName, ClusterIP, InternalTrafficPolicy string
		ClusterIPs, IPFamilies                               []string
		Selector                                             map[string]string
		PublishNotReadyAddresses                             bool
		Ports                                                []struct {
			Name, Protocol string
			AppProtocol    *string
			Port           uint32
			TargetPort     intstr.IntOrString
		}
	}
	size, err := decodeField(o.Spec, "spec", &spec)
	if err != nil {
		return nil, 0, err
	}
	se := &networking.ServiceEntry{
		Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC, Addresses: []string{"0.0.0.0"},
		ExportTo: split(o.Annotations["networking.istio.io/exportTo"]), SubjectAltNames: split(o.Annotations["alpha.istio.io/canonical-serviceaccounts"]),
	}
	if spec.Type == "ExternalName" && spec.ExternalName != "" {
		se.Location, se.Resolution = networking.ServiceEntry_MESH_EXTERNAL, networking.ServiceEntry_DNS
	}
	switch {
	case spec.ClusterIP == "None":
		se.Resolution = networking.ServiceEntry_NONE
	case spec.ClusterIP != "" && len(spec.ClusterIPs) > 1:
		se.Addresses = spec.ClusterIPs
	case spec.ClusterIP != "":
		se.Addresses[0] = spec.ClusterIP
	}
	if len(spec.Selector) > 0 {
		se.WorkloadSelector = &networking.WorkloadSelector{Labels: spec.Selector}
	}
	v := &service{
		created: o.CreationTimestamp.Time, labels: maps.Clone(o.Labels), entry: se, local: spec.InternalTrafficPolicy == "Local",
		publish: spec.PublishNotReadyAddresses, ipv6: len(spec.IPFamilies) > 0 && spec.IPFamilies[0] == "IPv6",
	}
	if se.Resolution == networking.ServiceEntry_STATIC {
		v.selector = endpoints.EncodeLabels(spec.Selector)
	}
	for _, p := range spec.Ports {
		protocol := protocolOf(p.Port, cmp.Or(p.AppProtocol, &p.Name), p.Protocol)
		se.Ports = append(se.Ports, &networking.ServicePort{Name: p.Name, Number: p.Port, Protocol: protocol})
		v.targets = append(v.targets, p.TargetPort)
	}
	for key, value := range o.Labels {
		size += object.Entry + len(key) + len(value)
	}
	for _, list := range [][]string{se.ExportTo, se.SubjectAltNames} {
		for _, s := range list {
			size += perValue + len(s)
		}
	}
	return v, size + overhead, nil
}

// split splits an annotation at commas. An empty one has no parts.
func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// protocols are the protocols that an istiod finds in names (istio pkg/config/protocol/instance.go Parse).
var protocols = map[string]string{
	"tcp": "TCP", "udp": udp, "grpc": "GRPC", "grpc-web": "GRPC-Web", "http": "HTTP", "http_proxy": "HTTP_PROXY", "http2": "HTTP2",
	"https": "HTTPS", "tls": "TLS", "mongo": "Mongo", "redis": "Redis", "mysql": "MySQL", "kubernetes.io/h2c": "HTTP2",
}

const udp = "UDP"

// protocolOf returns the protocol of a port. name is the appProtocol, or else the name of the port (istio
// pkg/config/kube/conversion.go ConvertProtocol).
func protocolOf(number uint32, name *string, protocol string) string {
	if protocol == udp {
		return udp
	}
	of := strings.ToLower(*name)
	prefix, _, _ := strings.Cut(of, "-")
	switch known, is := protocols[prefix]; {
	case strings.HasPrefix(of, "grpc-web"):
		return protocols["grpc-web"]
	case is:
		return known
	case number == 25, number == 53, number == 3306, number == 27017: // SMTP, DNS, MySQL, MongoDB: detection would break them
		return protocols["tcp"]
	}
	return "UnsupportedProtocol"
}
