package services

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/federation"
	endpoints "meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/object"
)

// objectOf returns an object. text is JSON as an API server sends it, without kind, name and namespace.
func objectOf(tb testing.TB, name, text string) *object.Object {
	tb.Helper()
	var fields struct {
		Metadata     metav1.ObjectMeta
		Spec, Status json.RawMessage
	}
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	o := &object.Object{ObjectMeta: fields.Metadata, Spec: fields.Spec, Status: fields.Status}
	o.Namespace, o.Name, _ = strings.Cut(name, "/")
	if strings.Contains(text, `"addressType"`) {
		o.Spec = []byte(text)
	}
	return o
}

func decode(tb testing.TB, in Input, name, text string) object.Input {
	tb.Helper()
	d, err := Decode(in, objectOf(tb, name, text))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// world is a State in a test.
type world struct {
	*State
	tb testing.TB
}

// newWorld returns a State whose inputs have synced, but for Pods, which can not be read; those of a test are known.
func newWorld(tb testing.TB, o Options) *world {
	w := &world{New(o), tb}
	w.Absent(Pods)
	for in := range inputs {
		if in != Pods {
			w.Synced(in)
		}
	}
	return w
}

func (w *world) set(in Input, name, text string) {
	w.tb.Helper()
	w.Set(decode(w.tb, in, name, text))
}

func (w *world) service(name, spec string) { w.set(Services, name, `{"spec":`+spec+`}`) }

// slice sets an EndpointSlice of a Service. Its port http is 8080. endpoints are JSON.
func (w *world) slice(name, service string, endpoints ...string) {
	w.set(Slices, name, fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":%q}},"addressType":"IPv4","endpoints":[%s],"ports":[{"name":"http","port":8080}]}`,
		service, strings.Join(endpoints, ",")))
}

// pod sets a pod that is ready.
func (w *world) pod(name, ip, labels string) { w.set(Pods, name, podText(ip, labels, "")) }

func podText(ip, labels, more string) string {
	return `{"metadata":{"labels":{` + labels + `}` + more + `},"spec":{"nodeName":"n1","serviceAccountName":"acc","containers":[{"ports":[{"name":"web","containerPort":9000}]}]},` +
		`"status":{"phase":"Running","podIP":"` + ip + `","conditions":[{"type":"Ready","status":"True"}]}}`
}

func (w *world) node(name, region, zone string) {
	w.set(Nodes, "/"+name, fmt.Sprintf(`{"metadata":{"labels":{"topology.kubernetes.io/region":%q,"topology.kubernetes.io/zone":%q}}}`, region, zone))
}

func (w *world) namespace(name, distribution string) {
	w.set(Namespaces, "/"+name, fmt.Sprintf(`{"metadata":{"annotations":{"networking.istio.io/traffic-distribution":%q}}}`, distribution))
}

// target returns an endpoint of a slice that is a pod of the namespace shop.
func target(pod string, addresses ...string) string {
	return fmt.Sprintf(`{"addresses":["%s"],"nodeName":"n1","targetRef":{"kind":"Pod","namespace":"shop","name":%q}}`, strings.Join(addresses, `","`), pod)
}

// text returns the endpoints of a cluster, "ADDRESS:PORT LOCALITY NETWORK ACCOUNT mtls xWEIGHT" each, and "none" for an
// unknown cluster.
func (w *world) text(cluster string) string {
	if _, wanted := w.reads.byCluster[cluster]; !wanted {
		w.Want(map[string]struct{}{cluster: {}})
	}
	all, known := w.Endpoints(cluster)
	if !known {
		return "none"
	}
	var out []string
	for _, e := range all {
		address := e.Host
		if e.Addr.IsValid() {
			address = e.Addr.String()
		}
		one := fmt.Sprintf("%s:%d %s %s %s", address, e.Port, e.Locality, e.Network, e.Account)
		if e.TLS {
			one += " mtls"
		}
		if e.Weight > 0 {
			one += fmt.Sprintf(" x%d", e.Weight)
		}
		out = append(out, strings.Join(strings.Fields(one), " "))
	}
	return strings.Join(out, ", ")
}

