package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// cluster is a cluster with services. It writes pods and EndpointSlices as nodes and controllers would.
type cluster struct {
	k      *kubernetes
	nodes  map[string][]string        // region, zone and subzone of each node, as far as it has them
	slices map[string]map[string]bool // names of the EndpointSlices of each service
}

// dualStack are the flags of an API server that gives services addresses of both families.
var dualStack = []string{"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"}

// newCluster starts a cluster, with the namespaces and nodes of the tests.
func newCluster(t *testing.T, name string, flags ...string) *cluster {
	t.Helper()
	w := &cluster{k: newKubernetesWith(t, name, "AlwaysAllow", flags...), nodes: map[string][]string{}, slices: map[string]map[string]bool{}}
	for _, n := range []string{"istio-system", "kube-system", "shop", "web"} {
		if err := w.k.do(http.MethodPatch, "/api/v1/namespaces/"+n+"?fieldManager=e2e&force=true", "application/apply-patch+yaml",
			[]byte("{apiVersion: v1, kind: Namespace, metadata: {name: "+n+"}}")); err != nil {
			t.Fatal(err)
		}
	}
	w.node("node-a", "north", "a")
	w.node("node-b", "north", "b")
	w.node("node-c", "south", "c", "rack-1")
	w.node("node-d") // of no place
	return w
}

// node makes a node, at a region, zone and subzone.
func (w *cluster) node(name string, place ...string) {
	w.k.t.Helper()
	labels := map[string]string{"kubernetes.io/hostname": name}
	for i, key := range []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"} {
		if i < len(place) {
			labels[key] = place[i]
		}
	}
	w.nodes[name] = place
	w.k.apply(encode(w.k.t, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "labels": labels}}))
}

// service is a Service, with its pods and EndpointSlices.
type service struct {
	namespace, name string
	spec            map[string]any // in addition to the ports and the selector
	unselected      bool           // it has no selector
	annotations     map[string]string
	labels          map[string]string
	ports           []worldPort
	slices          []slice
}

// worldPort is a port of a service. Its pods have it at the number at.
type worldPort struct {
	name          string
	number, at    int
	protocol, app string // TCP, and no appProtocol, when empty
	target        string // the name that pods have for it; at when empty
}

// slice is an EndpointSlice. at are the numbers of ports, by name, that differ from those of the service; 0 is for a
// port that the slice has not.
type slice struct {
	at   map[string]int
	v6   bool // it has the second addresses
	pods []instance
}

// instance is an endpoint of a service: a pod, or an address of nothing when it has no name.
type instance struct {
	name, ip, ip6, node, account string
	labels                       map[string]string
	outOfMesh                    bool // without a sidecar
	unready, terminating         bool
	published                    bool // unready, and an endpoint nevertheless
}

func (i instance) ready() bool { return i.published || !i.unready && !i.terminating }

func protocolOf(p worldPort) string { return cmp.Or(p.protocol, "TCP") }

// put creates or changes a service with all that is of it.
func (w *cluster) put(s service) {
	w.k.t.Helper()
	w.putService(s)
	for _, sl := range s.slices {
		for _, i := range sl.pods {
			w.putPod(s.namespace, s.name, i)
		}
	}
	w.putSlices(s)
}

func (w *cluster) putService(s service) {
	w.k.t.Helper()
	var ports []map[string]any
	for _, p := range s.ports {
		port := map[string]any{"port": p.number, "protocol": protocolOf(p), "targetPort": p.at}
		if p.target != "" {
			port["targetPort"] = p.target
		}
		if p.name != "" {
			port["name"] = p.name
		}
		if p.app != "" {
			port["appProtocol"] = p.app
		}
		ports = append(ports, port)
	}
	spec := maps.Clone(s.spec)
	if spec == nil {
		spec = map[string]any{}
	}
	spec["ports"] = ports
	if !s.unselected {
		spec["selector"] = map[string]string{"app": s.name}
	}
	w.k.apply(encode(w.k.t, map[string]any{
		"apiVersion": "v1", "kind": "Service", "spec": spec,
		"metadata": map[string]any{"namespace": s.namespace, "name": s.name, "annotations": s.annotations, "labels": s.labels},
	}))
}

