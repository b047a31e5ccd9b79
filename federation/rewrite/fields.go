package rewrite

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshrelay/mirror"
)

// This file lists the references in Istio's kinds, by message, as istiod understands them. A test checks that
// each field whose name suggests a reference is in followedFields, or in the test's list of fields to keep.

// The roles.
var (
	// hostRole is a complete host.
	hostRole = &role{sees: effHosts | effNamespaces, text: (*scope).host}
	// shortHostRole is a host that istiod completes when it has no dots. routedHostRole is such a host of a
	// VirtualService, and sniHostRole is a server name that such a host must cover.
	shortHostRole  = &role{sees: effHosts | effNamespaces | effShortHosts, text: (*scope).shortHost}
	routedHostRole = &role{sees: effHosts | effNamespaces | effShortHosts, text: (*scope).virtualServiceHost}
	sniHostRole    = &role{sees: effHosts | effNamespaces | effShortHosts, text: (*scope).sniHost}
	hostPortRole   = &role{sees: effHosts | effNamespaces, text: (*scope).hostPort}
	// namespacedHostRole is "namespace/host", in a list that selects hosts.
	namespacedHostRole = &role{sees: effHosts | effNamespaces, list: (*scope).namespacedHost}
	// hostPatternRole is a host that may have a port, in a list that selects hosts.
	hostPatternRole = &role{sees: effHosts | effNamespaces, list: (*scope).hostPattern}
	urlRole         = &role{sees: effHosts | effNamespaces, text: (*scope).url}
	// authorityRole is a StringMatch for a host. A prefix is mapped if it is a whole host, a regex never.
	authorityRole = &role{sees: effHosts | effNamespaces, fields: map[protoreflect.Name]*role{"exact": hostPortRole, "prefix": hostPortRole}}
	// hostHeaderRole is a map of headers by name. Some headers are a host.
	hostHeaderRole = &role{sees: effHosts | effNamespaces, fields: map[protoreflect.Name]*role{"value": {sees: effHosts | effNamespaces, text: (*scope).hostHeader}}}

	namespaceRole = &role{sees: effNamespaces, text: (*scope).namespace}
	exportToRole  = &role{sees: effNamespaces, text: (*scope).visibility}
	// namespacePatternRole is a namespace that may have a wildcard, in a list.
	namespacePatternRole = &role{sees: effNamespaces, list: (*scope).namespacePattern}
	principalRole        = &role{sees: effNamespaces, list: (*scope).principal}
	serviceAccountRole   = &role{sees: effNamespaces, text: (*scope).serviceAccount}
	// plainDestinationRole is a Destination whose host istiod does not complete.
	plainDestinationRole = &role{sees: effHosts | effNamespaces, fields: map[protoreflect.Name]*role{"host": hostRole}}
	// conditionRole is a value whose meaning depends on the key of the condition.
	conditionRole = &role{sees: effHosts | effNamespaces, list: (*scope).condition}

	// gatewayRole is a reference to an Istio Gateway.
	gatewayRole = &role{sees: effNamespaces | effNames, text: (*scope).gateway}
	// nameRole is the name of a resource of a renamed kind.
	nameRole = &role{sees: effNames, text: (*scope).name}
	// targetNameRole is the name in a PolicyTargetReference.
	targetNameRole = &role{sees: effNames | effHosts | effNamespaces, text: (*scope).targetName}
	// waypointRole is the name of a Gateway, or "none".
	waypointRole = &role{sees: effNames, text: (*scope).waypoint}
	// referenceLabelsRole is a map of labels. Those in referenceLabels are mapped.
	referenceLabelsRole = &role{sees: effNamespaces | effNames, fields: map[protoreflect.Name]*role{"value": {sees: effNamespaces | effNames, text: (*scope).referenceLabel}}}

	clusterNameRole = &role{sees: effHosts | effNamespaces, text: (*scope).cluster}
	routeNameRole   = &role{sees: effHosts | effNamespaces | effNames, text: (*scope).routeConfiguration}
)

