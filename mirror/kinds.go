package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	extensions "istio.io/api/extensions/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshrelay/internal/text"
)

// KindInfo describes a well-known kind.
type KindInfo struct {
	Kind Kind
	// Versions are the API versions of the kind, newest first. All have the same message, so a
	// resource that is mirrored in one version is served in every version.
	Versions []string
	// Plural and ShortNames are the names that kubectl accepts, lower case.
	Plural        string
	ShortNames    []string
	ClusterScoped bool // resources of the kind have no namespace

	message proto.Message // a nil pointer of the body's message type
	shape   func() *shape // of an encoded body, compiled on first use
	order   int           // in the table

	typeURLs []string // made once, for all upstreams
}

// NewBody returns a new, empty message for a body of the kind: a google.protobuf.Struct for
// kinds that Kubernetes defines without protobuf (Gateway API).
func (i *KindInfo) NewBody() proto.Message {
	return i.message.ProtoReflect().New().Interface()
}

// TypeURLs returns the kind's type URLs, newest version first. Nobody may change them.
func (i *KindInfo) TypeURLs() []string { return i.typeURLs }

const (
	networking = "networking.istio.io"
	securityIO = "security.istio.io"
	gatewayAPI = "gateway.networking.k8s.io"
	gatewayX   = "gateway.networking.x-k8s.io"
)

// wellKnown lists every kind that istiod 1.23 and 1.32 subscribe to, and the Gateway API kinds, in
// sending order: referenced kinds before those that refer to them (PROTOCOL S20).
var wellKnown = []*KindInfo{
	{Kind: MeshConfig, Versions: []string{"v1alpha1"}, Plural: "meshconfigs", message: (*mesh.MeshConfig)(nil)},

	{Kind: Kind{gatewayAPI, "GatewayClass"}, Versions: []string{"v1", "v1beta1"}, Plural: "gatewayclasses", ShortNames: []string{"gc"}, ClusterScoped: true, message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayX, "XMesh"}, Versions: []string{"v1alpha1"}, Plural: "xmeshes", ShortNames: []string{"mesh"}, ClusterScoped: true, message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayAPI, "ReferenceGrant"}, Versions: []string{"v1", "v1beta1"}, Plural: "referencegrants", ShortNames: []string{"refgrant"}, message: (*structpb.Struct)(nil)},

	{Kind: Kind{networking, "WorkloadGroup"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "workloadgroups", ShortNames: []string{"wg"}, message: (*networkingv1alpha3.WorkloadGroup)(nil)},
	{Kind: Kind{networking, "WorkloadEntry"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "workloadentries", ShortNames: []string{"we"}, message: (*networkingv1alpha3.WorkloadEntry)(nil)},
	{Kind: Kind{networking, "ServiceEntry"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "serviceentries", ShortNames: []string{"se"}, message: (*networkingv1alpha3.ServiceEntry)(nil)},
	{Kind: Kind{gatewayX, "XBackend"}, Versions: []string{"v1alpha1"}, Plural: "xbackends", ShortNames: []string{"xbackend"}, message: (*structpb.Struct)(nil)},

	{Kind: Kind{securityIO, "PeerAuthentication"}, Versions: []string{"v1", "v1beta1"}, Plural: "peerauthentications", ShortNames: []string{"pa"}, message: (*security.PeerAuthentication)(nil)},
	{Kind: Kind{networking, "DestinationRule"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "destinationrules", ShortNames: []string{"dr"}, message: (*networkingv1alpha3.DestinationRule)(nil)},
	{Kind: Kind{gatewayAPI, "BackendTLSPolicy"}, Versions: []string{"v1", "v1alpha3"}, Plural: "backendtlspolicies", ShortNames: []string{"btlspolicy"}, message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayX, "XBackendTrafficPolicy"}, Versions: []string{"v1alpha1"}, Plural: "xbackendtrafficpolicies", ShortNames: []string{"xbtrafficpolicy"}, message: (*structpb.Struct)(nil)},

	{Kind: Kind{networking, "Sidecar"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "sidecars", message: (*networkingv1alpha3.Sidecar)(nil)},
	{Kind: Kind{networking, "ProxyConfig"}, Versions: []string{"v1beta1"}, Plural: "proxyconfigs", message: (*networkingv1beta1.ProxyConfig)(nil)},
	{Kind: Kind{securityIO, "RequestAuthentication"}, Versions: []string{"v1", "v1beta1"}, Plural: "requestauthentications", ShortNames: []string{"ra"}, message: (*security.RequestAuthentication)(nil)},
	{Kind: Kind{securityIO, "AuthorizationPolicy"}, Versions: []string{"v1", "v1beta1"}, Plural: "authorizationpolicies", ShortNames: []string{"ap"}, message: (*security.AuthorizationPolicy)(nil)},
	{Kind: Kind{"telemetry.istio.io", "Telemetry"}, Versions: []string{"v1", "v1alpha1"}, Plural: "telemetries", ShortNames: []string{"telemetry"}, message: (*telemetry.Telemetry)(nil)},
	{Kind: Kind{"extensions.istio.io", "WasmPlugin"}, Versions: []string{"v1alpha1"}, Plural: "wasmplugins", message: (*extensions.WasmPlugin)(nil)},
	{Kind: Kind{"extensions.istio.io", "TrafficExtension"}, Versions: []string{"v1alpha1"}, Plural: "trafficextensions", message: (*extensions.TrafficExtension)(nil)},
	{Kind: Kind{networking, "EnvoyFilter"}, Versions: []string{"v1alpha3"}, Plural: "envoyfilters", message: (*networkingv1alpha3.EnvoyFilter)(nil)},

	{Kind: Kind{networking, "Gateway"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "gateways", ShortNames: []string{"gw"}, message: (*networkingv1alpha3.Gateway)(nil)},
	{Kind: Kind{gatewayAPI, "Gateway"}, Versions: []string{"v1", "v1beta1"}, Plural: "gateways", ShortNames: []string{"gtw"}, message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayAPI, "ListenerSet"}, Versions: []string{"v1"}, Plural: "listenersets", ShortNames: []string{"lset"}, message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayX, "XListenerSet"}, Versions: []string{"v1alpha1"}, Plural: "xlistenersets", message: (*structpb.Struct)(nil)},

	{Kind: Kind{networking, "VirtualService"}, Versions: []string{"v1", "v1beta1", "v1alpha3"}, Plural: "virtualservices", ShortNames: []string{"vs"}, message: (*networkingv1alpha3.VirtualService)(nil)},
	{Kind: Kind{gatewayAPI, "HTTPRoute"}, Versions: []string{"v1", "v1beta1"}, Plural: "httproutes", message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayAPI, "GRPCRoute"}, Versions: []string{"v1", "v1alpha2"}, Plural: "grpcroutes", message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayAPI, "TCPRoute"}, Versions: []string{"v1", "v1alpha2"}, Plural: "tcproutes", message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayAPI, "TLSRoute"}, Versions: []string{"v1", "v1alpha3", "v1alpha2"}, Plural: "tlsroutes", message: (*structpb.Struct)(nil)},
	{Kind: Kind{gatewayAPI, "UDPRoute"}, Versions: []string{"v1", "v1alpha2"}, Plural: "udproutes", message: (*structpb.Struct)(nil)},
}