func (w *world) has(cluster, want string) {
	w.tb.Helper()
	if have := w.text(cluster); have != want {
		w.tb.Errorf("%s: %q, want %q", cluster, have, want)
	}
}

// flushed checks the names of the outputs that changed, with a minus if they are gone, and the changed clusters.
func (w *world) flushed(want ...string) {
	w.tb.Helper()
	changes, have := w.Flush()
	for _, c := range changes {
		name := c.Key.FullName()
		if c.Gone() {
			name = "-" + name
		}
		have = append(have, name)
	}
	if !slices.Equal(have, want) {
		w.tb.Errorf("flushed %q, want %q", have, want)
	}
}

// entry returns the ServiceEntry of a Service as JSON, or why it is left out.
func (w *world) entry(service string) string {
	w.tb.Helper()
	for _, out := range w.All() {
		if out.Key.FullName() != strings.Replace(service, "/", "/synthetic-", 1) {
			continue
		}
		if out.LeftOut != "" {
			return out.LeftOut
		}
		text, err := protojson.Marshal(out.Body)
		if err != nil {
			w.tb.Fatal(err)
		}
		return string(text)
	}
	return ""
}

const (
	dbHTTP  = "outbound|80||db.shop.svc.cluster.local"
	dbSpec  = `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80}],"selector":{"app":"db"}}`
	anyApp  = "workloads|shop||http|7000"
	someApp = "workloads|shop|app=db|http|7000"
)

func TestAServiceIsTheEntryThatAnIstiodMakes_K15(t *testing.T) {
	const head, ports = `"hosts":["db.shop.svc.cluster.local"]`, `"ports":[{"number":80,"protocol":"HTTP","name":"http"}]`
	internal := func(more string) string {
		return `{` + head + `,"addresses":["10.96.0.1"],` + ports + `,"location":"MESH_INTERNAL","resolution":"STATIC"` + more + `}`
	}
	for name, tc := range map[string]struct{ metadata, spec, want string }{
		// As the istiod in the e2e tests makes it.
		"a cluster IP":          {``, dbSpec, internal(`,"workloadSelector":{"labels":{"app":"db"}}`)},
		"no selector":           {``, `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80}]}`, internal(``)},
		"one address in a list": {``, `{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ports":[{"name":"http","port":80}]}`, internal(``)},
		"two families":          {``, `{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1","fd00::1"],"ports":[{"name":"http","port":80}]}`, internal(``)},
		"headless": {``, `{"clusterIP":"None","clusterIPs":["None"],"ports":[{"name":"http","port":80}]}`,
			`{` + head + `,"addresses":["0.0.0.0"],` + ports + `,"location":"MESH_INTERNAL"}`},
		"no address yet": {``, `{"ports":[{"name":"http","port":80}]}`, strings.Replace(internal(``), "10.96.0.1", "0.0.0.0", 1)},
		"an alias": {``, `{"type":"ExternalName","externalName":"a.example","ports":[{"name":"http","port":80}]}`,
			`{` + head + `,"addresses":["0.0.0.0"],` + ports + `,"resolution":"DNS"}`},
		"annotations": {`{"annotations":{"networking.istio.io/exportTo":".,bank","alpha.istio.io/canonical-serviceaccounts":"a,b","x":"y"}}`,
			`{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80}]}`, internal(`,"exportTo":[".","bank"],"subjectAltNames":["a","b"]`)},
		"UDP, and a port without a name": {``, `{"clusterIP":"10.96.0.1","ports":[{"port":53,"protocol":"UDP"},{"port":99,"protocol":"TCP"}]}`,
			`{` + head + `,"addresses":["10.96.0.1"],"ports":[{"number":53,"protocol":"UDP"},{"number":99,"protocol":"UnsupportedProtocol"}],"location":"MESH_INTERNAL","resolution":"STATIC"}`},
		"no ports": {``, `{"clusterIP":"10.96.0.1"}`, `{` + head + `,"addresses":["10.96.0.1"],"location":"MESH_INTERNAL","resolution":"STATIC"}`},
	} {
		w := newWorld(t, Options{})
		if tc.metadata == "" {
			tc.metadata = `{}`
		}
		w.set(Services, "shop/db", `{"metadata":`+tc.metadata+`,"spec":`+tc.spec+`}`)
		have, want := &networking.ServiceEntry{}, &networking.ServiceEntry{}
		if err := protojson.Unmarshal([]byte(tc.want), want); err != nil {
			t.Fatal(name, err)
		}
		if err := protojson.Unmarshal([]byte(w.entry("shop/db")), have); err != nil || !proto.Equal(have, want) {
			t.Errorf("%s: %v\n%v\nwant\n%v", name, err, have, want)
		}
	}
}