// putPod makes the pod of an instance, if it is of one.
func (w *cluster) putPod(namespace, app string, i instance) {
	w.k.t.Helper()
	if i.name == "" {
		return
	}
	labels := map[string]string{"app": app}
	if !i.outOfMesh {
		labels["security.istio.io/tlsMode"] = "istio"
	}
	maps.Copy(labels, i.labels)
	spec := map[string]any{"containers": []map[string]any{{"name": "app", "image": "app"}}, "serviceAccountName": cmp.Or(i.account, "default")}
	if i.node != "" {
		spec["nodeName"] = i.node
	}
	object := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": namespace, "name": i.name, "labels": labels}, "spec": spec}
	w.k.apply(encode(w.k.t, object))
	ready, ips := "True", []map[string]string{{"ip": i.ip}}
	if i.unready {
		ready = "False"
	}
	if i.ip6 != "" {
		ips = append(ips, map[string]string{"ip": i.ip6})
	}
	delete(object, "spec")
	object["metadata"] = map[string]any{"namespace": namespace, "name": i.name}
	object["status"] = map[string]any{
		"phase": "Running", "podIP": i.ip, "podIPs": ips, "conditions": []map[string]string{{"type": "Ready", "status": ready}},
	}
	w.k.applyStatus(encode(w.k.t, object))
}

// putSlices writes the EndpointSlices of a service, and deletes those that it has not any more.
func (w *cluster) putSlices(s service) {
	w.k.t.Helper()
	id, now := s.namespace+"/"+s.name, map[string]bool{}
	for n, sl := range s.slices {
		name, family := fmt.Sprintf("%s-%d", s.name, n), "IPv4"
		if sl.v6 {
			family = "IPv6"
		}
		now[name] = true
		ports := []map[string]any{}
		for _, p := range s.ports {
			at, has := sl.at[p.name]
			if !has {
				at = p.at
			}
			if at != 0 {
				port := map[string]any{"name": p.name, "port": at, "protocol": protocolOf(p)}
				if p.app != "" {
					port["appProtocol"] = p.app
				}
				ports = append(ports, port)
			}
		}
		endpoints := []map[string]any{}
		for _, i := range sl.pods {
			endpoints = append(endpoints, w.endpoint(s.namespace, i, sl.v6))
		}
		w.k.apply(encode(w.k.t, map[string]any{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family, "ports": ports, "endpoints": endpoints,
			"metadata": map[string]any{"namespace": s.namespace, "name": name, "labels": map[string]string{"kubernetes.io/service-name": s.name}},
		}))
	}
	for name := range w.slices[id] {
		if !now[name] {
			w.k.delete("discovery.k8s.io/v1", "EndpointSlice", s.namespace, name)
		}
	}
	w.slices[id] = now
}

func (w *cluster) endpoint(namespace string, i instance, v6 bool) map[string]any {
	address := i.ip
	if v6 {
		address = i.ip6
	}
	e := map[string]any{
		"addresses":  []string{address},
		"conditions": map[string]any{"ready": i.ready(), "serving": !i.unready || i.published, "terminating": i.terminating},
	}
	if i.name != "" {
		e["targetRef"] = map[string]any{"kind": "Pod", "namespace": namespace, "name": i.name}
	}
	if i.node != "" {
		e["nodeName"] = i.node
		if place := w.nodes[i.node]; len(place) > 1 {
			e["zone"] = place[1]
		}
	}
	return e
}

// remove deletes a service with all that is of it.
func (w *cluster) remove(s service) {
	w.k.t.Helper()
	w.k.delete("v1", "Service", s.namespace, s.name)
	for _, sl := range s.slices {
		for _, i := range sl.pods {
			w.removePod(s.namespace, i)
		}
	}
	w.putSlices(service{namespace: s.namespace, name: s.name})
}

func (w *cluster) removePod(namespace string, i instance) {
	w.k.t.Helper()
	if i.name != "" {
		w.k.delete("v1", "Pod", namespace, i.name)
	}
}

