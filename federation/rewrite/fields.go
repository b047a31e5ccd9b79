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

// This file is the list of what the fields of Istio's kinds refer to, as istiod takes
// them. It is keyed by message, so that what several kinds share is said once. A field
// that looks as if it named something is in followedFields or in leftAlone; a test sees
// to that.

// The roles.
var (
	// hostRole is a host as it stands.
	hostRole = &role{sees: effHosts | effNamespaces, text: plain((*scope).host)}
	// shortHostRole is a host that istiod completes when it has no dots, routedHostRole such a
	// host of a VirtualService, sniHostRole one that must fit such a host.
	shortHostRole  = &role{sees: effHosts | effNamespaces | effShortHosts, text: plain((*scope).shortHost)}
	routedHostRole = &role{sees: effHosts | effNamespaces | effShortHosts, text: plain((*scope).virtualServiceHost)}
	sniHostRole    = &role{sees: effHosts | effNamespaces | effShortHosts, text: plain((*scope).sniHost)}
	hostPortRole   = &role{sees: effHosts | effNamespaces, text: plain((*scope).hostPort)}
	// namespacedHostRole is "namespace/host", in a list that selects hosts.
	namespacedHostRole = &role{sees: effHosts | effNamespaces, text: plain((*scope).namespacedHost), more: also((*scope).movedNamespacedHosts)}
	// hostPatternRole is a host that may have a port, in a list that selects hosts.
	hostPatternRole = &role{sees: effHosts | effNamespaces, text: plain((*scope).hostPort), more: also((*scope).movedHostPorts)}
	urlRole         = &role{sees: effHosts | effNamespaces, text: plain((*scope).url)}
	// authorityRole is a StringMatch for a host. A prefix follows when it is a whole host;
	// what else it stands for is not known, and neither is what a regex does.
	authorityRole = &role{sees: effHosts | effNamespaces, fields: map[protoreflect.Name]*role{"exact": hostPortRole, "prefix": hostPortRole}}
	// hostHeaderRole are headers by name, of which some are a host.
	hostHeaderRole = &role{sees: effHosts | effNamespaces, fields: map[protoreflect.Name]*role{"value": {sees: effHosts | effNamespaces, text: hostHeader}}}

	namespaceRole = &role{sees: effNamespaces, text: plain((*scope).namespace)}
	exportToRole  = &role{sees: effNamespaces, text: plain((*scope).visibility)}
	// namespacePatternRole is a namespace that may have a wildcard, in a list.
	namespacePatternRole = &role{sees: effNamespaces, text: first((*scope).namespacePattern), more: second((*scope).namespacePattern)}
	principalRole        = &role{sees: effNamespaces, text: first((*scope).principal), more: second((*scope).principal)}
	serviceAccountRole   = &role{sees: effNamespaces, text: plain((*scope).serviceAccount)}
	// plainDestinationRole is a Destination whose host istiod takes as it stands.
	plainDestinationRole = &role{sees: effHosts | effNamespaces, fields: map[protoreflect.Name]*role{"host": hostRole}}
	// conditionRole is a value whose meaning depends on the key of the condition.
	conditionRole = &role{sees: effHosts | effNamespaces, text: conditionText, more: conditionMore}

	// gatewayRole is a reference to an Istio Gateway.
	gatewayRole = &role{sees: effNamespaces | effNames, text: plain((*scope).gateway)}
	// nameRole is the name of a config of a kind that is renamed.
	nameRole = &role{sees: effNames, text: plain((*scope).name)}
	// targetNameRole is the name in a PolicyTargetReference.
	targetNameRole = &role{sees: effNames | effHosts | effNamespaces, text: targetName}
	// waypointRole is the name of a Gateway, or "none".
	waypointRole = &role{sees: effNames, text: plain(func(s *scope, v string) string {
		if v == "none" {
			return v
		}
		return s.name(v)
	})}
	// referenceLabelsRole are labels of which some refer to something.
	referenceLabelsRole = &role{sees: effNamespaces | effNames, fields: map[protoreflect.Name]*role{"value": {sees: effNamespaces | effNames, text: referenceLabel}}}

	clusterNameRole = &role{sees: effHosts | effNamespaces, text: plain((*scope).cluster)}
	routeNameRole   = &role{sees: effHosts | effNamespaces | effNames, text: plain((*scope).routeConfiguration)}
)