func TestAnOutputHasNameLabelsAndTimeOfTheService_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.set(Services, "shop/db", `{"metadata":{"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"team":"a"}},"spec":`+dbSpec+`}`)
	all := w.All()
	if out := all[0]; len(all) != 1 || out.Key.FullName() != "shop/synthetic-db" || out.Labels["team"] != "a" || !out.Created.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("%+v", out)
	}
}

// The order is that of istio pilot/pkg/model/service.go GetTrafficDistribution.
func TestTheDistributionIsThatOfTheSpecOrElseOfTheAnnotation_K15(t *testing.T) {
	for _, tc := range []struct{ spec, annotation, want string }{
		{"", "", ""}, {"PreferClose", "", "PreferClose"}, {"PreferSameZone", "", "PreferSameZone"}, {"PreferSameNode", "PreferClose", "PreferSameNode"},
		{"", "preferclose", "preferclose"},
	} {
		w := newWorld(t, Options{})
		w.set(Services, "shop/db", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"clusterIP":"10.96.0.1","trafficDistribution":%q,"ports":[{"port":80}]}}`, federation.DistributionAnnotation, tc.annotation, tc.spec))
		changes, _ := w.Flush()
		if got := changes[0].Annotations[federation.DistributionAnnotation]; got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
		w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"port":80}]}`)
		if changes, _ = w.Flush(); len(changes) > 0 != (tc.want != "") {
			t.Errorf("%+v: without it, %d changes", tc, len(changes))
		}
	}
}