// relayOfServices returns a relay, not yet started, of one upstream named east. source is its connection, and services
// its section services.
func relayOfServices(t *testing.T, name, source, services string) *relay {
	t.Helper()
	return relayOf(t, name, fmt.Sprintf(`upstreams:
- {name: east, %s, services: %s, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, source, services))
}

func fromAPIServer(k *kubernetes) string {
	return fmt.Sprintf("kubernetes: {cluster: {kubeconfig: %q}}", k.kubeconfig)
}

func fromIstiod(i *istiod) string {
	return fmt.Sprintf("xds: {addresses: [%q], plaintext: true}", i.grpc)
}

// entries returns the ServiceEntries of Services that a server has, by "NAMESPACE/NAME" of the Service.
func entries(c *xdsClient) (map[string]*networking.ServiceEntry, error) {
	all, err := c.list(seV1alpha3)
	if err != nil {
		return nil, err
	}
	out := map[string]*networking.ServiceEntry{}
	for name, r := range all {
		if !strings.Contains(name, synthetic) {
			continue
		}
		se := &networking.ServiceEntry{}
		if err := r.Body.UnmarshalTo(se); err != nil {
			return nil, err
		}
		out[strings.Replace(name, synthetic, "/", 1)] = se
	}
	return out, nil
}

// tells returns what a server that reads an API server and one that reads its istiod tell alike of a service: all but the
// labels, the service accounts and the weights of its endpoints.
func tells(se *networking.ServiceEntry) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v %v %v exported to %v", se.Hosts, se.Location, se.Resolution, se.Addresses, se.ExportTo)
	if se.WorkloadSelector != nil {
		fmt.Fprintf(&b, " selects %v", se.WorkloadSelector)
	}
	for _, p := range se.Ports {
		fmt.Fprintf(&b, "\n  %d %s %s %d", p.Number, p.Name, p.Protocol, p.TargetPort)
		var at []string
		for _, e := range se.Endpoints {
			number, named := e.Ports[p.Name]
			if !named {
				number = cmp.Or(p.TargetPort, p.Number)
			}
			at = append(at, fmt.Sprintf("%s|%d in %q on %q mtls %t", e.Address, number, e.Locality, e.Network, e.Labels["security.istio.io/tlsMode"] == "istio"))
		}
		slices.Sort(at)
		for _, e := range at {
			b.WriteString("\n    " + e)
		}
	}
	return b.String()
}

// addressesByPort returns "ADDRESS:PORT" of the endpoints by the ports of a service.
func addressesByPort(se *networking.ServiceEntry) map[int][]string {
	out := map[int][]string{}
	for _, p := range se.Ports {
		out[int(p.Number)] = nil
		for _, e := range se.Endpoints {
			number, named := e.Ports[p.Name]
			if !named {
				number = cmp.Or(p.TargetPort, p.Number)
			}
			out[int(p.Number)] = append(out[int(p.Number)], e.Address+":"+strconv.Itoa(int(number)))
		}
		slices.Sort(out[int(p.Number)])
	}
	return out
}

// sameServices compares what two servers tell of all services but those in except, which only the second may have.
func sameServices(direct, byIstiod *xdsClient, tell func(*networking.ServiceEntry) string, except ...string) (map[string]*networking.ServiceEntry, error) {
	have, err := entries(direct)
	if err != nil {
		return nil, err
	}
	want, err := entries(byIstiod)
	if err != nil {
		return nil, err
	}
	var diffs []string
	for _, name := range slices.Sorted(maps.Keys(have)) {
		switch {
		case slices.Contains(except, name):
			diffs = append(diffs, name+" must not be there")
		case want[name] == nil:
			diffs = append(diffs, name+" comes from the API server alone")
		case tell(have[name]) != tell(want[name]):
			diffs = append(diffs, fmt.Sprintf("%s is\n%s\nand, by way of the istiod,\n%s", name, tell(have[name]), tell(want[name])))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] == nil && !slices.Contains(except, name) {
			diffs = append(diffs, name+" comes from the istiod alone")
		}
	}
	if len(diffs) > 0 {
		return nil, errors.New(strings.Join(diffs[:min(5, len(diffs))], "\n"))
	}
	return have, nil
}
