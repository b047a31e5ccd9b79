package rewrite

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

func rewriteKind(name string) mirror.Kind { return mirror.MatchKinds(name)[0].Kind }

// rewriteBody parses the JSON of a body.
func rewriteBody(t testing.TB, kind mirror.Kind, text string) proto.Message {
	t.Helper()
	info, ok := mirror.LookupKind(kind)
	if !ok {
		t.Fatalf("unknown kind %s", kind)
	}
	m := info.NewBody()
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return m
}

func rewriteSpec(t testing.TB, kind mirror.Kind, full, body string) mirror.Spec {
	t.Helper()
	ns, name, err := mirror.ParseFullName(full)
	if err != nil {
		t.Fatal(err)
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(rewriteBody(t, kind, body))
	if err != nil {
		t.Fatal(err)
	}
	info, _ := mirror.LookupKind(kind)
	url := "type.googleapis.com/" + string(info.NewBody().ProtoReflect().Descriptor().FullName())
	return mirror.Spec{
		Key:    mirror.Key{Kind: kind, Namespace: ns, Name: name},
		Source: "east", Cluster: "east-1", SourceVersion: "42",
		CreateTime: time.Unix(1700000000, 5).UTC(),
		Body:       &anypb.Any{TypeUrl: url, Value: value},
	}
}

func newRewriteResource(t testing.TB, s mirror.Spec) *mirror.Resource {
	t.Helper()
	r, err := mirror.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustRewriter(t testing.TB, rules Rules) *Rewriter {
	t.Helper()
	w, err := New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mustRewrite(t testing.TB, w *Rewriter, r *mirror.Resource) *mirror.Resource {
	t.Helper()
	out, err := w.Rewrite(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func decodedBody(t testing.TB, r *mirror.Resource) proto.Message {
	t.Helper()
	info, _ := mirror.LookupKind(r.Kind())
	m := info.NewBody()
	if err := proto.Unmarshal(r.Body().GetValue(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// everything is a set of rules that touches all kinds of names.
var everything = Rules{
	Namespaces:      map[string]string{"team-a": "alpha", "istio-system": "istio-system"},
	NamespacePrefix: "east-",
	NamePrefix:      "e-",
	Hosts: map[string]string{
		"cluster.local":   "east.example",
		"corp.example":    "corp.east.example",
		"db.corp.example": "db.example",
	},
}

// The table has an object of each kind, before and after all rules at once. The namespace of each
// is team-a.
func TestReferencesOfEveryKindFollow(t *testing.T) {
	tests := []struct{ kind, before, after string }{
		{
			"serviceentry",
			`{"hosts": ["db.corp.example", "x.db.corp.example", "shop.corp.example", "*.team-a.svc.cluster.local", "reviews.other.svc.cluster.local", "example.com", "plain"],
			  "addresses": ["10.0.0.0/8"], "exportTo": [".", "team-a", "other", "*"], "subjectAltNames": ["spiffe://cluster.local/ns/team-a/sa/db"],
			  "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "DNS",
			  "endpoints": [{"address": "db-0.corp.example"}, {"address": "10.1.1.1", "serviceAccount": "db"}]}`,
			`{"hosts": ["db.example", "x.db.example", "shop.corp.east.example", "*.alpha.svc.east.example", "reviews.east-other.svc.east.example", "example.com", "plain"],
			  "addresses": ["10.0.0.0/8"], "exportTo": [".", "alpha", "east-other", "*"], "subjectAltNames": ["spiffe://cluster.local/ns/team-a/sa/db"],
			  "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "DNS",
			  "endpoints": [{"address": "db-0.corp.east.example"}, {"address": "10.1.1.1", "serviceAccount": "db"}]}`,
		},
		{
			"virtualservice",
			`{"hosts": ["reviews", "reviews.team-a.svc.cluster.local", "shop.corp.example", "*"],
			  "gateways": ["mesh", "gw", "other/gw", "./gw", "gw.other", "gw.other.svc.cluster.local"], "exportTo": ["other", "~"],
			  "http": [{"name": "r", "match": [{"authority": {"exact": "shop.corp.example:8080"}, "gateways": ["gw"], "sourceNamespace": "other", "uri": {"prefix": "/a.corp.example"}},
			                                   {"authority": {"prefix": "shop.corp.example"}}, {"authority": {"prefix": "shop.cor"}}, {"authority": {"regex": ".*corp.example"}}],
			            "route": [{"destination": {"host": "reviews", "subset": "v1"}, "headers": {"request": {"set": {"Host": "shop.corp.example", "x-h": "shop.corp.example"}}}},
			                      {"destination": {"host": "reviews.other.svc.cluster.local"}}, {"destination": {"host": "reviews.other"}}],
			            "mirror": {"host": "shadow"}, "mirrors": [{"destination": {"host": "shadow.corp.example"}}],
			            "rewrite": {"authority": "shop.corp.example"}, "corsPolicy": {"allowOrigins": [{"exact": "https://shop.corp.example"}]}},
			           {"redirect": {"authority": "shop.corp.example"}}, {"delegate": {"name": "sub", "namespace": "other"}}, {"delegate": {"name": "sub"}}],
			  "tls": [{"match": [{"sniHosts": ["reviews", "*.corp.example"], "gateways": ["other/gw"], "sourceNamespace": "team-a"}], "route": [{"destination": {"host": "reviews"}}]}],
			  "tcp": [{"match": [{"gateways": ["mesh"], "sourceNamespace": "team-a"}], "route": [{"destination": {"host": "reviews.team-a.svc.cluster.local"}}]}]}`,
			`{"hosts": ["reviews.alpha.svc.east.example", "shop.corp.east.example", "*"],
			  "gateways": ["mesh", "e-gw", "east-other/e-gw", "./e-gw", "e-gw.east-other", "e-gw.east-other.svc.cluster.local"], "exportTo": ["east-other", "~"],
			  "http": [{"name": "r", "match": [{"authority": {"exact": "shop.corp.east.example:8080"}, "gateways": ["e-gw"], "sourceNamespace": "east-other", "uri": {"prefix": "/a.corp.example"}},
			                                   {"authority": {"prefix": "shop.corp.east.example"}}, {"authority": {"prefix": "shop.cor"}}, {"authority": {"regex": ".*corp.example"}}],
			            "route": [{"destination": {"host": "reviews.alpha.svc.east.example", "subset": "v1"}, "headers": {"request": {"set": {"Host": "shop.corp.east.example", "x-h": "shop.corp.example"}}}},
			                      {"destination": {"host": "reviews.east-other.svc.east.example"}}, {"destination": {"host": "reviews.other"}}],
			            "mirror": {"host": "shadow.alpha.svc.east.example"}, "mirrors": [{"destination": {"host": "shadow.corp.east.example"}}],
			            "rewrite": {"authority": "shop.corp.east.example"}, "corsPolicy": {"allowOrigins": [{"exact": "https://shop.corp.example"}]}},
			           {"redirect": {"authority": "shop.corp.east.example"}}, {"delegate": {"name": "e-sub", "namespace": "east-other"}}, {"delegate": {"name": "e-sub"}}],
			  "tls": [{"match": [{"sniHosts": ["reviews", "*.corp.east.example"], "gateways": ["east-other/e-gw"], "sourceNamespace": "alpha"}], "route": [{"destination": {"host": "reviews.alpha.svc.east.example"}}]}],
			  "tcp": [{"match": [{"gateways": ["mesh"], "sourceNamespace": "alpha"}], "route": [{"destination": {"host": "reviews.alpha.svc.east.example"}}]}]}`,
		},
		{
			"destinationrule",
			`{"host": "reviews", "exportTo": ["."],
			  "trafficPolicy": {"tls": {"mode": "SIMPLE", "sni": "shop.corp.example", "subjectAltNames": ["shop.corp.example"], "credentialName": "shop.corp.example"}, "tunnel": {"targetHost": "proxy.corp.example", "targetPort": 1},
			                    "portLevelSettings": [{"port": {"number": 1}, "tls": {"mode": "SIMPLE", "sni": "db.corp.example"}}]},
			  "subsets": [{"name": "v1", "trafficPolicy": {"tls": {"mode": "SIMPLE", "sni": "outbound_.80_.v1_.reviews.team-a.svc.cluster.local"}}}]}`,
			`{"host": "reviews.alpha.svc.east.example", "exportTo": ["."],
			  "trafficPolicy": {"tls": {"mode": "SIMPLE", "sni": "shop.corp.east.example", "subjectAltNames": ["shop.corp.example"], "credentialName": "shop.corp.example"}, "tunnel": {"targetHost": "proxy.corp.east.example", "targetPort": 1},
			                    "portLevelSettings": [{"port": {"number": 1}, "tls": {"mode": "SIMPLE", "sni": "db.example"}}]},
			  "subsets": [{"name": "v1", "trafficPolicy": {"tls": {"mode": "SIMPLE", "sni": "outbound_.80_.v1_.reviews.alpha.svc.east.example"}}}]}`,
		},
		{
			"gateways",
			`{"selector": {"istio": "ingress"}, "servers": [{"name": "s", "hosts": ["*", "shop.corp.example", "./shop.corp.example", "*/shop.corp.example", "other/*.cluster.local"], "port": {"number": 443, "name": "https", "protocol": "HTTPS"},
			  "tls": {"mode": "SIMPLE", "credentialName": "team-a", "subjectAltNames": ["shop.corp.example"]}, "defaultEndpoint": "127.0.0.1:80"}]}`,
			`{"selector": {"istio": "ingress"}, "servers": [{"name": "s", "hosts": ["*", "shop.corp.east.example", "./shop.corp.east.example", "*/shop.corp.east.example", "east-other/*.east.example"], "port": {"number": 443, "name": "https", "protocol": "HTTPS"},
			  "tls": {"mode": "SIMPLE", "credentialName": "team-a", "subjectAltNames": ["shop.corp.example"]}, "defaultEndpoint": "127.0.0.1:80"}]}`,
		},
		{
			"sidecar",
			`{"egress": [{"hosts": ["./*", "*/*", "~/*", "istio-system/*", "other/reviews.other.svc.cluster.local", "team-a/*.corp.example"]}], "ingress": [{"port": {"number": 1, "name": "h", "protocol": "HTTP"}, "defaultEndpoint": "127.0.0.1:1"}],
			  "outboundTrafficPolicy": {"egressProxy": {"host": "egress.istio-system.svc.cluster.local"}}}`,
			`{"egress": [{"hosts": ["./*", "*/*", "~/*", "istio-system/*", "east-other/reviews.east-other.svc.east.example", "alpha/*.corp.east.example", "alpha/db.example", "alpha/*.db.example"]}], "ingress": [{"port": {"number": 1, "name": "h", "protocol": "HTTP"}, "defaultEndpoint": "127.0.0.1:1"}],
			  "outboundTrafficPolicy": {"egressProxy": {"host": "egress.istio-system.svc.east.example"}}}`,
		},
		{"workloadentry", `{"address": "vm.corp.example", "serviceAccount": "a", "network": "n"}`, `{"address": "vm.corp.east.example", "serviceAccount": "a", "network": "n"}`},
		{
			"workloadgroup",
			`{"metadata": {"labels": {"app": "vm", "istio.io/use-waypoint": "wp", "istio.io/use-waypoint-namespace": "other"}}, "template": {"serviceAccount": "a"}, "probe": {"httpGet": {"host": "vm.corp.example", "port": 1}}}`,
			`{"metadata": {"labels": {"app": "vm", "istio.io/use-waypoint": "e-wp", "istio.io/use-waypoint-namespace": "east-other"}}, "template": {"serviceAccount": "a"}, "probe": {"httpGet": {"host": "vm.corp.example", "port": 1}}}`,
		},
		{
			"authorizationpolicy",
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}, {"kind": "Service", "name": "reviews"}, {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "db", "namespace": "other"},
			                 {"group": "gateway.networking.k8s.io", "kind": "GatewayClass", "name": "istio"}],
			  "rules": [{"from": [{"source": {"namespaces": ["team-a", "other", "*", "team-*", "*-a"], "notNamespaces": ["x"], "principals": ["cluster.local/ns/team-a/sa/s", "*/ns/other/sa/s", "cluster.local/*", "*", "cluster.local/ns/team-*"],
			                                 "notPrincipals": ["cluster.local/ns/x/sa/y"], "requestPrincipals": ["corp.example/team-a"]}}, {"source": {"serviceAccounts": ["other/s", "s"]}}],
			             "to": [{"operation": {"hosts": ["shop.corp.example:*", "*.cluster.local"], "notHosts": ["reviews.team-a.svc.cluster.local:80"], "paths": ["/corp.example"]}}],
			             "when": [{"key": "source.namespace", "values": ["team-a"], "notValues": ["other"]}, {"key": "source.principal", "values": ["cluster.local/ns/team-a/sa/s"]}, {"key": "connection.sni", "values": ["shop.corp.example"]},
			                      {"key": "request.headers[Host]", "values": ["shop.corp.example"]}, {"key": "request.headers[x]", "values": ["shop.corp.example"]}, {"key": "source.ip", "values": ["10.0.0.1"]}]}]}`,
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}, {"kind": "Service", "name": "reviews"}, {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "e-db", "namespace": "east-other"},
			                 {"group": "gateway.networking.k8s.io", "kind": "GatewayClass", "name": "istio"}],
			  "rules": [{"from": [{"source": {"namespaces": ["alpha", "east-other", "*", "east-team-*", "*-a"], "notNamespaces": ["east-x"], "principals": ["cluster.local/ns/alpha/sa/s", "*/ns/east-other/sa/s", "cluster.local/*", "*", "cluster.local/ns/east-team-*", "cluster.local/ns/alpha/*"],
			                                 "notPrincipals": ["cluster.local/ns/east-x/sa/y"], "requestPrincipals": ["corp.example/team-a"]}}, {"source": {"serviceAccounts": ["east-other/s", "s"]}}],
			             "to": [{"operation": {"hosts": ["shop.corp.east.example:*", "*.east.example"], "notHosts": ["reviews.alpha.svc.east.example:80"], "paths": ["/corp.example"]}}],
			             "when": [{"key": "source.namespace", "values": ["alpha"], "notValues": ["east-other"]}, {"key": "source.principal", "values": ["cluster.local/ns/alpha/sa/s"]}, {"key": "connection.sni", "values": ["shop.corp.east.example"]},
			                      {"key": "request.headers[Host]", "values": ["shop.corp.east.example"]}, {"key": "request.headers[x]", "values": ["shop.corp.example"]}, {"key": "source.ip", "values": ["10.0.0.1"]}]}]}`,
		},
		{
			"requestauthentication",
			`{"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}, "jwtRules": [{"issuer": "https://sso.corp.example", "jwksUri": "https://u@sso.corp.example:8443/keys?a=corp.example"}, {"issuer": "i", "jwksUri": "http://jwks.team-a.svc.cluster.local"}]}`,
			`{"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}, "jwtRules": [{"issuer": "https://sso.corp.example", "jwksUri": "https://u@sso.corp.east.example:8443/keys?a=corp.example"}, {"issuer": "i", "jwksUri": "http://jwks.alpha.svc.east.example"}]}`,
		},
		{"peerauthentication", `{"selector": {"matchLabels": {"ns": "team-a"}}, "mtls": {"mode": "STRICT"}}`, `{"selector": {"matchLabels": {"ns": "team-a"}}, "mtls": {"mode": "STRICT"}}`},
		{"proxyconfig", `{"environmentVariables": {"NS": "team-a"}}`, `{"environmentVariables": {"NS": "team-a"}}`},
		{
			"telemetry",
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}], "tracing": [{"providers": [{"name": "team-a"}]}]}`,
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}], "tracing": [{"providers": [{"name": "team-a"}]}]}`,
		},
		{
			"wasmplugin",
			`{"url": "oci://images.corp.example/a", "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}], "pluginName": "p"}`,
			`{"url": "oci://images.corp.example/a", "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}], "pluginName": "p"}`,
		},
		{
			"trafficextension",
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}]}`,
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}]}`,
		},
		{
			"envoyfilter",
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}], "configPatches": [
			   {"applyTo": "CLUSTER", "match": {"cluster": {"service": "reviews.team-a.svc.cluster.local", "name": "outbound|80|v1|reviews.other.svc.cluster.local"}}, "patch": {"operation": "MERGE", "value": {"name": "reviews.team-a.svc.cluster.local"}}},
			   {"applyTo": "LISTENER", "match": {"listener": {"name": "0.0.0.0_80", "filterChain": {"sni": "shop.corp.example", "filter": {"name": "envoy.x"}}}}},
			   {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"gateway": "team-a/gw", "name": "https.443.https.gw.team-a", "portName": "https", "vhost": {"name": "shop.corp.example:443", "route": {"name": "r"}}}, "proxy": {"metadata": {"NAMESPACE": "team-a"}}}},
			   {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"name": "reviews.team-a.svc.cluster.local:80", "vhost": {"name": "reviews.team-a.svc.cluster.local:80", "domainName": "reviews.team-a.svc.cluster.local"}}}},
			   {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"name": "80"}}}, {"applyTo": "CLUSTER", "match": {"cluster": {"name": "inbound|80||"}}}]}`,
			`{"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}], "configPatches": [
			   {"applyTo": "CLUSTER", "match": {"cluster": {"service": "reviews.alpha.svc.east.example", "name": "outbound|80|v1|reviews.east-other.svc.east.example"}}, "patch": {"operation": "MERGE", "value": {"name": "reviews.team-a.svc.cluster.local"}}},
			   {"applyTo": "LISTENER", "match": {"listener": {"name": "0.0.0.0_80", "filterChain": {"sni": "shop.corp.east.example", "filter": {"name": "envoy.x"}}}}},
			   {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"gateway": "alpha/e-gw", "name": "https.443.https.e-gw.alpha", "portName": "https", "vhost": {"name": "shop.corp.east.example:443", "route": {"name": "r"}}}, "proxy": {"metadata": {"NAMESPACE": "team-a"}}}},
			   {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"name": "reviews.alpha.svc.east.example:80", "vhost": {"name": "reviews.alpha.svc.east.example:80", "domainName": "reviews.alpha.svc.east.example"}}}},
			   {"applyTo": "VIRTUAL_HOST", "match": {"routeConfiguration": {"name": "80"}}}, {"applyTo": "CLUSTER", "match": {"cluster": {"name": "inbound|80||"}}}]}`,
		},
		{"gatewayclass", `{"controllerName": "corp.example/c", "parametersRef": {"group": "", "kind": "ConfigMap", "name": "p", "namespace": "other"}}`, `{"controllerName": "corp.example/c", "parametersRef": {"group": "", "kind": "ConfigMap", "name": "p", "namespace": "east-other"}}`},
		{
			"gateways.gateway.networking.k8s.io",
			`{"gatewayClassName": "istio", "addresses": [{"type": "Hostname", "value": "ingress"}, {"value": "ingress.other.svc.cluster.local"}, {"type": "IPAddress", "value": "1.2.3.4"}],
			  "listeners": [{"name": "l", "hostname": "*.corp.example", "port": 443, "tls": {"certificateRefs": [{"name": "cert", "namespace": "other"}, {"name": "cert"}]},
			    "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "team-a", "ns": "team-a"}, "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "other"]}, {"key": "x", "operator": "In", "values": ["team-a"]}]}}}}]}`,
			`{"gatewayClassName": "istio", "addresses": [{"type": "Hostname", "value": "ingress.alpha.svc.east.example"}, {"value": "ingress.east-other.svc.east.example"}, {"type": "IPAddress", "value": "1.2.3.4"}],
			  "listeners": [{"name": "l", "hostname": "*.corp.east.example", "port": 443, "tls": {"certificateRefs": [{"name": "cert", "namespace": "east-other"}, {"name": "cert"}]},
			    "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "alpha", "ns": "team-a"}, "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["alpha", "east-other"]}, {"key": "x", "operator": "In", "values": ["team-a"]}]}}}}]}`,
		},
		{
			"httproute",
			`{"parentRefs": [{"name": "gw", "namespace": "other", "sectionName": "l"}, {"group": "", "kind": "Service", "name": "reviews"}, {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "ls"}, {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "db"}],
			  "hostnames": ["shop.corp.example"],
			  "rules": [{"filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "shadow", "port": 80}}}, {"type": "RequestRedirect", "requestRedirect": {"hostname": "shop.corp.example"}}, {"type": "URLRewrite", "urlRewrite": {"hostname": "db.corp.example"}},
			                         {"type": "ExtensionRef", "extensionRef": {"group": "extensions.istio.io", "kind": "WasmPlugin", "name": "p"}}],
			             "backendRefs": [{"name": "reviews", "port": 80, "weight": 1}, {"name": "reviews", "namespace": "other", "port": 80}, {"group": "networking.istio.io", "kind": "Hostname", "name": "db.corp.example", "port": 80},
			                             {"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "b", "namespace": "other"}, {"group": "x.example", "kind": "Pool", "name": "p", "namespace": "other"},
			                             {"name": "a", "port": 1, "filters": [{"urlRewrite": {"hostname": "shop.corp.example"}}]}]}]}`,
			`{"parentRefs": [{"name": "e-gw", "namespace": "east-other", "sectionName": "l"}, {"group": "", "kind": "Service", "name": "reviews"}, {"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "e-ls"}, {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "e-db"}],
			  "hostnames": ["shop.corp.east.example"],
			  "rules": [{"filters": [{"type": "RequestMirror", "requestMirror": {"backendRef": {"group": "networking.istio.io", "kind": "Hostname", "name": "shadow.alpha.svc.east.example", "port": 80}}}, {"type": "RequestRedirect", "requestRedirect": {"hostname": "shop.corp.east.example"}}, {"type": "URLRewrite", "urlRewrite": {"hostname": "db.example"}},
			                         {"type": "ExtensionRef", "extensionRef": {"group": "extensions.istio.io", "kind": "WasmPlugin", "name": "e-p"}}],
			             "backendRefs": [{"group": "networking.istio.io", "kind": "Hostname", "name": "reviews.alpha.svc.east.example", "port": 80, "weight": 1}, {"group": "networking.istio.io", "kind": "Hostname", "name": "reviews.east-other.svc.east.example", "port": 80}, {"group": "networking.istio.io", "kind": "Hostname", "name": "db.example", "port": 80},
			                             {"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "e-b", "namespace": "east-other"}, {"group": "x.example", "kind": "Pool", "name": "p", "namespace": "east-other"},
			                             {"group": "networking.istio.io", "kind": "Hostname", "name": "a.alpha.svc.east.example", "port": 1, "filters": [{"urlRewrite": {"hostname": "shop.corp.east.example"}}]}]}]}`,
		},
		{"grpcroute", `{"parentRefs": [{"name": "gw"}], "hostnames": ["grpc.corp.example"]}`, `{"parentRefs": [{"name": "e-gw"}], "hostnames": ["grpc.corp.east.example"]}`},
		{"tlsroute", `{"parentRefs": [{"name": "gw"}], "hostnames": ["tls.corp.example"]}`, `{"parentRefs": [{"name": "e-gw"}], "hostnames": ["tls.corp.east.example"]}`},
		{"tcproute", `{"parentRefs": [{"name": "gw"}], "rules": [{"backendRefs": [{"name": "db", "port": 1}]}]}`, `{"parentRefs": [{"name": "e-gw"}], "rules": [{"backendRefs": [{"group": "networking.istio.io", "kind": "Hostname", "name": "db.alpha.svc.east.example", "port": 1}]}]}`},
		{"udproute", `{"parentRefs": [{"name": "gw", "namespace": "team-a"}]}`, `{"parentRefs": [{"name": "e-gw", "namespace": "alpha"}]}`},
		{
			"referencegrant",
			`{"from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "other"}], "to": [{"group": "", "kind": "Secret", "name": "s"}, {"group": "", "kind": "Service"}, {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}]}`,
			`{"from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "east-other"}], "to": [{"group": "", "kind": "Secret", "name": "s"}, {"group": "", "kind": "Service"}, {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "e-gw"}]}`,
		},
		{
			"backendtlspolicy",
			`{"targetRefs": [{"group": "", "kind": "Service", "name": "s"}, {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "db"}], "validation": {"hostname": "db.corp.example", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "c"}]}}`,
			`{"targetRefs": [{"group": "", "kind": "Service", "name": "s"}, {"group": "networking.istio.io", "kind": "ServiceEntry", "name": "e-db"}], "validation": {"hostname": "db.corp.example", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "c"}]}}`,
		},
		{
			"listenerset",
			`{"parentRef": {"name": "gw", "namespace": "other"}, "listeners": [{"name": "l", "hostname": "a.corp.example"}]}`,
			`{"parentRef": {"name": "e-gw", "namespace": "east-other"}, "listeners": [{"name": "l", "hostname": "a.corp.east.example"}]}`,
		},
		{
			"xlistenerset",
			`{"parentRef": {"name": "gw", "namespace": "other"}, "listeners": [{"name": "l", "hostname": "a.corp.example"}]}`,
			`{"parentRef": {"name": "e-gw", "namespace": "east-other"}, "listeners": [{"name": "l", "hostname": "a.corp.east.example"}]}`,
		},
		{"xmesh", `{"controllerName": "corp.example/c", "parametersRef": {"group": "", "kind": "ConfigMap", "name": "p", "namespace": "other"}}`, `{"controllerName": "corp.example/c", "parametersRef": {"group": "", "kind": "ConfigMap", "name": "p", "namespace": "east-other"}}`},
		{"xbackend", `{"type": "ExternalHostname", "externalHostname": {"hostname": "db.corp.example"}}`, `{"type": "ExternalHostname", "externalHostname": {"hostname": "db.example"}}`},
		{"xbackendtrafficpolicy", `{"targetRefs": [{"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "b"}]}`, `{"targetRefs": [{"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "e-b"}]}`},
	}
	w := mustRewriter(t, everything)
	tested := map[mirror.Kind]bool{mirror.MeshConfig: true}
	for _, tt := range tests {
		kind := rewriteKind(tt.kind)
		tested[kind] = true
		t.Run(kind.String(), func(t *testing.T) {
			full := "team-a/it"
			if info, _ := mirror.LookupKind(kind); info.ClusterScoped {
				full = "/it"
			}
			in := newRewriteResource(t, rewriteSpec(t, kind, full, tt.before))
			out := mustRewrite(t, w, in)
			if diff := cmp.Diff(rewriteBody(t, kind, tt.after), decodedBody(t, out), protocmp.Transform()); diff != "" {
				t.Errorf("body, -want +got:\n%s", diff)
			}
			if out.Key() != w.Key(in.Key()) {
				t.Errorf("landed at %s, Key returns %s", out.Key(), w.Key(in.Key()))
			}
		})
	}
	for _, info := range mirror.Kinds() {
		if !tested[info.Kind] {
			t.Errorf("%s is not tested", info.Kind)
		}
	}
}

// Short names go on to work by themselves unless the domain is mapped.
func TestShortNamesStayShortWhenOnlyNamespacesAreMapped(t *testing.T) {
	w := mustRewriter(t, Rules{NamespacePrefix: "east-"})
	in := newRewriteResource(t, rewriteSpec(t, rewriteKind("vs"), "team-a/r", `{"hosts": ["reviews"], "http": [{"route": [{"destination": {"host": "reviews"}}, {"destination": {"host": "a.b.svc.cluster.local"}}]}]}`))
	got := decodedBody(t, mustRewrite(t, w, in))
	want := rewriteBody(t, rewriteKind("vs"), `{"hosts": ["reviews"], "http": [{"route": [{"destination": {"host": "reviews"}}, {"destination": {"host": "a.east-b.svc.cluster.local"}}]}]}`)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	route := newRewriteResource(t, rewriteSpec(t, rewriteKind("httproute"), "team-a/r", `{"rules": [{"backendRefs": [{"name": "reviews", "namespace": "b"}]}]}`))
	got = decodedBody(t, mustRewrite(t, w, route))
	want = rewriteBody(t, rewriteKind("httproute"), `{"rules": [{"backendRefs": [{"name": "reviews", "namespace": "east-b"}]}]}`)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestHostsAreMapped(t *testing.T) {
	s := newScope(mustRewriter(t, Rules{
		Namespaces: map[string]string{"team-a": "alpha", "team-b": "beta"},
		Domain:     "mesh.corp",
		Hosts:      map[string]string{"corp": "here", "x.corp": "x", "mesh.corp": "mesh.here", "team-b.svc.mesh.corp": "b.here"},
	}).names, "team-a")
	tests := []struct{ in, want string }{
		{"", ""}, {"*", "*"}, {"corp", "here"}, {"a.corp", "a.here"}, {"*.corp", "*.here"}, {"*corp", "*here"},
		{"a.x.corp", "a.x"}, {"acorp", "acorp"}, {"corp.a", "corp.a"}, {"a.corp.", "a.here."},
		{"r.team-a.svc.mesh.corp", "r.alpha.svc.mesh.here"},
		{"pod-0.r.team-a.svc.mesh.corp", "pod-0.r.alpha.svc.mesh.here"},
		{"*.team-a.svc.mesh.corp", "*.alpha.svc.mesh.here"},
		{"*.svc.mesh.corp", "*.svc.mesh.here"}, {"team-a.svc.mesh.corp", "team-a.svc.mesh.here"},
		{"r.team-b.svc.mesh.corp", "r.b.here"}, // the longest mapping counts
		{"r.team-a.svc", "r.alpha.svc"}, {"r.team-a.svc.clusterset.local", "r.alpha.svc.clusterset.local"},
		{"r.team-a", "r.team-a"},                                     // not a Service to istiod
		{"r.team-a.svc.cluster.local", "r.team-a.svc.cluster.local"}, // not of this cluster
		{"r.team-c.svc.mesh.corp", "r.team-c.svc.mesh.here"},         // a namespace that stays
		{"10.0.0.1", "10.0.0.1"}, {"::1", "::1"}, {".team-a.svc", ".team-a.svc"},
	}
	for _, tt := range tests {
		if got := s.host(tt.in); got != tt.want {
			t.Errorf("host(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	for in, want := range map[string]string{"r": "r.alpha.svc.mesh.here", "": "", "*": "*", "r.corp": "r.here", "10.0.0.1": "10.0.0.1", "::1": "::1"} {
		if got := s.shortHost(in); got != want {
			t.Errorf("shortHost(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"a.corp:80": "a.here:80", "a.corp:*": "a.here:*", "a.corp:http": "a.corp:http", "[::1]:80": "[::1]:80", "a.corp:": "a.here:"} {
		if got := s.hostPort(in); got != want {
			t.Errorf("hostPort(%q) = %q, want %q", in, got, want)
		}
	}
}

// A wildcard that selects hosts goes on to select those that are mapped away from under it.
func TestWildcardsFollowWhatIsMappedFromUnderThem(t *testing.T) {
	w := mustRewriter(t, Rules{
		Namespaces: map[string]string{"team-a": "alpha"},
		Hosts:      map[string]string{"corp": "here", "shop.corp": "shop.example", "stays.corp": "stays.corp", "below.corp": "x.here"},
	})
	for kind, bodies := range map[string][2]string{
		"sidecar": {
			`{"egress": [{"hosts": ["team-a/*.corp", "./*", "./*.shop.corp", "*.corp"]}]}`,
			`{"egress": [{"hosts": ["alpha/*.here", "alpha/stays.corp", "alpha/*.stays.corp", "alpha/shop.example", "alpha/*.shop.example", "./*", "./*.shop.example", "*.here", "stays.corp", "*.stays.corp", "shop.example", "*.shop.example"]}]}`,
		},
		"ap": {
			`{"rules": [{"to": [{"operation": {"notHosts": ["*.corp:80"]}}]}]}`,
			`{"rules": [{"to": [{"operation": {"notHosts": ["*.here:80", "stays.corp:80", "*.stays.corp:80", "shop.example:80", "*.shop.example:80"]}}]}]}`,
		},
		// These claim hosts.
		"se": {`{"hosts": ["*.corp"]}`, `{"hosts": ["*.here"]}`},
		"vs": {`{"hosts": ["*.corp"]}`, `{"hosts": ["*.here"]}`},
	} {
		got := decodedBody(t, mustRewrite(t, w, newRewriteResource(t, rewriteSpec(t, rewriteKind(kind), "b/x", bodies[0]))))
		want := rewriteBody(t, rewriteKind(kind), bodies[1])
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
	}
}

// protobuf allows a message to come in parts, which receivers put together.
func TestMessagesInPartsArePutTogether(t *testing.T) {
	kind := rewriteKind("ra")
	spec := rewriteSpec(t, kind, "team-a/x", `{"targetRef": {"name": "gw"}}`)
	spec.Body.Value = append(spec.Body.Value, rewriteSpec(t, kind, "a/b", `{"targetRef": {"kind": "Gateway", "group": "gateway.networking.k8s.io"}}`).Body.Value...)
	in := newRewriteResource(t, spec)
	got := decodedBody(t, mustRewrite(t, mustRewriter(t, Rules{NamePrefix: "e-"}), in))
	want := rewriteBody(t, kind, `{"targetRef": {"name": "e-gw", "kind": "Gateway", "group": "gateway.networking.k8s.io"}}`)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if out := mustRewrite(t, mustRewriter(t, Rules{Hosts: map[string]string{"a": "b"}}), in); out != in {
		t.Error("a new resource though nothing changes")
	}
}

func TestNamesThatBecomeOneAreListedOnce(t *testing.T) {
	w := mustRewriter(t, Rules{Namespaces: map[string]string{"a": "x", "b": "x", "c": "c"}, Hosts: map[string]string{"old": "new"}})
	var hosts, want []string
	for i := range 40 {
		h := "h" + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		hosts = append(hosts, h+".new", h+".old")
		want = append(want, h+".new")
	}
	body := &networking.ServiceEntry{Hosts: hosts, ExportTo: []string{"c", "a", "b", "x"}}
	value, err := anypb.New(body)
	if err != nil {
		t.Fatal(err)
	}
	in := newRewriteResource(t, mirror.Spec{Key: mirror.Key{Kind: rewriteKind("se"), Namespace: "c", Name: "x"}, Body: value})
	got := decodedBody(t, mustRewrite(t, w, in)).(*networking.ServiceEntry)
	if diff := cmp.Diff(want, got.Hosts); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"c", "x"}, got.ExportTo); diff != "" {
		t.Error(diff)
	}
}

func TestMetadataReferencesFollowBeforeEdits(t *testing.T) {
	rules := everything
	rules.Labels = Edit{Set: map[string]string{"istio.io/use-waypoint-canary": "wp"}, Remove: []string{"app.kubernetes.io/*", "gone"}}
	rules.Annotations = Edit{Remove: []string{"*"}, Set: map[string]string{"kept": "by set"}}
	spec := rewriteSpec(t, rewriteKind("se"), "team-a/db", `{}`)
	spec.Labels = map[string]string{
		"istio.io/use-waypoint": "wp", "istio.io/use-waypoint-namespace": "other", "istio.io/use-waypoint-canary": "old",
		"app.kubernetes.io/name": "db", "app.kubernetes": "stays", "gone": "x",
	}
	spec.Annotations = map[string]string{"a": "b", "istio.io/autoRegistrationGroup": "g"}
	md := mustRewrite(t, mustRewriter(t, rules), newRewriteResource(t, spec)).Metadata()
	if diff := cmp.Diff(map[string]string{"istio.io/use-waypoint": "e-wp", "istio.io/use-waypoint-namespace": "east-other", "istio.io/use-waypoint-canary": "wp", "app.kubernetes": "stays"}, md.Labels); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"kept": "by set"}, md.Annotations); diff != "" {
		t.Error(diff)
	}
	rules = Rules{NamePrefix: "e-"}
	spec.Labels = map[string]string{"istio.io/use-waypoint": "none"}
	md = mustRewrite(t, mustRewriter(t, rules), newRewriteResource(t, spec)).Metadata()
	if md.Labels["istio.io/use-waypoint"] != "none" || md.Annotations["istio.io/autoRegistrationGroup"] != "e-g" {
		t.Errorf("got %v", md)
	}
}

func TestExportToIsReplacedNotMapped(t *testing.T) {
	for name, to := range map[string][]string{"namespace": {"team-a", "."}, "nothing": {}} {
		w := mustRewriter(t, Rules{NamespacePrefix: "east-", ExportTo: to})
		for _, kind := range []string{"se", "vs", "dr"} {
			in := newRewriteResource(t, rewriteSpec(t, rewriteKind(kind), "team-a/x", `{"exportTo": ["*"]}`))
			got := *exportToOf(decodedBody(t, mustRewrite(t, w, in)))
			if diff := cmp.Diff(append([]string(nil), to...), got); diff != "" {
				t.Errorf("%s, %s: %s", name, kind, diff)
			}
		}
	}
}

func TestEndpointsAreStamped(t *testing.T) {
	w := mustRewriter(t, Rules{Endpoints: Endpoints{Network: "n1", Locality: "r/z", Cluster: "c1"}})
	const stamped = `{"address": "1.2.3.4", "network": "n1", "locality": "r/z", "labels": {"topology.istio.io/cluster": "c1", "app": "db"}}`
	const plain = `{"address": "1.2.3.4", "network": "old", "labels": {"topology.istio.io/cluster": "old", "app": "db"}}`
	for kind, format := range map[string]string{"se": `{"endpoints": [%]}`, "we": `%`, "wg": `{"template": %}`} {
		in := newRewriteResource(t, rewriteSpec(t, rewriteKind(kind), "team-a/x", strings.Replace(format, "%", plain, 1)))
		got := decodedBody(t, mustRewrite(t, w, in))
		want := rewriteBody(t, rewriteKind(kind), strings.Replace(format, "%", stamped, 1))
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
	}
	group := newRewriteResource(t, rewriteSpec(t, rewriteKind("wg"), "team-a/x", `{}`))
	if got := decodedBody(t, mustRewrite(t, w, group)).(*networking.WorkloadGroup).GetTemplate().GetNetwork(); got != "n1" {
		t.Errorf("a group without a template: network %q", got)
	}
	if w.planOf(rewriteKind("vs")) != nil {
		t.Error("VirtualServices have no endpoints, and yet are touched")
	}
}

func BenchmarkRewrite(b *testing.B) {
	spec := rewriteSpec(b, rewriteKind("se"), "team-a/db", `{"hosts": ["db.corp.example", "db.team-a.svc.cluster.local"], "exportTo": ["*"], "location": "MESH_INTERNAL", "resolution": "STATIC",
		"ports": [{"number": 5432, "name": "tcp", "protocol": "TCP"}, {"number": 80, "name": "http", "protocol": "HTTP"}],
		"endpoints": [{"address": "10.0.0.1", "network": "n", "labels": {"app": "db"}}, {"address": "10.0.0.2", "network": "n", "labels": {"app": "db"}}]}`)
	spec.Labels = map[string]string{"app": "db", "team": "a"}
	in := newRewriteResource(b, spec)
	for name, rules := range map[string]Rules{
		"hosts+prefix": {NamespacePrefix: "east-", Hosts: map[string]string{"cluster.local": "east.example", "corp.example": "corp.east.example"}},
		"name":         {NamePrefix: "east-"},
		"unchanged":    {Hosts: map[string]string{"nobody.example": "somebody.example"}},
		"identity":     {},
	} {
		w := mustRewriter(b, rules)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Rewrite(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