// followedFields are the fields that follow the rules.
var followedFields = map[protoreflect.FullName]*role{
	"istio.networking.v1alpha3.ServiceEntry.hosts":     hostRole,
	"istio.networking.v1alpha3.ServiceEntry.export_to": exportToRole,
	// A DNS name is looked up here.
	"istio.networking.v1alpha3.WorkloadEntry.address": hostRole,
	// The labels of the WorkloadEntries that are made from it.
	"istio.networking.v1alpha3.WorkloadGroup.ObjectMeta.labels": referenceLabelsRole,

	"istio.networking.v1alpha3.VirtualService.hosts":     routedHostRole,
	"istio.networking.v1alpha3.VirtualService.gateways":  gatewayRole,
	"istio.networking.v1alpha3.VirtualService.export_to": exportToRole,
	"istio.networking.v1alpha3.Destination.host":         shortHostRole,
	"istio.networking.v1alpha3.Delegate.name":            nameRole,
	"istio.networking.v1alpha3.Delegate.namespace":       namespaceRole,
	// What clients here call.
	"istio.networking.v1alpha3.HTTPMatchRequest.authority":          authorityRole,
	"istio.networking.v1alpha3.HTTPMatchRequest.gateways":           gatewayRole,
	"istio.networking.v1alpha3.HTTPMatchRequest.source_namespace":   namespaceRole,
	"istio.networking.v1alpha3.L4MatchAttributes.gateways":          gatewayRole,
	"istio.networking.v1alpha3.L4MatchAttributes.source_namespace":  namespaceRole,
	"istio.networking.v1alpha3.TLSMatchAttributes.gateways":         gatewayRole,
	"istio.networking.v1alpha3.TLSMatchAttributes.source_namespace": namespaceRole,
	// Short when the host of the VirtualService is: istiod demands that they fit.
	"istio.networking.v1alpha3.TLSMatchAttributes.sni_hosts": sniHostRole,
	"istio.networking.v1alpha3.HTTPRedirect.authority":       hostPortRole,
	// An egress gateway, which is configured here, routes by what a sidecar wrote.
	"istio.networking.v1alpha3.HTTPRewrite.authority":        hostPortRole,
	"istio.networking.v1alpha3.Headers.HeaderOperations.set": hostHeaderRole,
	"istio.networking.v1alpha3.Headers.HeaderOperations.add": hostHeaderRole,

	"istio.networking.v1alpha3.DestinationRule.host":      shortHostRole,
	"istio.networking.v1alpha3.DestinationRule.export_to": exportToRole,
	// As with HTTPRewrite.authority: an egress gateway routes by it.
	"istio.networking.v1alpha3.ClientTLSSettings.sni":                    hostRole,
	"istio.networking.v1alpha3.TrafficPolicy.TunnelSettings.target_host": hostRole,

	"istio.networking.v1alpha3.IstioEgressListener.hosts": namespacedHostRole,
	// istiod looks for a service of that very host.
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
	// Envoy fetches it from the Service of that host, when there is one.
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

// referenceLabels are the labels of a resource that follow the rules.
var referenceLabels = map[string]*role{
	"istio.io/use-waypoint":                  waypointRole,
	"istio.io/use-waypoint-namespace":        namespaceRole,
	"istio.io/use-waypoint-canary":           waypointRole,
	"istio.io/use-waypoint-canary-namespace": namespaceRole,
}

// referenceAnnotations are the annotations that do.
var referenceAnnotations = map[string]*role{
	// The WorkloadGroup of a WorkloadEntry.
	"istio.io/autoRegistrationGroup": nameRole,
}

// leftAlone are the fields that look as if they named a host, a namespace or a config, and
// why they stay as they are.
var leftAlone = map[protoreflect.FullName]string{
	// What certificates say is not changed by calling things otherwise here.
	"istio.networking.v1alpha3.ServiceEntry.subject_alt_names":      "what the certificates of the servers say",
	"istio.networking.v1alpha3.ClientTLSSettings.subject_alt_names": "what the certificates of the servers say",
	"istio.networking.v1alpha3.ServerTLSSettings.subject_alt_names": "what the certificates of the clients say",
	"istio.security.v1beta1.Source.trust_domains":                   "what the certificates of the clients say: a trust domain is no host",
	"istio.security.v1beta1.Source.not_trust_domains":               "what the certificates of the clients say: a trust domain is no host",
	"istio.security.v1beta1.Source.request_principals":              "what a token says: ISSUER/SUBJECT",
	"istio.security.v1beta1.Source.not_request_principals":          "what a token says: ISSUER/SUBJECT",
	"istio.security.v1beta1.JWTRule.issuer":                         "what a token says",

	// Secrets are not relayed.
	"istio.networking.v1alpha3.ClientTLSSettings.credential_name":         "a Secret beside the proxy",
	"istio.networking.v1alpha3.ServerTLSSettings.credential_name":         "a Secret beside the gateway",
	"istio.networking.v1alpha3.ServerTLSSettings.credential_names":        "Secrets beside the gateway",
	"istio.networking.v1alpha3.ServerTLSSettings.ca_cert_credential_name": "a Secret beside the gateway",

	// Outside of the mesh.
	"istio.networking.v1alpha3.CorsPolicy.allow_origin":  "what browsers say",
	"istio.networking.v1alpha3.CorsPolicy.allow_origins": "what browsers say",
	"istio.extensions.v1alpha1.WasmPlugin.url":           "an image that the agent pulls from a registry",
	"istio.extensions.v1alpha1.WasmConfig.url":           "an image that the agent pulls from a registry",

	// At the workload.
	"istio.networking.v1alpha3.HTTPHealthCheckConfig.host":            "the agent connects to the workload beside it",
	"istio.networking.v1alpha3.TCPHealthCheckConfig.host":             "the agent connects to the workload beside it",
	"istio.networking.v1alpha3.GrpcHealthCheckConfig.service":         "a gRPC service, not a host",
	"istio.networking.v1alpha3.IstioIngressListener.default_endpoint": "an address of the workload",
	"istio.networking.v1alpha3.Server.default_endpoint":               "an address of the workload",
	"istio.networking.v1alpha3.WorkloadEntry.service_account":         "an account without a namespace",

	// Addresses and paths.
	"istio.networking.v1alpha3.ServiceEntry.addresses": "IP addresses",
	"istio.networking.v1alpha3.HTTPMatchRequest.uri":   "a path",
	"istio.networking.v1alpha3.HTTPRedirect.uri":       "a path",
	"istio.networking.v1alpha3.HTTPRewrite.uri":        "a path",

	// Names of parts of the config itself, of headers, of ports and of providers.
	"istio.networking.v1alpha3.HTTPMatchRequest.name":                                           "a name for statistics",
	"istio.networking.v1alpha3.HTTPRoute.name":                                                  "a name within the VirtualService",
	"istio.networking.v1alpha3.Server.name":                                                     "a name for statistics",
	"istio.networking.v1alpha3.Subset.name":                                                     "a name within the DestinationRule",
	"istio.networking.v1alpha3.Port.name":                                                       "a port",
	"istio.networking.v1alpha3.ServicePort.name":                                                "a port",
	"istio.networking.v1alpha3.SidecarPort.name":                                                "a port",
	"istio.networking.v1alpha3.HTTPHeader.name":                                                 "a header",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie.name":           "a cookie",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.HTTPCookie.Attribute.name": "an attribute of a cookie",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.http_header_name":          "a header",
	"istio.networking.v1alpha3.LoadBalancerSettings.ConsistentHashLB.http_query_parameter_name": "a parameter",
	"istio.security.v1beta1.JWTHeader.name":                                                     "a header",
	"istio.telemetry.v1alpha1.Tracing.RequestHeader.name":                                       "a header",
	"istio.telemetry.v1alpha1.Tracing.Environment.name":                                         "a variable",
	"istio.telemetry.v1alpha1.ProviderRef.name":                                                 "a provider in the MeshConfig of the reader",
	"istio.security.v1beta1.AuthorizationPolicy.ExtensionProvider.name":                         "a provider in the MeshConfig of the reader",
	"istio.extensions.v1alpha1.EnvVar.name":                                                     "a variable",
	"istio.extensions.v1alpha1.WasmPlugin.plugin_name":                                          "a name within the image",
	"istio.extensions.v1alpha1.WasmConfig.plugin_name":                                          "a name within the image",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.name":                                  "ADDRESS_PORT",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.port_name":                             "a port",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterChainMatch.name":                 "a name that istiod makes of addresses",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.FilterMatch.name":                      "an Envoy filter",
	"istio.networking.v1alpha3.EnvoyFilter.ListenerMatch.SubFilterMatch.name":                   "an Envoy filter",
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.port_name":                   "a port",
	"istio.networking.v1alpha3.EnvoyFilter.RouteConfigurationMatch.RouteMatch.name":             "a name within the VirtualService",
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.RouteMatch.name":                       "a name within the VirtualService",
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.FilterMatch.name":                      "an Envoy filter",
	"istio.networking.v1alpha3.EnvoyFilter.WaypointMatch.FilterMatch.SubFilterMatch.name":       "an Envoy filter",

	// Opaque.
	"istio.networking.v1alpha3.EnvoyFilter.Patch.value":          "Envoy config, of which anything may be meant",
	"istio.networking.v1alpha3.EnvoyFilter.ProxyMatch.metadata":  "what the proxies say of themselves",
	"istio.networking.v1alpha3.HTTPMatchRequest.headers":         "istiod ignores the authority here",
	"istio.networking.v1alpha3.HTTPMatchRequest.without_headers": "istiod ignores the authority here",
}

// plain makes a role's text of a function that needs only the value.
func plain(f func(*scope, string) string) func(*scope, wireMessage, string) string {
	return func(s *scope, _ wireMessage, v string) string { return f(s, v) }
}

func also(f func(*scope, string) []string) func(*scope, wireMessage, string) []string {
	return func(s *scope, _ wireMessage, v string) []string { return f(s, v) }
}

func first(f func(*scope, string) (string, []string)) func(*scope, wireMessage, string) string {
	return func(s *scope, _ wireMessage, v string) string {
		to, _ := f(s, v)
		return to
	}
}

func second(f func(*scope, string) (string, []string)) func(*scope, wireMessage, string) []string {
	return func(s *scope, _ wireMessage, v string) []string {
		_, more := f(s, v)
		return more
	}
}

// mapKey is the number of the key in the entry of a map.
const mapKey = 1

func hostHeader(s *scope, entry wireMessage, v string) string {
	switch strings.ToLower(entry.text(mapKey)) {
	case "host", ":authority":
		return s.hostPort(v)
	}
	return v
}

func referenceLabel(s *scope, entry wireMessage, v string) string {
	if r := referenceLabels[entry.text(mapKey)]; r != nil && r.sees&s.effects != 0 {
		return r.text(s, nil, v)
	}
	return v
}

var (
	conditionKey = number(&security.Condition{}, "key")
	targetGroup  = number(&typev1beta1.PolicyTargetReference{}, "group")
	targetKind   = number(&typev1beta1.PolicyTargetReference{}, "kind")
)

// number returns the number of a field. It panics when there is none.
func number(m proto.Message, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

// conditionOf returns the role of a condition's values, nil when they stay.
func conditionOf(m wireMessage) *role {
	switch strings.ToLower(m.text(conditionKey)) {
	case "source.namespace":
		return namespacePatternRole
	case "source.principal":
		return principalRole
	case "source.serviceaccount":
		return serviceAccountRole
	case "connection.sni", "request.headers[host]", "request.headers[:authority]":
		return hostPatternRole
	}
	return nil
}

func conditionText(s *scope, m wireMessage, v string) string {
	if r := conditionOf(m); r != nil {
		return r.text(s, m, v)
	}
	return v
}

func conditionMore(s *scope, m wireMessage, v string) []string {
	if r := conditionOf(m); r != nil && r.more != nil {
		return r.more(s, m, v)
	}
	return nil
}

func targetName(s *scope, m wireMessage, v string) string {
	return s.referentName(mirror.Kind{Group: m.text(targetGroup), Kind: m.text(targetKind)}, v)
}