var wellKnownByKind = func() map[Kind]*KindInfo {
	m := make(map[Kind]*KindInfo, len(wellKnown))
	for i, info := range wellKnown {
		info.order = i
		for _, v := range info.Versions {
			info.typeURLs = append(info.typeURLs, info.Kind.TypeURL(v))
		}
		info.shape = sync.OnceValue(func() *shape {
			return shapeOf(info.message.ProtoReflect().Descriptor(), map[protoreflect.FullName]*shape{})
		})
		m[info.Kind] = info
	}
	return m
}()

// Kinds returns the well-known kinds in sending order (PROTOCOL S20).
func Kinds() []*KindInfo { return slices.Clone(wellKnown) }

// LookupKind returns the KindInfo of a well-known kind. The relay also serves other kinds, and
// does not check their bodies.
func LookupKind(k Kind) (*KindInfo, bool) {
	info, ok := wellKnownByKind[k]
	return info, ok
}

// CompareKinds orders kinds for sending: the well-known ones in the order of Kinds, then others by name.
func CompareKinds(a, b Kind) int {
	ia, oka := wellKnownByKind[a]
	ib, okb := wellKnownByKind[b]
	switch {
	case oka && okb:
		return ia.order - ib.order
	case oka:
		return -1
	case okb:
		return 1
	}
	return strings.Compare(a.String(), b.String())
}

// CompareKeys orders keys by kind, namespace and name.
func CompareKeys(a, b Key) int {
	return cmp.Or(CompareKinds(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// MatchKinds returns the well-known kinds that word may mean, as in kubectl: a kind, plural or short name in
// any case, with or without its group ("kind.group"). The Istio kind comes before the Gateway API kind of
// the same name.
func MatchKinds(word string) []*KindInfo {
	word = strings.ToLower(word)
	name, group, _ := strings.Cut(word, ".")
	var found []*KindInfo
	for _, info := range wellKnown {
		if group != "" && group != info.Kind.Group {
			continue
		}
		if name == strings.ToLower(info.Kind.Kind) || name == info.Plural || slices.Contains(info.ShortNames, name) {
			found = append(found, info)
		}
	}
	return found
}

// ParseKinds returns the kinds that a word of a rule means. The word is one for MatchKinds, or "group/Kind",
// which may be a kind that is not well known.
func ParseKinds(word string) ([]Kind, error) {
	if group, name, ok := strings.Cut(word, "/"); ok {
		if group == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("kind %q: want group/Kind, for example networking.istio.io/ServiceEntry", text.Abbreviate(word))
		}
		for _, info := range wellKnown {
			if strings.EqualFold(info.Kind.String(), word) {
				return []Kind{info.Kind}, nil
			}
		}
		kinds := make([]Kind, 1)
		return kinds, kinds[0].UnmarshalText([]byte(word))
	}
	var kinds []Kind
	for _, info := range MatchKinds(word) {
		kinds = append(kinds, info.Kind)
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("unknown kind %q: a kind that is not well known is given as group/Kind, for example example.com/Widget", text.Abbreviate(word))
	}
	return kinds, nil
}
