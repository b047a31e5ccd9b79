package services

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unique"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/util/intstr"

	"meshrelay/federation"
	endpoints "meshrelay/federation/services"
	"meshrelay/internal/text"
	"meshrelay/internal/yamlpos"
	"meshrelay/upstreams/kubernetes/object"
)

// Input is a kind of objects on which services depend.
type Input int

// The inputs.
const (
	Services Input = iota
	Slices
	Pods
	Nodes
	Workloads // WorkloadEntries
	Namespaces
	Exports // ServiceExports
	inputs
)

var (
	kinds    = [inputs]string{"Service", "EndpointSlice", "Pod", "Node", "WorkloadEntry", "Namespace", "ServiceExport"}
	decoders = [inputs]func(*object.Object) (content any, size int, err error){decodeService, decodeSlice, decodePod, decodeNode, decodeEntry, decodeNamespace, decodeExport}
)

// Name is the name of an object. Namespace is empty for Nodes and Namespaces.
type Name struct{ Namespace, Name string }

// decoded is what a State needs of an object. It never changes.
type decoded struct {
	in      Input
	name    Name
	content any // *service, *slice, *workload (a pod or a WorkloadEntry), *node, *namespace or *export
	size    int
}

// Size implements object.Input. Texts count for each object that has them.
func (d *decoded) Size() int { return d.size }

const (
	// overhead is about how many bytes an object takes in addition to its content, perText a text in addition to its
	// bytes, and perValue a value of a list or a map.
	overhead, perText, perValue = 192, 104, 64
	// maxValues bounds the values of a spec or status before it is decoded. An EndpointSlice has 1000 endpoints at most.
	maxValues = 100_000
)

// Decode returns what a State needs of an object. Any goroutine may call it. The result does not refer to the object.
func Decode(in Input, o *object.Object) (object.Input, error) {
	d, err := &decoded{in: in, name: Name{o.Namespace, o.Name}}, o.Err
	if strings.Contains(o.Namespace+o.Name, "/") {
		err = errors.New(`its name or namespace has a "/"`)
	}
	if err == nil {
		d.content, d.size, err = decoders[in](o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kinds[in], text.Abbreviate(o.FullName()), err)
	}
	d.size += overhead + 2*len(o.FullName())
	return d, nil
}