// followedFields has the fields that the rules map.
var followedFields = map[protoreflect.FullName]*role{
	"istio.networking.v1alpha3.ServiceEntry.hosts":     hostRole,
	"istio.networking.v1alpha3.ServiceEntry.export_to": exportToRole,
	// The client resolves a DNS name here.
	"istio.networking.v1alpha3.WorkloadEntry.address": hostRole,
	// The WorkloadEntries of the group get these labels.
	"istio.networking.v1alpha3.WorkloadGroup.ObjectMeta.labels": referenceLabelsRole,

	"istio.networking.v1alpha3.VirtualService.hosts":     routedHostRole,
	"istio.networking.v1alpha3.VirtualService.gateways":  gatewayRole,
	"istio.networking.v1alpha3.VirtualService.export_to": exportToRole,
	"istio.networking.v1alpha3.Destination.host":         shortHostRole,
	"istio.networking.v1alpha3.Delegate.name":            nameRole,
	"istio.networking.v1alpha3.Delegate.namespace":       namespaceRole,
	// The clients of this relay's istiods send it.
	"istio.networking.v1alpha3.HTTPMatchRequest.authority":          authorityRole,
	"istio.networking.v1alpha3.HTTPMatchRequest.gateways":           gatewayRole,
	"istio.networking.v1alpha3.HTTPMatchRequest.source_namespace":   namespaceRole,
	"istio.networking.v1alpha3.L4MatchAttributes.gateways":          gatewayRole,
	"istio.networking.v1alpha3.L4MatchAttributes.source_namespace":  namespaceRole,
	"istio.networking.v1alpha3.TLSMatchAttributes.gateways":         gatewayRole,
	"istio.networking.v1alpha3.TLSMatchAttributes.source_namespace": namespaceRole,
	// istiod wants it to match a host of the VirtualService, which may be short.
	"istio.networking.v1alpha3.TLSMatchAttributes.sni_hosts": sniHostRole,
	"istio.networking.v1alpha3.HTTPRedirect.authority":       hostPortRole,
	// An egress gateway routes by the authority that a sidecar wrote.
	"istio.networking.v1alpha3.HTTPRewrite.authority":        hostPortRole,
	"istio.networking.v1alpha3.Headers.HeaderOperations.set": hostHeaderRole,
	"istio.networking.v1alpha3.Headers.HeaderOperations.add": hostHeaderRole,

	"istio.networking.v1alpha3.DestinationRule.host":      shortHostRole,
	"istio.networking.v1alpha3.DestinationRule.export_to": exportToRole,
	// As with HTTPRewrite.authority: an egress gateway routes by it.
	"istio.networking.v1alpha3.ClientTLSSettings.sni":                    hostRole,
	"istio.networking.v1alpha3.TrafficPolicy.TunnelSettings.target_host": hostRole,

	"istio.networking.v1alpha3.IstioEgressListener.hosts": namespacedHostRole,
	// istiod looks for a service with exactly that host.
	"istio.networking.v1alpha3.OutboundTrafficPolicy.egress_proxy": plainDestinationRole,
	"istio.networking.v1alpha3.Server.hosts":                       namespacedHostRole,

	"istio.security.v1beta1.Source.namespaces":           namespacePatternRole,
	"istio.security.v1beta1.Source.not_namespaces":       namespacePatternRole,
	"istio.security.v1beta1.Source.principals":           principalRole,
	"istio.security.v1beta1.Source.not_principals":       principalRole,
	"istio.security.v1beta1.Source.service_accounts":     serviceAccountRole,
	"istio.security.v1beta1.Source.not_service_accounts": serviceAccountRole,
	"istio.security.v1beta1.Operation.hosts":             hostPatternRole,
	"istio.security.v1beta1.Operation.not_hosts":         hostPatternRole,
	"istio.security.v1beta1.Condition.values":            conditionRole,
	"istio.security.v1beta1.Condition.not_values":        conditionRole,
	// Envoy fetches it from the Service of that host, if there is one.
	"istio.security.v1beta1.JWTRule.jwks_uri": urlRole,

	"istio.type.v1beta1.PolicyTargetReference.name":      targetNameRole,
	"istio.type.v1beta1.PolicyTargetReference.namespace": namespaceRole,

	"istio.networking.v1alpha3.EnvoyFilter.ClusterMatch.service":                                 hostRole,
	"istio.networking.v1alpha3.EnvoyFilter.ClusterMatch.name":                                    clusterNameRole,
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterChainMatch.sni":                   hostRole,
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.gateway":                      gatewayRole,
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.name":                         routeNameRole,
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.VirtualHostMatch.name":        hostPortRole,
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.VirtualHostMatch.domain_name": hostPortRole,
}

// referenceLabels has the labels of a resource that the rules map.
var referenceLabels = map[string]*role{
	"istio.io/use-waypoint":                  waypointRole,
	"istio.io/use-waypoint-namespace":        namespaceRole,
	"istio.io/use-waypoint-canary":           waypointRole,
	"istio.io/use-waypoint-canary-namespace": namespaceRole,
}

// referenceAnnotations has the annotations that the rules map.
var referenceAnnotations = map[string]*role{
	// The WorkloadGroup of a WorkloadEntry.
	"istio.io/autoRegistrationGroup": nameRole,
}

// mapKey is the number of the key in the entry of a map.
const mapKey = 1

func (s *scope) hostHeader(v string) string {
	switch strings.ToLower(s.sibling(mapKey)) {
	case "host", ":authority":
		return s.hostPort(v)
	}
	return v
}

func (s *scope) waypoint(v string) string {
	if v == "none" {
		return v
	}
	return s.name(v)
}

func (s *scope) referenceLabel(v string) string {
	if r := referenceLabels[s.sibling(mapKey)]; r != nil && r.sees&s.effects != 0 {
		return r.text(s, v)
	}
	return v
}

var (
	conditionKey = number(&security.Condition{}, "key")
	targetGroup  = number(&typev1beta1.PolicyTargetReference{}, "group")
	targetKind   = number(&typev1beta1.PolicyTargetReference{}, "kind")
)

// number returns the number of a field. It panics for an unknown name.
func number(m proto.Message, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

// condition maps a value of a condition.
func (s *scope) condition(v string) (to string, more []string) {
	switch strings.ToLower(s.sibling(conditionKey)) {
	case "source.namespace":
		return s.namespacePattern(v)
	case "source.principal":
		return s.principal(v)
	case "source.serviceaccount":
		return s.serviceAccount(v), nil
	case "connection.sni", "request.headers[host]", "request.headers[:authority]":
		return s.hostPattern(v)
	}
	return v, nil
}

func (s *scope) targetName(v string) string {
	return s.referentName(mirror.Kind{Group: s.sibling(targetGroup), Kind: s.sibling(targetKind)}, v)
}
