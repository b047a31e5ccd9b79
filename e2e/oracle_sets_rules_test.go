package e2e

import (
	"slices"

	"pgregory.net/rapid"
)

// This file draws the rules of random sets: who goes where, and who may.

func (w *world) subset() string { return pick(w, "subset", worldVersions) }

func (w *world) destinationRule() {
	namespace := pick(w, "namespace", worldNamespaces)
	spec := fields{"host": w.host(namespace)}
	if w.oneIn(6, "of many") {
		spec["host"] = pick(w, "pattern", []string{"*.svc.cluster.local", "*.shop.svc.cluster.local", "*.example"})
	}
	var subsets []fields
	for _, v := range worldVersions {
		if !w.oneIn(4, "no subset") {
			s := fields{"name": v, "labels": fields{"version": v}}
			if w.oneIn(4, "policy of subset") {
				s["trafficPolicy"] = w.trafficPolicy()
			}
			subsets = append(subsets, s)
		}
	}
	if len(subsets) > 0 {
		spec["subsets"] = subsets
	}
	if rapid.Bool().Draw(w.T, "policy") {
		spec["trafficPolicy"] = w.trafficPolicy()
	}
	if w.oneIn(5, "for some clients") {
		spec["workloadSelector"] = fields{"matchLabels": w.appLabels()}
	}
	w.add("networking.istio.io/v1beta1", "DestinationRule", pick(w, "name", worldNames), namespace, nil, w.exportTo(spec))
}

func (w *world) trafficPolicy() fields {
	policy := fields{}
	switch rapid.IntRange(0, 4).Draw(w.T, "balancer") {
	case 0:
		policy["loadBalancer"] = fields{"simple": pick(w, "simple", []string{"RANDOM", "ROUND_ROBIN", "LEAST_REQUEST"})}
	case 1:
		policy["loadBalancer"] = fields{"consistentHash": fields{"httpHeaderName": "x-user"}}
	case 2:
		policy["outlierDetection"] = fields{"consecutive5xxErrors": rapid.IntRange(1, 9).Draw(w.T, "errors"), "interval": "30s"}
	case 3:
		policy["portLevelSettings"] = []fields{{"port": fields{"number": 80}, "connectionPool": fields{"tcp": fields{"maxConnections": 10}}}}
	}
	if w.oneIn(2, "tls") {
		policy["tls"] = fields{"mode": pick(w, "mode", []string{"ISTIO_MUTUAL", "DISABLE", "SIMPLE"})}
	}
	return policy
}

func (w *world) gateway() {
	namespace := pick(w, "namespace", worldNamespaces)
	labels := pick(w, "selector", []fields{{"istio": "ingress"}, {"istio": "private"}, {"app": "web"}})
	hosts := func() []string {
		return some(w, "hosts of server", []string{"*", "*.example", "./db.example", "shop/*", "*/" + full("web", "shop"), "api.wild.example"})
	}
	servers := []fields{{"port": fields{"number": 8080, "name": "http", "protocol": "HTTP"}, "hosts": hosts()}}
	if w.oneIn(3, "passthrough") {
		servers = append(servers, fields{
			"port": fields{"number": 8443, "name": "tls", "protocol": "TLS"}, "tls": fields{"mode": "PASSTHROUGH"}, "hosts": hosts(),
		})
	}
	if w.oneIn(3, "tcp") {
		servers = append(servers, fields{"port": fields{"number": 3306, "name": "tcp", "protocol": "TCP"}, "hosts": []string{"*"}})
	}
	w.add("networking.istio.io/v1beta1", "Gateway", pick(w, "name", worldNames[:3]), namespace, nil, fields{"selector": labels, "servers": servers})
}

// gatewayNames draws which gateways a VirtualService is for; none is the mesh.
func (w *world) gatewayNames() []string {
	if rapid.Bool().Draw(w.T, "mesh alone") {
		return nil
	}
	return some(w, "gateways", []string{"mesh", "a", "shop/b", "bank/a", rootNamespace + "/c"})
}