// decodeField decodes a field of an object, if there is one.
func decodeField(value []byte, field string, to any) (err error) {
	if len(value) == 0 {
		return nil
	}
	if err = yamlpos.CheckJSON(value, maxValues); err == nil {
		err = json.Unmarshal(value, to)
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		for part := range strings.SplitSeq(text.Abbreviate(wrong.Field), ".") { // the names of Go begin with a capital
			field += "." + strings.ToLower(part[:min(1, len(part))]) + part[min(1, len(part)):]
		}
		field = strings.Trim(field, ".")
		err = fmt.Errorf("wrong type or out of range: %s", text.Abbreviate(wrong.Value))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

// sizeOf returns about the size of what a text has when it is decoded.
func sizeOf(text string) int {
	return len(text) + perValue*(strings.Count(text, ",")+strings.Count(text, "{"))
}

// symbol is a text that many objects share. Equal ones are equal, and in memory once.
type symbol struct{ of unique.Handle[string] }

func symbolOf(s string) symbol {
	if s == "" {
		return symbol{}
	}
	return symbol{unique.Make(s)}
}

func (s symbol) String() string {
	if s == (symbol{}) {
		return ""
	}
	return s.of.Value()
}

// service is a Service.
type service struct {
	created        time.Time
	labels         map[string]string
	annotations    map[string]string // of the ServiceEntry
	entry          string            // the encoded ServiceEntry, without hosts
	ports          []port            // without UDP
	selector       string            // of WorkloadEntries, as EncodeLabels returns it; empty for none
	local, publish bool              // internalTrafficPolicy is Local; publishNotReadyAddresses
	ipv6           bool              // the first family
}

type port struct {
	name   string
	number uint32
	target intstr.IntOrString
}

func decodeService(o *object.Object) (any, int, error) {
	var spec struct {
		Type, ExternalName, ClusterIP, InternalTrafficPolicy string
		TrafficDistribution                                  string
		IPFamilies                                           []string
		Selector                                             map[string]string
		PublishNotReadyAddresses                             bool
		Ports                                                []struct {
			Name, Protocol string
			AppProtocol    *string
			Port           uint32
			TargetPort     intstr.IntOrString
		}
	}
	if err := decodeField(o.Spec, "spec", &spec); err != nil {
		return nil, 0, err
	}
	exportTo, accounts := o.Annotations["networking.istio.io/exportTo"], o.Annotations["alpha.istio.io/canonical-serviceaccounts"]
	se := &networking.ServiceEntry{
		Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC, Addresses: []string{"0.0.0.0"},
		ExportTo: split(exportTo), SubjectAltNames: split(accounts),
	}
	if spec.Type == "ExternalName" && spec.ExternalName != "" {
		se.Location, se.Resolution = networking.ServiceEntry_MESH_EXTERNAL, networking.ServiceEntry_DNS
	}
	switch {
	case spec.ClusterIP == "None":
		se.Resolution = networking.ServiceEntry_NONE
	case spec.ClusterIP != "": // an istiod 1.23 makes a service of each address, with all endpoints
		se.Addresses[0] = spec.ClusterIP
	}
	v := &service{
		created: o.CreationTimestamp.Time, labels: maps.Clone(o.Labels), local: spec.InternalTrafficPolicy == "Local",
		publish: spec.PublishNotReadyAddresses, ipv6: len(spec.IPFamilies) > 0 && spec.IPFamilies[0] == "IPv6",
	}
	distribution := cmp.Or(spec.TrafficDistribution, o.Annotations[federation.DistributionAnnotation]) // istio pilot/pkg/model/service.go GetTrafficDistribution
	if distribution != "" {
		v.annotations = map[string]string{federation.DistributionAnnotation: distribution}
	}
	if len(spec.Selector) > 0 {
		se.WorkloadSelector = &networking.WorkloadSelector{Labels: spec.Selector}
	}
	if se.Resolution == networking.ServiceEntry_STATIC {
		v.selector = endpoints.EncodeLabels(spec.Selector)
	}
	for _, p := range spec.Ports {
		protocol := protocolOf(p.Port, *cmp.Or(p.AppProtocol, &p.Name), p.Protocol)
		se.Ports = append(se.Ports, &networking.ServicePort{Name: p.Name, Number: p.Port, Protocol: protocol})
		if protocol != udp {
			v.ports = append(v.ports, port{p.Name, p.Port, p.TargetPort})
		}
	}
	size := overhead + sizeOf(string(o.Spec)) + sizeOf(exportTo) + sizeOf(accounts) + 2*len(distribution)
	for key, value := range o.Labels {
		size += object.Entry + len(key) + len(value)
	}
	entry, err := proto.MarshalOptions{Deterministic: true}.Marshal(se)
	v.entry = string(entry)
	return v, size, err
}

// export is a ServiceExport. Its name is that of the Service, and nothing else in it counts.
type export struct{}

func decodeExport(*object.Object) (any, int, error) { return &export{}, 0, nil }

// split splits an annotation at commas. An empty one has no parts.
func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// protocols are the protocols that an istiod finds in names (istio pkg/config/protocol/instance.go Parse).
var protocols = map[string]string{
	"tcp": "TCP", "udp": udp, "grpc": "GRPC", "http": "HTTP", "http_proxy": "HTTP_PROXY", "http2": "HTTP2", "https": "HTTPS",
	"tls": "TLS", "mongo": "Mongo", "redis": "Redis", "mysql": "MySQL",
}

// appProtocols are the names that Kubernetes has standardised (k8s.io/api/core/v1 ServicePort). An istiod 1.23 knows only
// the first.
var appProtocols = map[string]string{"kubernetes.io/h2c": "HTTP2", "kubernetes.io/ws": "HTTP", "kubernetes.io/wss": "HTTPS"}

const udp = "UDP"

// protocolOf returns the protocol of a port. name is the appProtocol, or else the name of the port, which has no slash (istio
// pkg/config/kube/conversion.go ConvertProtocol).
func protocolOf(number uint32, name, protocol string) string {
	standard := appProtocols[name]
	name = strings.ToLower(name)
	prefix, _, _ := strings.Cut(name, "-")
	switch known, is := protocols[prefix]; {
	case protocol == udp:
		return udp
	case standard != "":
		return standard
	case strings.HasPrefix(name, "grpc-web"):
		return "GRPC-Web"
	case is:
		return known
	case number == 25, number == 53, number == 3306, number == 27017: // SMTP, DNS, MySQL, MongoDB: detection would break them
		return "TCP"
	}
	return "UnsupportedProtocol"
}
