package kubernetes

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
)

const (
	slicesOf    = "discovery.k8s.io/endpointslices"
	podsOf      = "/pods"
	nodesOf     = "/nodes"
	workloadsOf = "networking.istio.io/workloadentries"
	discover    = "  services: {mode: discover}\n"
)

// serviceServer is an API server with a Service shop/db of two pods on a node, and a ServiceEntry shop/a.
func serviceServer(t *testing.T) *apiServer {
	s := newAPIServer(t)
	for _, k := range [][3]string{
		{"", "Service", "services"}, {"discovery.k8s.io", "EndpointSlice", "endpointslices"}, {"", "Pod", "pods"}, {"", "Node", "nodes"},
		{"", "Namespace", "namespaces"}, {"networking.istio.io", "WorkloadEntry", "workloadentries"},
	} {
		s.Define(k[0], k[1], k[2], "v1")
	}
	s.entry("shop/a", "a.x")
	s.Put(servicesOf, service("shop", "db", ""))
	s.Put(nodesOf, map[string]any{"metadata": map[string]any{"name": "n1", "labels": map[string]any{"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1"}}})
	s.pod("db-1", "10.0.0.1", `"app":"db","version":"v1"`)
	s.pod("db-2", "10.0.0.2", `"app":"db","version":"v2"`)
	s.slice("db", "db-1 10.0.0.1", "db-2 10.0.0.2")
	return s
}

func service(namespace, name, more string) map[string]any {
	return fakekube.Object(namespace, name, `{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"selector":{"app":"`+name+`"},"ports":[{"name":"http","port":80,"targetPort":8080,"protocol":"TCP"}]`+more+`}`)
}

// pod creates or changes a pod of the namespace shop that is ready.
func (s *apiServer) pod(name, address, labels string, more ...string) {
	s.Put(podsOf, fakekube.Object("shop", name, `{"nodeName":"n1","serviceAccountName":"db"}`, append([]string{
		`{"metadata":{"labels":{` + labels + `}},"status":{"phase":"Running","podIP":"` + address + `","podIPs":[{"ip":"` + address + `"}],"conditions":[{"type":"Ready","status":"True"}]}}`,
	}, more...)...))
}

// slice sets the pods of a Service, "NAME ADDRESS" each.
func (s *apiServer) slice(service string, pods ...string) {
	var all []string
	for _, p := range pods {
		name, address, _ := strings.Cut(p, " ")
		all = append(all, fmt.Sprintf(`{"addresses":[%q],"conditions":{"ready":true},"nodeName":"n1","zone":"eu-1","targetRef":{"kind":"Pod","namespace":"shop","name":%q}}`, address, name))
	}
	s.Put(slicesOf, fakekube.Object("shop", service+"-x", `{}`, fmt.Sprintf(
		`{"metadata":{"labels":{"kubernetes.io/service-name":%q}},"addressType":"IPv4","endpoints":[%s],"ports":[{"name":"http","port":8080,"protocol":"TCP"}]}`, service, strings.Join(all, ","))))
}

// endpoints returns the endpoints of a ServiceEntry of the namespace shop, "ADDRESS PORT LOCALITY ACCOUNT VERSION" each; "none"
// without any, and "" while it is not served.
func (w *world) endpoints(name string) string {
	r := w.aggregate.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: name})
	if r == nil {
		return ""
	}
	se := &networking.ServiceEntry{}
	if err := proto.Unmarshal(r.BodyValue(), se); err != nil {
		w.t.Fatal(err)
	}
	if len(se.Endpoints) == 0 {
		return "none"
	}
	var all []string
	for _, e := range se.Endpoints {
		all = append(all, fmt.Sprintf("%s %d %s %s %s", e.Address, e.Ports["http"], e.Locality, e.ServiceAccount, e.Labels["version"]))
	}
	return strings.Join(all, ", ")
}

func (w *world) reaches(name, want string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s has the endpoints %q", name, want), func() bool { return w.endpoints(name) == want })
}

const dbEndpoints = "10.0.0.1 8080 eu/eu-1 db v1, 10.0.0.2 8080 eu/eu-1 db v2"

func TestServicesAreServedWithTheirEndpoints_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		w := s.mirrors("", discover)
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		w.reaches("synthetic-db", dbEndpoints)
		s.slice("db", "db-2 10.0.0.2")
		w.reaches("synthetic-db", "10.0.0.2 8080 eu/eu-1 db v2")
		s.pod("db-2", "10.0.0.2", `"app":"db","version":"v3"`)
		w.reaches("synthetic-db", "10.0.0.2 8080 eu/eu-1 db v3")
		s.slice("db")
		w.reaches("synthetic-db", "none")
		s.Remove(servicesOf, "shop/db")
		w.serves("ServiceEntry shop/a")
	})
}

func TestNoServiceIsServedBeforeAllInputsHaveSynced_K15(t *testing.T) {
	for _, missing := range []string{"services", "endpointslices", "pods", "nodes", "namespaces", "workloadentries"} {
		inBubble(t, missing, func(t *testing.T) {
			s := serviceServer(t)
			s.Set(func() { s.Fault = failing("/"+missing, 503, "ServiceUnavailable") })
			w := s.mirrors("", discover)
			w.serves("ServiceEntry shop/a")
			w.until("it was asked again and again", func() bool { return s.Asked("/"+missing) > 5 })
			if w.serves("ServiceEntry shop/a"); w.status().Synced {
				t.Error("it has synced without an input")
			}
			s.Set(func() { s.Fault = nil })
			w.reaches("synthetic-db", dbEndpoints)
			w.synced()
		})
	}
}