func (w *world) virtualService() {
	namespace := pick(w, "namespace", worldNamespaces)
	spec := fields{}
	var hosts []string
	w.times("hosts", 1, 3, func() {
		if h := w.host(namespace); !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	})
	spec["hosts"] = hosts
	if gateways := w.gatewayNames(); gateways != nil {
		spec["gateways"] = gateways
		if w.oneIn(3, "all hosts") && !slices.Contains(gateways, "mesh") {
			spec["hosts"] = []string{"*"}
		}
	}
	if w.oneIn(5, "tcp") {
		spec["tcp"] = []fields{{"match": []fields{{"port": 3306}}, "route": w.destinations(namespace, false)}}
	}
	if w.oneIn(5, "tls") {
		spec["tls"] = []fields{{"match": []fields{{"port": pick(w, "tls port", []int{443, 8443}), "sniHosts": []string{pick(w, "sni", hosts)}}}, "route": w.destinations(namespace, false)}}
	}
	if len(spec) < 3 || rapid.Bool().Draw(w.T, "http") {
		var routes []fields
		w.times("http routes", 0, 2, func() { routes = append(routes, w.httpRoute(namespace, true)) })
		spec["http"] = append(routes, w.httpRoute(namespace, false))
	}
	name := pick(w, "name", worldNames)
	if w.oneIn(5, "delegates") {
		delegate := "to-" + name
		in := pick(w, "delegate's namespace", worldNamespaces)
		spec = fields{"hosts": hosts, "gateways": spec["gateways"], "http": []fields{{"match": []fields{{"uri": fields{"prefix": "/to"}}}, "delegate": fields{"name": delegate, "namespace": in}}}}
		if spec["gateways"] == nil {
			delete(spec, "gateways")
		}
		w.add("networking.istio.io/v1beta1", "VirtualService", delegate, in, nil, fields{"http": []fields{w.httpRoute(in, false)}})
	}
	w.add("networking.istio.io/v1beta1", "VirtualService", name, namespace, nil, w.exportTo(spec))
}

// destination draws where a request goes.
func (w *world) destination(namespace string) fields {
	d := fields{"host": w.host(namespace)}
	if d["host"].(string)[0] == '*' {
		d["host"] = "db.example"
	}
	if rapid.Bool().Draw(w.T, "to a subset") {
		d["subset"] = w.subset()
	}
	if rapid.Bool().Draw(w.T, "to a port") {
		d["port"] = fields{"number": pick(w, "port", []int{80, 8080, 3306, 443})}
	}
	return d
}

func (w *world) destinations(namespace string, headers bool) (all []fields) {
	n := rapid.IntRange(1, 3).Draw(w.T, "destinations")
	for i := range n {
		d := fields{"destination": w.destination(namespace)}
		if n > 1 {
			d["weight"] = 10 + 20*i
		}
		if headers && w.oneIn(4, "headers") {
			d["headers"] = fields{"request": fields{"set": fields{"x-to": "web"}}, "response": fields{"remove": []string{"x-from"}}}
		}
		all = append(all, d)
	}
	return all
}

func (w *world) httpRoute(namespace string, matched bool) fields {
	route := fields{}
	if matched {
		route["match"] = []fields{w.httpMatch(namespace)}
	}
	if w.oneIn(8, "redirect") {
		route["redirect"] = fields{"uri": "/there", "authority": pick(w, "authority", []string{"db.example", "web"})}
		return route
	}
	if w.oneIn(8, "direct response") {
		route["directResponse"] = fields{"status": 418, "body": fields{"string": "no"}}
		return route
	}
	route["route"] = w.destinations(namespace, true)
	if w.oneIn(4, "fault") {
		if rapid.Bool().Draw(w.T, "delay") {
			route["fault"] = fields{"delay": fields{"fixedDelay": "2s", "percentage": fields{"value": 10}}}
		} else {
			route["fault"] = fields{"abort": fields{"httpStatus": 500, "percentage": fields{"value": 50}}}
		}
	}
	switch rapid.IntRange(0, 5).Draw(w.T, "mirror") {
	case 0:
		route["mirror"] = w.destination(namespace)
		route["mirrorPercentage"] = fields{"value": 10}
	case 1:
		route["mirrors"] = []fields{{"destination": w.destination(namespace)}, {"destination": w.destination(namespace), "percentage": fields{"value": 5}}}
	}
	if w.oneIn(4, "retries") {
		route["retries"] = fields{"attempts": 2, "perTryTimeout": "1s"}
		route["timeout"] = "5s"
	}
	if w.oneIn(5, "rewrite") {
		route["rewrite"] = fields{"authority": pick(w, "authority", []string{"web", full("web", "shop")})}
	}
	return route
}

