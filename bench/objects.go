package main

import (
	"fmt"
	"strings"
)

// nodes is how many Nodes a cluster with Services has, in three zones of one region.
const nodes = 30

// The kinds of uid.
const (
	uidOfNode = iota
	uidOfSlice
	uidOfPod
	uidOfSet
)

func nodeObject(n int) []byte {
	return fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q, "uid": %q, "creationTimestamp": "2026-01-01T00:00:00Z",
"labels": {"kubernetes.io/hostname": %[1]q, "kubernetes.io/os": "linux", "topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": "zone-%[3]d"}},
"spec": {"podCIDR": "10.%[4]d.0.0/16"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.%[4]d"}]}}`,
		nodeName(n), uid(uidOfNode, n), n%3, n+1)
}

func serviceObject(index int) []byte {
	return fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": %q, "labels": {"app": %[1]q},
"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"annotations\":{},\"labels\":{\"app\":\"%[1]s\"},\"name\":\"%[1]s\"},\"spec\":{\"ports\":[{\"name\":\"http\",\"port\":80,\"targetPort\":8080}],\"selector\":{\"app\":\"%[1]s\"}}}"}},
"spec": {"selector": {"app": %[1]q}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}`, itemShort(index))
}

func slicePut(index int, state []podState) put {
	pods := len(state)
	endpoints := make([]string, pods)
	for n, p := range state {
		endpoints[n] = fmt.Sprintf(`{"addresses": [%q], "conditions": {"ready": %[2]t, "serving": %[2]t, "terminating": false}, "nodeName": %[3]q, "zone": %[4]q,
"targetRef": {"kind": "Pod", "namespace": %[5]q, "name": %[6]q, "uid": %[7]q}}`,
			podAddress(index, n, pods, p.generation), p.ready, nodeName(nodeOf(n)), zoneOf(n), namespaceOf(index), podName(index, n), uid(uidOfPod, index*pods+n))
	}
	name := itemShort(index) + "-x7k2p"
	return put{"/registry/endpointslices/" + namespaceOf(index) + "/" + name, fmt.Appendf(nil, `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
"metadata": {"name": %q, "namespace": %q, "uid": %q, "generateName": "%s-", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
"labels": {"app": %[4]q, "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io", "kubernetes.io/service-name": %[4]q},
"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}, "managedFields": [%[5]s]},
"addressType": "IPv4", "endpoints": [%[6]s], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]}`,
		name, namespaceOf(index), uid(uidOfSlice, index), itemShort(index), managedFields("kube-controller-manager", 8), strings.Join(endpoints, ","))}
}

// managedFields returns the fields of a manager, as managedBy does, on one line: nobody writes them through the server.
func managedFields(manager string, fields int) string {
	return strings.ReplaceAll(managedBy(manager, fields), "\n", " ")
}

// podPut returns a pod with a sidecar, as clusters have them: about 7 kB.
func podPut(index, n, pods int, p podState, restarts int) put {
	name, address := podName(index, n), podAddress(index, n, pods, p.generation)
	var env, conditions, statuses []string
	for i := range 14 {
		env = append(env, fmt.Sprintf(`{"name": "SETTING_%02d", "value": "value-of-setting-%02d"}`, i, i))
	}
	for _, c := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		conditions = append(conditions, fmt.Sprintf(`{"type": %q, "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}`, c))
	}
	for _, c := range []string{"app", "istio-proxy"} {
		statuses = append(statuses, fmt.Sprintf(`{"name": %q, "image": "registry.example.com/%[1]s:1.2.3", "imageID": "registry.example.com/%[1]s@sha256:%064[2]d", "containerID": "containerd://%064[2]d",
"ready": true, "started": true, "restartCount": %[3]d, "lastState": {}, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}`, c, index*pods+n, restarts))
	}
	const mounts = `"volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true}]`
	const probe = `{"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "initialDelaySeconds": 5, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}`
	return put{"/registry/pods/" + namespaceOf(index) + "/" + name, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "generateName": "%[2]s-7d9c8b6f5d-", "namespace": %[3]q, "uid": %[4]q,
"creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": %[2]q, "version": %[5]q, "pod-template-hash": "7d9c8b6f5d", "security.istio.io/tlsMode": "istio",
"service.istio.io/canonical-name": %[2]q, "service.istio.io/canonical-revision": "latest"},
"annotations": {"prometheus.io/path": "/stats/prometheus", "prometheus.io/port": "15020", "prometheus.io/scrape": "true",
"sidecar.istio.io/status": "{\"initContainers\":[\"istio-init\"],\"containers\":[\"istio-proxy\"],\"volumes\":[\"workload-socket\",\"istio-envoy\",\"istio-data\",\"istio-token\"],\"revision\":\"default\"}"},
"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "%[2]s-7d9c8b6f5d", "uid": %[6]q, "controller": true, "blockOwnerDeletion": true}], "managedFields": [%[7]s,%[8]s]},
"spec": {"nodeName": %[9]q, "serviceAccountName": %[10]q, "serviceAccount": %[10]q, "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30, "securityContext": {},
"volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]}}],
"containers": [{"name": "app", "image": "registry.example.com/app:1.2.3", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}], "env": [%[11]s], "livenessProbe": %[12]s, "readinessProbe": %[12]s,
"resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}, "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", %[13]s},
{"name": "istio-proxy", "image": "registry.example.com/proxy:1.2.3", "args": ["proxy", "sidecar", "--domain", "$(POD_NAMESPACE).svc.cluster.local"], "ports": [{"name": "http-envoy-prom", "containerPort": 15090, "protocol": "TCP"}],
"env": [%[11]s], "readinessProbe": %[12]s, "resources": {"requests": {"cpu": "10m", "memory": "40Mi"}}, "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", %[13]s}]},
"status": {"phase": "Running", "qosClass": "Burstable", "hostIP": "192.168.0.%[14]d", "podIP": %[15]q, "podIPs": [{"ip": %[15]q}], "startTime": "2026-01-01T00:00:00Z", "conditions": [%[16]s], "containerStatuses": [%[17]s]}}`,
		name, itemShort(index), namespaceOf(index), uid(uidOfPod, index*pods+n), p.version, uid(uidOfSet, index),
		managedFields("kube-controller-manager", 16), managedFields("kubelet", 16), nodeName(nodeOf(n)), accountOf(index), strings.Join(env, ","), probe, mounts,
		nodeOf(n)+1, address, strings.Join(conditions, ","), strings.Join(statuses, ","))}
}
