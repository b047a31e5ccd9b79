package rewrite

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/mirror"
)

// naming matches the names of fields that may name a host, a namespace, a service, a
// gateway or another config.
var naming = regexp.MustCompile(`host|domain|namespace|gateway|service|address|authority|(^|_)sni|principal|export|fqdn|ur[il](_|$)|(^|_)sans?(_|$)|alt_name|target|delegate|issuer|endpoint$|origin|credential|(^|_)name$|_names$`)

// istioBodies returns the messages of the kinds that have one of their own. A MeshConfig
// is never rewritten.
func istioBodies() []protoreflect.MessageDescriptor {
	var out []protoreflect.MessageDescriptor
	for _, info := range mirror.Kinds() {
		body := info.NewBody()
		if _, isStruct := body.(*structpb.Struct); !isStruct && info.Kind != mirror.MeshConfig {
			out = append(out, body.ProtoReflect().Descriptor())
		}
	}
	return out
}

// reachable returns all fields of the messages and of those in them.
func reachable(bodies []protoreflect.MessageDescriptor) map[protoreflect.FullName]protoreflect.FieldDescriptor {
	fields := map[protoreflect.FullName]protoreflect.FieldDescriptor{}
	seen := map[protoreflect.FullName]bool{}
	var visit func(protoreflect.MessageDescriptor)
	visit = func(md protoreflect.MessageDescriptor) {
		if seen[md.FullName()] || strings.HasPrefix(string(md.FullName()), "google.protobuf.") {
			return
		}
		seen[md.FullName()] = true
		for i := range md.Fields().Len() {
			f := md.Fields().Get(i)
			fields[f.FullName()] = f
			if inner := innerMessage(f); inner != nil {
				visit(inner)
			}
		}
	}
	for _, md := range bodies {
		visit(md)
	}
	return fields
}

func innerMessage(f protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if f.IsMap() {
		return f.MapValue().Message()
	}
	return f.Message()
}

func holdsText(f protoreflect.FieldDescriptor) bool {
	if f.IsMap() {
		f = f.MapValue()
	}
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		return true
	case protoreflect.MessageKind:
		switch f.Message().Name() {
		case "StringMatch", "Struct", "StringValue", "Any":
			return true
		}
	}
	return false
}

// tableErrors returns the fields that the tables lack, and those that they have for nothing.
func tableErrors(bodies []protoreflect.MessageDescriptor, followed map[protoreflect.FullName]*role, alone map[protoreflect.FullName]string) []string {
	var out []string
	fields := reachable(bodies)
	for name, f := range fields {
		if !holdsText(f) || !naming.MatchString(string(f.Name())) {
			continue
		}
		if followed[name] == nil && alone[name] == "" {
			out = append(out, fmt.Sprintf("%s is in neither table", name))
		}
	}
	for name, r := range followed {
		f, ok := fields[name]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s is followed, but there is no such field", name))
		case alone[name] != "":
			out = append(out, fmt.Sprintf("%s is in both tables", name))
		case !fits(f, r):
			out = append(out, fmt.Sprintf("%s has a role that does not fit it", name))
		}
	}
	for name := range alone {
		if _, ok := fields[name]; !ok {
			out = append(out, fmt.Sprintf("%s is left alone, but there is no such field", name))
		}
	}
	slices.Sort(out)
	return out
}

// fits reports whether a role can be applied to a field.
func fits(f protoreflect.FieldDescriptor, r *role) bool {
	if f.Message() == nil {
		return f.Kind() == protoreflect.StringKind && r.fields == nil && (r.text != nil || r.list != nil && f.IsList())
	}
	for name, r := range r.fields {
		if f := f.Message().Fields().ByName(name); f == nil || !fits(f, r) {
			return false
		}
	}
	return len(r.fields) > 0 && r.text == nil && r.list == nil
}