// What may not be read when the source starts counts as not there. When a right goes later, what was known stays.
func TestServicesDoWithoutPodsAndNodesThatMayNotBeRead_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		forbidden := func(parts ...string) {
			s.Set(func() {
				s.Fault = func(w http.ResponseWriter, r *http.Request) bool {
					return slices.ContainsFunc(parts, func(p string) bool { return failing(p, 403, "Forbidden")(w, r) })
				}
			})
		}
		forbidden("/pods", "/nodes", "/namespaces")
		w := s.mirrors("", discover)
		w.synced()
		w.reaches("synthetic-db", "10.0.0.1 8080   , 10.0.0.2 8080   ")
		denied := func() (kinds []string) {
			for _, k := range w.status().Following {
				if k.State == string(Denied) {
					kinds = append(kinds, k.Kind)
				}
			}
			return kinds
		}
		w.until("the status tells", func() bool {
			return len(denied()) == 3 && strings.Contains(w.status().LastError, "let it list and watch")
		})
		forbidden()
		w.reaches("synthetic-db", dbEndpoints)
		forbidden("/pods", "/nodes", "/namespaces")
		s.drop()
		w.until("the status tells", func() bool { return len(denied()) == 3 })
		w.arrives("b")
		w.reaches("synthetic-db", dbEndpoints)
	})
}

func TestServicesThatMayNotBeReadHoldTheSyncUp_K15(t *testing.T) {
	for _, denied := range []string{"/endpointslices", "/serviceexports"} {
		inBubble(t, denied, func(t *testing.T) {
			s := serviceServer(t)
			s.export("shop/db", "v1alpha1")
			s.Set(func() { s.Fault = failing(denied, 403, "Forbidden") })
			w := s.mirrors("", exported)
			w.until("the status tells", func() bool { return strings.Contains(w.status().LastError, "let it list and watch that kind") })
			if w.serves("ServiceEntry shop/a"); w.status().Synced {
				t.Error("it has synced")
			}
		})
	}
}

// A bad object takes nothing of its neighbours, and its last good content stays.
func TestAnObjectOfWhichNoServiceCanBeMadeIsNamed_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		w := s.mirrors("", discover)
		w.synced()
		w.reaches("synthetic-db", dbEndpoints)
		s.Put(servicesOf, fakekube.Object("shop", "db", `{"ports":"many"}`))
		s.Put(slicesOf, fakekube.Object("shop", "bad", `{}`, `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":{}}`))
		s.pod("db-1", "10.0.0.1", `"app":"db","version":"v4"`)
		w.reaches("synthetic-db", "10.0.0.1 8080 eu/eu-1 db v4, 10.0.0.2 8080 eu/eu-1 db v2")
		w.until("both are named", func() bool { return w.detail().ServiceProblemsTotal == 2 })
		if all := strings.Join(w.detail().ServiceProblems, "\n"); !strings.Contains(all, "EndpointSlice shop/bad: the slice.endpoints: ") || !strings.Contains(all, "Service shop/db: spec.ports") {
			t.Errorf("problems: %s", all)
		}
		s.Remove(slicesOf, "shop/bad")
		s.Put(servicesOf, service("shop", "db", ""))
		w.until("nothing is named", func() bool { return w.detail().ServiceProblemsTotal == 0 })
	})
}

// The name of a ServiceEntry that somebody has written gives it no endpoints of others, and takes none of its own.
func TestAServiceEntryThatIsNamedLikeAMadeOneStaysAsItIs_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, more := range []string{discover, "  services: {mode: gateway, gateways: [192.0.2.1]}\n"} {
			s := serviceServer(t)
			w := s.mirrors("", more)
			for name, spec := range map[string]string{
				"shop/synthetic-monitoring": `{"hosts":["api.example"],"location":"MESH_EXTERNAL","resolution":"DNS","ports":[{"number":443,"name":"tls","protocol":"TLS"}]}`,
				"spy/synthetic-db":          `{"hosts":["db.shop.svc.cluster.local"],"resolution":"STATIC","ports":[{"number":80,"name":"http","protocol":"HTTP"}]}`,
			} {
				namespace, name, _ := strings.Cut(name, "/")
				s.Put(entries, fakekube.Object(namespace, name, spec))
			}
			w.synced()
			w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db", "ServiceEntry shop/synthetic-monitoring", "ServiceEntry spy/synthetic-db")
			for _, key := range []mirror.Key{{Kind: federation.ServiceEntry, Namespace: "shop", Name: "synthetic-monitoring"}, {Kind: federation.ServiceEntry, Namespace: "spy", Name: "synthetic-db"}} {
				r := w.aggregate.Get(key)
				se := &networking.ServiceEntry{}
				if err := proto.Unmarshal(r.BodyValue(), se); err != nil || len(se.Endpoints) > 0 || key.Namespace == "shop" && se.Resolution != networking.ServiceEntry_DNS {
					t.Errorf("%s: %v, %v", more, se, err)
				}
			}
		}
	})
}