func (w *world) httpMatch(namespace string) fields {
	switch rapid.IntRange(0, 6).Draw(w.T, "match") {
	case 0:
		return fields{"headers": fields{"end-user": fields{"exact": pick(w, "user", []string{"jason", "mary"})}}}
	case 1:
		return fields{"uri": fields{"prefix": "/" + pick(w, "prefix", worldNames)}, "sourceLabels": w.appLabels()}
	case 2:
		return fields{"uri": fields{"exact": "/exact"}, "port": 80}
	case 3:
		return fields{"authority": fields{"exact": pick(w, "authority", []string{"web", full("web", "shop")})}}
	case 4:
		return fields{"uri": fields{"prefix": "/in"}, "sourceNamespace": pick(w, "source namespace", worldNamespaces)}
	case 5:
		return fields{"method": fields{"exact": "GET"}, "gateways": some(w, "gateways of match", []string{"mesh", "a", namespace + "/b"})}
	default:
		return fields{"uri": fields{"regex": "/v[0-9]+"}, "withoutHeaders": fields{"x-not": fields{}}}
	}
}

func (w *world) sidecar() {
	namespace := pick(w, "namespace", worldNamespaces)
	hosts := func() []string {
		return some(w, "imported", []string{"./*", rootNamespace + "/*", "bank/*", "*/" + full("web", "shop"), "shop/" + full("api", "shop"), "*/*.example", "~/*"})
	}
	spec := w.selector(fields{}, "workloadSelector", "labels")
	egress := []fields{{"hosts": hosts()}}
	if w.oneIn(3, "listener of its own") {
		egress = append([]fields{{"port": fields{"number": 80, "protocol": "HTTP", "name": "http"}, "hosts": hosts()}}, egress...)
	}
	spec["egress"] = egress
	if w.oneIn(3, "registry only") {
		spec["outboundTrafficPolicy"] = fields{"mode": "REGISTRY_ONLY"}
	}
	if w.oneIn(3, "ingress") {
		spec["ingress"] = []fields{{"port": fields{"number": 80, "protocol": "HTTP", "name": "http"}, "defaultEndpoint": "127.0.0.1:8000"}}
	}
	w.add("networking.istio.io/v1beta1", "Sidecar", pick(w, "name", worldNames), namespace, nil, spec)
}

func (w *world) authorizationPolicy() {
	spec := w.selector(fields{}, "selector", "matchLabels")
	spec["action"] = pick(w, "action", []string{"ALLOW", "DENY", "AUDIT"})
	rule := fields{}
	switch rapid.IntRange(0, 3).Draw(w.T, "from") {
	case 0:
		rule["from"] = []fields{{"source": fields{"namespaces": some(w, "from namespaces", []string{"shop", "bank", "sh*"})}}}
	case 1:
		rule["from"] = []fields{{"source": fields{"principals": []string{"mesh.example/ns/shop/sa/web", "*/sa/api"}}}}
	case 2:
		rule["from"] = []fields{{"source": fields{"ipBlocks": []string{"10.1.0.0/16"}, "notRequestPrincipals": []string{"*"}}}}
	}
	if rapid.Bool().Draw(w.T, "to") {
		rule["to"] = []fields{{"operation": fields{"methods": []string{"GET"}, "paths": []string{"/a*"}, "hosts": some(w, "to hosts", []string{"web", full("web", "shop"), "*.example"})}}}
	}
	if w.oneIn(3, "when") {
		rule["when"] = []fields{{"key": "request.headers[x-user]", "values": []string{"jason"}}}
	}
	if !w.oneIn(4, "no rule") {
		spec["rules"] = []fields{rule}
	}
	w.add("security.istio.io/v1beta1", "AuthorizationPolicy", pick(w, "name", worldNames), pick(w, "namespace", worldNamespaces), nil, spec)
}

func (w *world) peerAuthentication() {
	spec := w.selector(fields{}, "selector", "matchLabels")
	modes := []string{"STRICT", "PERMISSIVE", "DISABLE", "UNSET"}
	spec["mtls"] = fields{"mode": pick(w, "mode", modes)}
	if spec["selector"] != nil && rapid.Bool().Draw(w.T, "by port") {
		spec["portLevelMtls"] = fields{"80": fields{"mode": pick(w, "mode of port", modes)}}
	}
	w.add("security.istio.io/v1beta1", "PeerAuthentication", pick(w, "name", worldNames), pick(w, "namespace", worldNamespaces), nil, spec)
}

func (w *world) requestAuthentication() {
	spec := w.selector(fields{}, "selector", "matchLabels")
	spec["jwtRules"] = []fields{{
		"issuer": "https://" + pick(w, "issuer", externalHosts[:2]),
		"jwks":   `{"keys":[{"kty":"RSA","kid":"k","e":"AQAB","n":"xAE7eB6qugXyCAG3yhh7pkDkT65pHymX"}]}`,
	}}
	w.add("security.istio.io/v1beta1", "RequestAuthentication", pick(w, "name", worldNames), pick(w, "namespace", worldNamespaces), nil, spec)
}