// leftAlone are the fields that look as if they named a host, a namespace or a config, and
// why they stay as they are.
var leftAlone = map[protoreflect.FullName]string{
	// A rewrite does not change certificates.
	"istio.networking.v1alpha3.ServiceEntry.subject_alt_names":      "the names in the certificates of the servers",
	"istio.networking.v1alpha3.ClientTLSSettings.subject_alt_names": "the names in the certificates of the servers",
	"istio.networking.v1alpha3.ServerTLSSettings.subject_alt_names": "the names in the certificates of the clients",
	"istio.security.v1beta1.Source.trust_domains":                   "the names in the certificates of the clients: a trust domain is no host",
	"istio.security.v1beta1.Source.not_trust_domains":               "the names in the certificates of the clients: a trust domain is no host",
	"istio.security.v1beta1.Source.request_principals":              "part of a token: ISSUER/SUBJECT",
	"istio.security.v1beta1.Source.not_request_principals":          "part of a token: ISSUER/SUBJECT",
	"istio.security.v1beta1.JWTRule.issuer":                         "part of a token",

	// Secrets are not relayed.
	"istio.networking.v1alpha3.ClientTLSSettings.credential_name":         "a Secret beside the proxy",
	"istio.networking.v1alpha3.ClientTLSSettings.ca_cert_credential_name": "a Secret beside the proxy",
	"istio.networking.v1alpha3.ServerTLSSettings.credential_name":         "a Secret beside the gateway",
	"istio.networking.v1alpha3.ServerTLSSettings.credential_names":        "Secrets beside the gateway",
	"istio.networking.v1alpha3.ServerTLSSettings.ca_cert_credential_name": "a Secret beside the gateway",

	// Outside of the mesh.
	"istio.networking.v1alpha3.CorsPolicy.allow_origin":  "the origins that browsers send",
	"istio.networking.v1alpha3.CorsPolicy.allow_origins": "the origins that browsers send",
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
	"istio.networking.v1alpha3.EnvoyFilter.Patch.value":          "Envoy config, which may mean anything",
	"istio.networking.v1alpha3.EnvoyFilter.ProxyMatch.metadata":  "the metadata that proxies send",
	"istio.networking.v1alpha3.HTTPMatchRequest.headers":         "istiod ignores the authority here",
	"istio.networking.v1alpha3.HTTPMatchRequest.without_headers": "istiod ignores the authority here",
}

func TestEveryFieldThatNamesSomethingIsInATable(t *testing.T) {
	bodies := istioBodies()
	if n := len(reachable(bodies)); n < 300 {
		t.Fatalf("only %d fields found", n)
	}
	for _, e := range tableErrors(bodies, followedFields, leftAlone) {
		t.Error(e)
	}

	t.Run("a missing field is found", func(t *testing.T) {
		for name := range followedFields {
			if !naming.MatchString(string(name.Name())) {
				continue
			}
			reduced := maps.Clone(followedFields)
			delete(reduced, name)
			want := string(name) + " is in neither table"
			if got := tableErrors(bodies, reduced, leftAlone); !slices.Contains(got, want) {
				t.Errorf("without %s: got %q", name, got)
			}
		}
		for name := range leftAlone {
			if !naming.MatchString(string(name.Name())) {
				continue
			}
			reduced := maps.Clone(leftAlone)
			delete(reduced, name)
			want := string(name) + " is in neither table"
			if got := tableErrors(bodies, followedFields, reduced); !slices.Contains(got, want) {
				t.Errorf("without %s: got %q", name, got)
			}
		}
	})
	t.Run("an entry without a field is found", func(t *testing.T) {
		more := maps.Clone(followedFields)
		more["istio.networking.v1alpha3.VirtualService.no_such"] = hostRole
		alone := maps.Clone(leftAlone)
		alone["istio.networking.v1alpha3.VirtualService.nor_such"] = "why"
		want := []string{
			"istio.networking.v1alpha3.VirtualService.no_such is followed, but there is no such field",
			"istio.networking.v1alpha3.VirtualService.nor_such is left alone, but there is no such field",
		}
		if got := tableErrors(bodies, more, alone); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a role that does not fit is found", func(t *testing.T) {
		wrong := maps.Clone(followedFields)
		wrong["istio.networking.v1alpha3.HTTPMatchRequest.authority"] = hostRole
		if got := tableErrors(bodies, wrong, leftAlone); len(got) != 1 {
			t.Errorf("got %q, want one error", got)
		}
	})
}

// Every kind with a JSON body is in the table of paths.
func TestEveryGatewayAPIKindHasPaths(t *testing.T) {
	known := map[mirror.Kind]bool{}
	for _, info := range mirror.Kinds() {
		if _, ok := info.NewBody().(*structpb.Struct); !ok {
			continue
		}
		known[info.Kind] = true
		if len(structFields[info.Kind]) == 0 {
			t.Errorf("%s has no paths", info.Kind)
		}
	}
	for kind, fields := range structFields {
		if !known[kind] {
			t.Errorf("%s has paths but no JSON body", kind)
		}
		for _, f := range fields {
			if f.role.text == nil == (f.role.object == nil) {
				t.Errorf("%s %s: the role must have one function", kind, f.path)
			}
		}
	}
}