// The table is the one of istio pkg/config/kube/conversion.go.
func TestProtocolsAreThoseThatAnIstiodFinds_K15(t *testing.T) {
	for port, want := range map[string]string{
		`"name":"http"`: "HTTP", `"name":"http-a"`: "HTTP", `"name":"HTTP2-x"`: "HTTP2", `"name":"httpx"`: "UnsupportedProtocol", `"name":"grpc"`: "GRPC",
		`"name":"grpc-a"`: "GRPC", `"name":"grpc-web"`: "GRPC-Web", `"name":"gRPC-WEB-x"`: "GRPC-Web", `"name":"https-a"`: "HTTPS", `"name":"tls"`: "TLS",
		`"name":"tcp-db"`: "TCP", `"name":"mongo"`: "Mongo", `"name":"redis-a"`: "Redis", `"name":"mysql"`: "MySQL", `"name":"http_proxy"`: "HTTP_PROXY",
		`"name":"a","protocol":"UDP"`: "UDP", `"name":"udp-a"`: "UDP", `"name":"a","protocol":"SCTP"`: "UnsupportedProtocol", `"name":"http","protocol":"SCTP"`: "HTTP", `"protocol":"TCP"`: "UnsupportedProtocol",
		`"name":"a","appProtocol":"http"`: "HTTP", `"name":"http","appProtocol":"tcp"`: "TCP", `"name":"http","appProtocol":"x"`: "UnsupportedProtocol",
		`"name":"http","appProtocol":""`: "UnsupportedProtocol", `"name":"a","appProtocol":"kubernetes.io/h2c"`: "HTTP2", `"name":"tcp","appProtocol":"kubernetes.io/ws"`: "HTTP", `"name":"tcp","appProtocol":"kubernetes.io/wss"`: "HTTPS",
		`"name":"a","appProtocol":"kubernetes.io/ws","protocol":"UDP"`: "UDP", `"name":"a","appProtocol":"kubernetes.io/h2c-x"`: "UnsupportedProtocol", `"name":"a","appProtocol":"Kubernetes.io/WS"`: "UnsupportedProtocol",
		`"name":"a","appProtocol":"kubernetes.io/ws","port":25`: "HTTP", `"name":"a","appProtocol":"grpc","protocol":"UDP"`: "UDP",
		`"name":"a","port":3306`: "TCP", `"name":"http","port":3306`: "HTTP", `"name":"a","port":25`: "TCP", `"name":"a","port":53`: "TCP", `"name":"a","port":27017`: "TCP",
	} {
		if !strings.Contains(port, "port\":") {
			port += `,"port":80`
		}
		w := newWorld(t, Options{})
		w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{`+port+`}]}`)
		if out := w.All()[0].Body.Ports[0]; out.Protocol != want {
			t.Errorf("%s: %s, want %s", port, out.Protocol, want)
		}
	}
}

func TestServicesForTheirOwnClusterAreLeftOut_K15(t *testing.T) {
	federate, err := labels.Parse("federate=true")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		options             Options
		service, more, want string
	}{
		"the API server":         {Options{}, "default/kubernetes", ``, "each cluster has its own API server"},
		"another of its name":    {Options{}, "shop/kubernetes", ``, ""},
		"kube-system":            {Options{}, "kube-system/dns", ``, "services of kube-system are for their own cluster"},
		"the istiod":             {Options{}, "istio-system/istiod", ``, "it is the istiod of its cluster"},
		"another istiod":         {Options{Discovery: "istiod-x.istio-system.svc"}, "istio-system/istiod", ``, ""},
		"an istiod with domain":  {Options{Discovery: "istiod.a.svc.d", Domain: "d"}, "a/istiod", ``, "it is the istiod of its cluster"},
		"a local policy":         {Options{}, "shop/db", `,"internalTrafficPolicy":"Local"`, "its internalTrafficPolicy is Local"},
		"a cluster policy":       {Options{}, "shop/db", `,"internalTrafficPolicy":"Cluster"`, ""},
		"a host of the mesh":     {Options{Local: []string{"db.shop.svc.cluster.local"}}, "shop/db", ``, "serviceSettings of the MeshConfig make its host clusterLocal"},
		"a wildcard of the mesh": {Options{Local: []string{"*.shop.svc.cluster.local"}}, "shop/db", ``, "serviceSettings of the MeshConfig make its host clusterLocal"},
		"another wildcard":       {Options{Local: []string{"*.bank.svc.cluster.local", ""}}, "shop/db", ``, ""},
		"not selected":           {Options{Selector: federate}, "shop/db", ``, "services.selector does not select it"},
		"not exported":           {Options{Exported: true}, "shop/db", ``, "it has no ServiceExport, and services.only is exported"},
	} {
		w := newWorld(t, tc.options)
		w.service(tc.service, `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80}]`+tc.more+`}`)
		have, left := w.entry(tc.service), tc.want != ""
		if left != (have == tc.want) {
			t.Errorf("%s: %q, want %q", name, have, tc.want)
		}
		namespace, service, _ := strings.Cut(tc.service, "/")
		domain := tc.options.withDefaults().Domain
		// One that is not shared any more may be held.
		if _, known := w.Endpoints("outbound|80||" + service + "." + namespace + ".svc." + domain); known != (!left || strings.Contains(name, "not ")) {
			t.Errorf("%s: its cluster is known: %v", name, known)
		}
	}
	w := newWorld(t, Options{Selector: federate})
	w.set(Services, "shop/db", `{"metadata":{"labels":{"federate":"true"}},"spec":`+dbSpec+`}`)
	if have := w.entry("shop/db"); !strings.Contains(have, "hosts") {
		t.Errorf("it is left out: %s", have)
	}
	w = newWorld(t, Options{Exported: true})
	w.service("shop/db", dbSpec)
	w.set(Exports, "shop/db", `{}`)
	w.set(Exports, "bank/web", `{}`)
	w.service("shop/web", dbSpec)
	if db, web := w.entry("shop/db"), w.entry("shop/web"); !strings.Contains(db, "hosts") || !strings.Contains(web, "no ServiceExport") {
		t.Errorf("exported: %s; in another namespace: %s", db, web)
	}
}

// What federation/services makes of an output decides what clients see.
func TestOutputsAreWhatClustersAndWithEndpointsTake_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80,"targetPort":"web"},{"port":53,"protocol":"UDP"}],"selector":{"app":"db"}}`)
	w.pod("shop/a", "10.0.0.1", `"app":"db","version":"v1"`)
	w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
	out := w.All()[0]
	body, err := anypb.New(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{Key: out.Key, Source: "east", Labels: out.Labels, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := endpoints.Clusters(r)
	if err != nil || len(clusters) != 1 || clusters[0].Name != dbHTTP {
		t.Fatalf("%v: %v", clusters, err)
	}
	all, known := w.Endpoints(clusters[0].Name)
	with, _, err := endpoints.WithEndpoints(r, endpoints.Assignments{80: all}, "")
	if err != nil || !known {
		t.Fatal(err)
	}
	se := &networking.ServiceEntry{}
	if err := proto.Unmarshal(with.BodyValue(), se); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"app": "db", "version": "v1", "service.istio.io/canonical-name": "db", "service.istio.io/canonical-revision": "v1", "security.istio.io/tlsMode": "disabled",
	}
	if e := se.Endpoints[0]; len(se.Endpoints) != 1 || e.Address != "10.0.0.1" || e.Ports["http"] != 8080 || e.ServiceAccount != "acc" || !maps.Equal(e.Labels, want) {
		t.Errorf("%v", se.Endpoints)
	}
}

