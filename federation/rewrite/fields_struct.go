package rewrite

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
)

// This file lists the references in the kinds of the Gateway API, whose bodies are JSON objects. The rules do
// not map these fields:
//
//   - gatewayClassName and GatewayClass.controllerName: a controller depends on them;
//   - hostname and subjectAltNames in the validation of BackendTLSPolicy and XBackend: they are
//     names in certificates;
//   - the names of Secrets, ConfigMaps and Services: the relay does not serve or rename those. Their
//     namespaces are mapped;
//   - references to a Service that are not backends, when its domain is mapped: only a
//     backend can be a host;
//   - sectionName: a name within the referent;
//   - CORS origins, and headers in matches.

const (
	gatewayAPIGroup = "gateway.networking.k8s.io"
	gatewayXGroup   = "gateway.networking.x-k8s.io"
	istioGroup      = "networking.istio.io"

	// namespaceNameLabel is the label of a namespace that holds its name.
	namespaceNameLabel = "kubernetes.io/metadata.name"
)

var (
	gatewayClass  = mirror.Kind{Group: gatewayAPIGroup, Kind: "GatewayClass"}
	gatewayKind   = mirror.Kind{Group: gatewayAPIGroup, Kind: "Gateway"}
	serviceKind   = mirror.Kind{Kind: "Service"}
	secretKind    = mirror.Kind{Kind: "Secret"}
	serviceImport = mirror.Kind{Group: "multicluster.x-k8s.io", Kind: "ServiceImport"}
	// hostnameKind is no kind of resource. In a reference of this kind, the name is a host.
	hostnameKind = mirror.Kind{Group: istioGroup, Kind: "Hostname"}
)

type object = map[string]*structpb.Value

var (
	// parentRef, policyRef and secretRef refer to a resource. They differ in the default of the kind.
	parentRef  = reference(gatewayKind)
	policyRef  = reference(mirror.Kind{})
	secretRef  = reference(secretKind)
	backendRef = &role{sees: effNamespaces | effNames | effHosts, object: mapBackend}
	// namespaceSelector is a label selector of namespaces.
	namespaceSelector = &role{sees: effNamespaces, object: mapSelector}
	// gatewayAddress is a host, short or not, of the Service of a gateway.
	gatewayAddress = &role{sees: effNamespaces | effHosts, object: mapAddress}
)

func reference(otherwise mirror.Kind) *role {
	return &role{sees: effNamespaces | effNames | effHosts, object: func(s *scope, o object) bool {
		return mapReference(s, o, referentKind(o, otherwise))
	}}
}

// structField is the path of a field, with its role. A path has names of members, with "[]" after lists.
type structField struct {
	path string
	role *role
}

var (
	filterFields = []structField{
		{"requestMirror.backendRef", backendRef},
		{"externalAuth.backendRef", backendRef},
		{"requestRedirect.hostname", hostRole},
		{"urlRewrite.hostname", hostRole},
		{"extensionRef", policyRef},
	}
	routeFields = slices.Concat(
		[]structField{
			{"parentRefs[]", parentRef},
			{"hostnames[]", hostRole},
			{"rules[].backendRefs[]", backendRef},
		},
		under("rules[].filters[].", filterFields),
		under("rules[].backendRefs[].filters[].", filterFields),
	)
	listenerFields = []structField{
		{"listeners[].hostname", hostRole},
		{"listeners[].tls.certificateRefs[]", secretRef},
		{"listeners[].tls.frontendValidation.caCertificateRefs[]", policyRef},
		{"listeners[].allowedRoutes.namespaces.selector", namespaceSelector},
	}
)

// structFields has the fields that the rules map.
var structFields = map[mirror.Kind][]structField{
	{Group: gatewayAPIGroup, Kind: "GatewayClass"}: {{"parametersRef", policyRef}},
	{Group: gatewayAPIGroup, Kind: "Gateway"}: append([]structField{
		{"addresses[]", gatewayAddress},
		{"allowedListeners.namespaces.selector", namespaceSelector},
		{"infrastructure.parametersRef", policyRef},
		{"tls.backend.clientCertificateRef", secretRef},
		{"tls.frontend.default.validation.caCertificateRefs[]", policyRef},
		{"tls.frontend.perPort[].tls.validation.caCertificateRefs[]", policyRef},
	}, listenerFields...),
	{Group: gatewayAPIGroup, Kind: "ListenerSet"}: append([]structField{{"parentRef", parentRef}}, listenerFields...),
	{Group: gatewayXGroup, Kind: "XListenerSet"}:  append([]structField{{"parentRef", parentRef}}, listenerFields...),
	{Group: gatewayXGroup, Kind: "XMesh"}:         {{"parametersRef", policyRef}},
	{Group: gatewayAPIGroup, Kind: "HTTPRoute"}:   routeFields,
	{Group: gatewayAPIGroup, Kind: "GRPCRoute"}:   routeFields,
	{Group: gatewayAPIGroup, Kind: "TCPRoute"}:    routeFields,
	{Group: gatewayAPIGroup, Kind: "TLSRoute"}:    routeFields,
	{Group: gatewayAPIGroup, Kind: "UDPRoute"}:    routeFields,
	{Group: gatewayAPIGroup, Kind: "ReferenceGrant"}: {
		{"from[]", policyRef},
		{"to[]", policyRef},
	},
	{Group: gatewayAPIGroup, Kind: "BackendTLSPolicy"}: {
		{"targetRefs[]", policyRef},
		{"validation.caCertificateRefs[]", policyRef},
	},
	{Group: gatewayXGroup, Kind: "XBackendTrafficPolicy"}: {{"targetRefs[]", policyRef}},
	{Group: gatewayXGroup, Kind: "XBackend"}:              {{"externalHostname.hostname", hostRole}},
}

