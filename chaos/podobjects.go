package main

func podMetadata(name string, labels map[string]any) map[string]any {
	return map[string]any{"namespace": podNamespace, "name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
}

func serviceObject(name string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": podMetadata(name, map[string]any{"app": name}),
		"spec": map[string]any{
			"clusterIP": "10.96.0.1", "clusterIPs": []any{"10.96.0.1"}, "selector": map[string]any{"app": name},
			"ports": []any{map[string]any{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}},
		},
	}
}

func podObject(x *pod) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": podMetadata(x.name, map[string]any{podLabel: x.label}),
		"spec": map[string]any{"nodeName": "node", "serviceAccountName": "default"},
		"status": map[string]any{
			"phase": "Running", "podIP": x.address, "podIPs": []any{map[string]any{"ip": x.address}},
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		},
	}
}

func sliceObject(service string, pods []*pod) map[string]any {
	endpoints := []any{}
	for _, x := range pods {
		endpoints = append(endpoints, map[string]any{
			"addresses": []any{x.address}, "conditions": map[string]any{"ready": x.ready}, "nodeName": "node", "zone": "zone",
			"targetRef": map[string]any{"kind": "Pod", "namespace": podNamespace, "name": x.name},
		})
	}
	return map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": podMetadata(service+"-slice", map[string]any{"kubernetes.io/service-name": service}),
		"addressType": "IPv4", "endpoints": endpoints, "ports": []any{map[string]any{"name": "http", "port": 8080, "protocol": "TCP"}},
	}
}