func TestMistakesNameTheObjectAndTheField_K15(t *testing.T) {
	many := strings.Repeat(`{},`, maxValues) + `{}`
	for _, tc := range []struct {
		in               Input
		name, text, want string
	}{
		{Services, "shop/db", `{"spec":{"ports":[{"port":"x"}]}}`, "Service shop/db: spec.ports.port: wrong type or out of range: string"},
		{Services, "shop/db", `{"spec":{"ports":[{"port":-1}]}}`, "Service shop/db: spec.ports.port: wrong type or out of range: number -1"},
		{Services, "shop/db", `{"spec":{"ports":[` + many + `]}}`, "Service shop/db: spec: it has more than 100000 values"},
		{Services, "shop/a/b", `{}`, `Service shop/a/b: its name or namespace has a "/"`},
		{Slices, "shop/db", `{"addressType":"IPv4","endpoints":[` + many + `]}`, "EndpointSlice shop/db: the slice: it has more than 100000 values"},
		{Pods, "shop/db", `{"spec":{"nodeName":1}}`, "Pod shop/db: spec.nodeName: wrong type or out of range: number"},
		{Pods, "shop/db", `{"status":[]}`, "Pod shop/db: status: wrong type or out of range: array"},
		{Workloads, "shop/db", `{"spec":{"weight":"many"}}`, "WorkloadEntry shop/db: spec.weight: wrong type or out of range: string"},
	} {
		if _, err := Decode(tc.in, objectOf(t, tc.name, tc.text)); err == nil || err.Error() != tc.want {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
	if _, err := Decode(Nodes, &object.Object{Err: fmt.Errorf("metadata.labels: x"), ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err == nil || err.Error() != "Node /n: metadata.labels: x" {
		t.Error(err)
	}
}