func under(prefix string, fields []structField) []structField {
	out := make([]structField, len(fields))
	for i, f := range fields {
		out[i] = structField{prefix + f.path, f.role}
	}
	return out
}

// walk maps the values at a path in place, and reports whether one changed.
func (r *role) walk(s *scope, path string, o object) bool {
	member, rest, _ := strings.Cut(path, ".")
	member, list := strings.CutSuffix(member, "[]")
	values := []*structpb.Value{o[member]}
	if list {
		values = o[member].GetListValue().GetValues()
	}
	changed := false
	for _, v := range values {
		switch inner := v.GetStructValue().GetFields(); {
		case rest != "":
			changed = r.walk(s, rest, inner) || changed
		case r.object == nil:
			changed = mapText(v, func(t string) string { return r.text(s, t) }) || changed
		case inner != nil:
			changed = r.object(s, inner) || changed
		}
	}
	return changed
}

// mapText maps a string in place, and reports whether it changed. It ignores other values.
func mapText(v *structpb.Value, f func(string) string) bool {
	t, ok := v.GetKind().(*structpb.Value_StringValue)
	if !ok {
		return false
	}
	to := f(t.StringValue)
	if to == t.StringValue {
		return false
	}
	v.Kind = &structpb.Value_StringValue{StringValue: to}
	return true
}

// referentKind returns the kind of a referent.
func referentKind(o object, otherwise mirror.Kind) mirror.Kind {
	k := otherwise
	if v, ok := o["group"]; ok {
		k.Group = v.GetStringValue()
	}
	if v, ok := o["kind"]; ok {
		k.Kind = v.GetStringValue()
	}
	return k
}

// referentName maps the name of a referent, if the relay knows and renames its kind.
func (s *scope) referentName(kind mirror.Kind, name string) string {
	if kind == hostnameKind {
		return s.host(name)
	}
	if _, known := mirror.LookupKind(kind); !known || !renamed(kind) {
		return name
	}
	return s.name(name)
}

func mapReference(s *scope, o object, kind mirror.Kind) bool {
	changed := mapText(o["name"], func(v string) string { return s.referentName(kind, v) })
	return mapText(o["namespace"], s.namespace) || changed
}

// mapBackend maps a reference to a backend. If the mapped host of a Service does not consist of its name and
// its mapped namespace, the reference becomes one to the host.
func mapBackend(s *scope, o object) bool {
	kind := referentKind(o, serviceKind)
	if (kind != serviceKind && kind != serviceImport) || s.effects&effHosts == 0 {
		return mapReference(s, o, kind)
	}
	name, ns := o["name"].GetStringValue(), cmp.Or(o["namespace"].GetStringValue(), s.here)
	if name == "" {
		return mapReference(s, o, kind)
	}
	domain := s.Domain
	if kind == serviceImport {
		domain = "clusterset.local"
	}
	to := s.host(name + "." + ns + ".svc." + domain)
	if to == name+"."+s.namespace(ns)+".svc."+domain {
		return mapReference(s, o, kind)
	}
	o["group"] = structpb.NewStringValue(hostnameKind.Group)
	o["kind"] = structpb.NewStringValue(hostnameKind.Kind)
	o["name"] = structpb.NewStringValue(to)
	delete(o, "namespace") // a host has none
	return true
}

// mapSelector maps the names of namespaces in a label selector.
func mapSelector(s *scope, o object) bool {
	changed := mapText(o["matchLabels"].GetStructValue().GetFields()[namespaceNameLabel], s.namespace)
	for _, e := range o["matchExpressions"].GetListValue().GetValues() {
		expr := e.GetStructValue().GetFields()
		if expr["key"].GetStringValue() != namespaceNameLabel {
			continue
		}
		for _, v := range expr["values"].GetListValue().GetValues() {
			changed = mapText(v, s.namespace) || changed
		}
	}
	return changed
}

// mapAddress maps an address of a Gateway. istiod treats an address without a type as a host, and completes it
// when it has no dots.
func mapAddress(s *scope, o object) bool {
	if t, ok := o["type"]; ok && t.GetStringValue() != "Hostname" {
		return false
	}
	return mapText(o["value"], s.shortHost)
}
