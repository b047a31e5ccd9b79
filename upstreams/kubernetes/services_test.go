package kubernetes

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
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

// selecting is a ServiceEntry that selects the workloads of the Service db.
const selecting = `{"hosts":["db.example"],"resolution":"STATIC","ports":[{"number":80,"name":"http","protocol":"HTTP","targetPort":8080}],"workloadSelector":{"labels":{"app":"db"}}}`

const dbEndpoints = "10.0.0.1 8080 eu/eu-1 db v1, 10.0.0.2 8080 eu/eu-1 db v2"

// A rollout adds a named port: the first new pod takes no endpoint away.
func TestARolloutThatAddsAPortKeepsTheOthers_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Put(servicesOf, fakekube.Object("shop", "db", `{"clusterIP":"10.96.0.1","trafficDistribution":"PreferClose","ports":[{"name":"http","port":80},{"name":"http-admin","port":9901}]}`))
		w := s.mirrors("", "  domainSuffix: east.local\n"+discover)
		w.synced()
		name := "synthetic-db" + federation.Suffix("svc.east.local")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/"+name)
		w.reaches(name, dbEndpoints)
		s.pod("db-3", "10.0.0.3", `"app":"db","version":"v3"`)
		s.Put(slicesOf, fakekube.Object("shop", "db-y", `{}`, `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.3"],"conditions":{"ready":true},"nodeName":"n1","zone":"eu-1",`+
			`"targetRef":{"kind":"Pod","namespace":"shop","name":"db-3"}}],"ports":[{"name":"http","port":8080},{"name":"http-admin","port":9901}]}`))
		sibling := name + federation.Suffix("80 9901 ")
		w.reaches(sibling, "10.0.0.3 8080 eu/eu-1 db v3")
		w.reaches(name, dbEndpoints)
		r := w.aggregate.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: sibling})
		if a := r.Metadata().Annotations; a[mirror.SiblingAnnotation] != name || a[federation.DistributionAnnotation] != "PreferClose" {
			t.Errorf("%v", a)
		}
		s.slice("db")
		w.reaches(name, "10.0.0.3 8080 eu/eu-1 db v3")
		w.reaches(sibling, "")
	})
}

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

const (
	exportsOf = "multicluster.x-k8s.io/serviceexports"
	exported  = "  services: {mode: discover, only: exported}\n"
)

// export has the server serve ServiceExports in a version, and creates one.
func (s *apiServer) export(name, version string) {
	s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports", version)
	namespace, name, _ := strings.Cut(name, "/")
	s.Put(exportsOf, fakekube.Object(namespace, name, `{}`))
}

// The labels of ServiceExports do not count, as those of Services do not.
func TestOnlyServicesWithAServiceExportAreShared_K15(t *testing.T) {
	for name, tc := range map[string]struct{ version, settings, more, want string }{
		"v1alpha1":                  {"v1alpha1", "", exported, dbEndpoints},
		"v1beta1":                   {"v1beta1", ", selector: a=b", exported, dbEndpoints},
		"gateways":                  {"v1beta1", "", "  services: {mode: gateway, gateways: [192.0.2.1], only: exported}\n", "192.0.2.1 15443   "},
		"the kind is mirrored, too": {"v1beta1", ", kinds: [multicluster.x-k8s.io/ServiceExport]", exported, dbEndpoints},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := serviceServer(t)
			s.Remove(entries, "shop/a")
			s.Put(servicesOf, service("shop", "web", ""))
			s.export("shop/db", tc.version)
			s.Put(exportsOf, fakekube.Object("bank", "web", `{}`)) // of another namespace
			w := s.mirrors(tc.settings, tc.more)
			mirrored := func(names ...string) (all []string) {
				for _, n := range names {
					if strings.Contains(tc.settings, "kinds") || !strings.HasPrefix(n, "ServiceExport") {
						all = append(all, n)
					}
				}
				return all
			}
			w.serves(mirrored("ServiceEntry shop/synthetic-db", "ServiceExport bank/web", "ServiceExport shop/db")...)
			w.synced()
			w.reaches("synthetic-db", tc.want)
			if st := w.status(); st.LeftOut["cluster-local"] != 1 || len(st.Notes) > 0 {
				t.Errorf("left out %v, notes %q", st.LeftOut, st.Notes)
			}
			if all := w.manager.LeftOut(); len(all) != 1 || all[0].Name != "synthetic-web" || all[0].Detail != "it has no ServiceExport, and services.only is exported" {
				t.Errorf("left out are %+v", all)
			}
			s.Put(exportsOf, fakekube.Object("shop", "web", `{}`))
			w.serves(mirrored("ServiceEntry shop/synthetic-db", "ServiceEntry shop/synthetic-web", "ServiceExport bank/web", "ServiceExport shop/db", "ServiceExport shop/web")...)
			s.Remove(exportsOf, "shop/db")
			w.serves(mirrored("ServiceEntry shop/synthetic-web", "ServiceExport bank/web", "ServiceExport shop/web")...)
			w.until("it is left out", func() bool { return w.status().LeftOut["cluster-local"] == 1 })
		})
	}
}

// Where the MCS API is not installed, no Service is shared, and all else is.
func TestWithoutTheKindServiceExportNoServiceIsShared_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Put(exportsOf, fakekube.Object("shop", "db", `{}`))
		w := s.mirrors("", "  guard: {percent: 100}\n"+exported)
		told := func(is bool) {
			t.Helper()
			w.until("the status tells", func() bool {
				return is == slices.ContainsFunc(w.status().Notes, func(n string) bool { return strings.HasPrefix(n, noExports+": install the CRD") })
			})
		}
		w.synced()
		w.serves("ServiceEntry shop/a")
		told(true)
		if n := w.status().LeftOut["cluster-local"]; n != 1 {
			t.Errorf("%d are left out", n)
		}
		s.export("shop/db", "v1beta1")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		told(false)
		s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports")
		s.drop()
		w.serves("ServiceEntry shop/a")
		told(true)
		w.synced()
	})
}

// Somebody who uninstalls the MCS API may not mean all of its Services.
func TestTheGuardHoldsServicesWhoseExportsGo_K5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Remove(entries, "shop/a")
		want := []string{"ServiceEntry shop/synthetic-db"}
		for _, name := range []string{"x", "y", "z"} {
			s.Put(servicesOf, service("shop", name, ""))
			s.Put(exportsOf, fakekube.Object("shop", name, `{}`))
			want = append(want, "ServiceEntry shop/synthetic-"+name)
		}
		s.export("shop/db", "v1beta1")
		w := s.mirrors("", exported)
		w.serves(want...)
		w.synced()
		s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports")
		s.drop()
		w.until("they are held", func() bool { return w.status().Held != nil && w.status().Held.Removals == len(want) })
		w.serves(want...)
		w.reaches("synthetic-db", dbEndpoints)
	})
}

// A server that begins may not know its definitions yet: what was shared before the start stays until it surely lacks the kind.
func TestOneAnswerWithoutTheKindServiceExportTakesNothingAway_K4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := serviceServer(t), t.TempDir()
		s.export("shop/db", "v1beta1")
		w, end := s.keeps(dir, "", "  guard: {percent: 100}\n"+exported)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		w.synced()
		end()
		s.Define("multicluster.x-k8s.io", "ServiceExport", "serviceexports")
		usual := s.pace.gone
		s.pace.gone = time.Hour
		asked := s.Asked("/apis?")
		w, end = s.keeps(dir, "", "  guard: {percent: 100}\n"+exported)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		w.arrives("b")
		w.until("it was asked again and again", func() bool { return s.Asked("/apis?") > asked+10 })
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b", "ServiceEntry shop/synthetic-db")
		end()
		s.pace.gone = usual
		w, _ = s.keeps(dir, "", "  guard: {percent: 100}\n"+exported)
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/b")
		w.synced()
		w.answered()
	})
}

// Istiods from 1.30 do so. The labels of the same objects are for discoverySelectors.
func TestServicesHaveTheDistributionOfTheirNamespace_K15(t *testing.T) {
	for _, selectors := range []string{"", `, discoverySelectors: ["mesh=on"]`} {
		inBubble(t, selectors, func(t *testing.T) {
			s := serviceServer(t)
			namespace := func(label, distribution string) {
				s.Put("/namespaces", map[string]any{"metadata": map[string]any{
					"namespace": "", "name": "shop", "labels": map[string]any{"mesh": label}, "annotations": map[string]any{federation.DistributionAnnotation: distribution},
				}})
			}
			namespace("on", "PreferClose")
			w := s.mirrors(selectors, discover)
			w.synced()
			has := func(want string) {
				t.Helper()
				w.until("the ServiceEntry has "+want, func() bool {
					r := w.aggregate.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "synthetic-db"})
					return r != nil && r.Metadata().Annotations[federation.DistributionAnnotation] == want
				})
			}
			has("PreferClose")
			namespace("on", "PreferSameNode")
			has("PreferSameNode")
			if selectors == "" {
				s.Remove("/namespaces", "/shop")
				has("")
				return
			}
			namespace("off", "PreferClose")
			w.serves()
			namespace("on", "PreferClose")
			has("PreferClose")
		})
	}
}

func TestServicesAreReadOnlyWhereTheyAreWanted_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for more, want := range map[string]string{
			"": "", "  services: {mode: discover, pods: false}\n": "/endpointslices /nodes /services", discover: "/endpointslices /nodes /pods /services",
			"  services: {mode: gateway, gateways: [192.0.2.1]}\n": "/services",
		} {
			s := serviceServer(t)
			w := s.mirrors("", more)
			w.synced()
			var asked []string
			for _, part := range []string{"/endpointslices", "/nodes", "/pods", "/services"} {
				if s.Asked(part) > 0 {
					asked = append(asked, part)
				}
			}
			if strings.Join(asked, " ") != want {
				t.Errorf("%q has asked for %q, want %q", more, asked, want)
			}
			if strings.Contains(more, "gateway") {
				w.reaches("synthetic-db", "192.0.2.1 15443   ")
			}
		}
	})
}

// A status, a lease, an annotation of a node, and a list of the same, step nothing.
func TestWhatIsNotHeldStepsNothing_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		w := s.mirrors("", discover)
		w.synced()
		w.reaches("synthetic-db", dbEndpoints)
		key := mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "synthetic-db"}
		before := w.aggregate.Get(key)
		s.pod("db-1", "10.0.0.1", `"app":"db","version":"v1"`, `{"metadata":{"annotations":{"x":"y"}},"status":{"startTime":"2026-01-01T00:00:00Z","qosClass":"Burstable"}}`)
		s.Put(nodesOf, map[string]any{
			"metadata": map[string]any{"name": "n1", "labels": map[string]any{"topology.kubernetes.io/region": "eu", "topology.kubernetes.io/zone": "eu-1", "x": "y"}},
			"status":   map[string]any{"capacity": map[string]any{"cpu": "4"}},
		})
		s.Put(servicesOf, fakekube.Object("shop", "db", `{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"selector":{"app":"db"},"ports":[{"name":"http","port":80,"targetPort":8080,"protocol":"TCP"}]}`, `{"status":{"loadBalancer":{}}}`))
		w.arrives("b")
		for _, k := range []mirror.Kind{podKind, nodeKind, sliceKind, serviceKind} {
			for _, c := range w.source.following(k) {
				c.relist()
			}
		}
		w.arrives("c")
		if now := w.aggregate.Get(key); now != before {
			t.Errorf("it has changed: %v", now)
		}
	})
}

// A selector means the workloads of the cluster that wrote it.
func TestServiceEntriesThatSelectWorkloadsGetThem_K17(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Put(workloadsOf, fakekube.Object("shop", "vm", `{"address":"192.0.2.7","labels":{"app":"db","version":"vm"},"serviceAccount":"vm"}`))
		s.Put(entries, fakekube.Object("shop", "selects", selecting))
		w := s.mirrors("", discover)
		w.synced()
		all := "10.0.0.1 8080 eu/eu-1 db v1, 10.0.0.2 8080 eu/eu-1 db v2, 192.0.2.7 8080  vm vm"
		w.reaches("selects", all)
		w.reaches("synthetic-db", all) // the Service selects the WorkloadEntry, too
		// Leaving is one step: no endpoint is in between.
		s.pod("db-2", "10.0.0.2", `"app":"other","version":"v2"`)
		w.reaches("selects", "10.0.0.1 8080 eu/eu-1 db v1, 192.0.2.7 8080  vm vm")
		s.Put(workloadsOf, fakekube.Object("shop", "vm", `{"address":"192.0.2.8","labels":{"app":"db","version":"vm"},"serviceAccount":"vm"}`))
		w.reaches("selects", "10.0.0.1 8080 eu/eu-1 db v1, 192.0.2.8 8080  vm vm")
		s.Remove(workloadsOf, "shop/vm")
		s.Remove(podsOf, "shop/db-1")
		w.reaches("selects", "none")
		// In every other mode it passes as it came.
		other := serviceServer(t)
		other.Put(entries, fakekube.Object("shop", "selects", selecting))
		w = other.mirrors("", "")
		w.synced()
		r := w.aggregate.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "selects"})
		se := &networking.ServiceEntry{}
		if err := proto.Unmarshal(r.BodyValue(), se); err != nil || se.WorkloadSelector == nil {
			t.Errorf("%v, %v", se, err)
		}
	})
}

func TestClusterLocalServicesAreLeftOut_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Define("", "Namespace", "namespaces", "v1")
		s.Define("", "ConfigMap", "configmaps", "v1")
		s.Put("/configmaps", fakekube.Object("istio-system", "istio", `{}`, `{"data":{"mesh":"defaultConfig: {discoveryAddress: \"pilot.shop.svc:15012\"}\nserviceSettings:\n- {settings: {clusterLocal: true}, hosts: [\"*.local.svc.cluster.local\"]}\n"}}`))
		for _, name := range []string{"kube-system/dns", "default/kubernetes", "shop/pilot", "local/x"} {
			namespace, name, _ := strings.Cut(name, "/")
			s.Put(servicesOf, service(namespace, name, ""))
		}
		s.Put(servicesOf, service("shop", "node", `,"internalTrafficPolicy":"Local"`))
		w := s.mirrors("", discover)
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		if n := w.status().LeftOut["cluster-local"]; n != 5 {
			t.Errorf("%d are left out, status %+v", n, w.status().LeftOut)
		}
		s.Put("/configmaps", fakekube.Object("istio-system", "istio", `{}`, `{"data":{"mesh":"{}"}}`))
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db", "ServiceEntry shop/synthetic-pilot", "ServiceEntry local/synthetic-x")
	})
}

// A server that fails is asked again before anything is served that is only for its own cluster.
func TestServicesWaitForTheMeshConfigThatAServerFailsToTell_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Define("", "ConfigMap", "configmaps", "v1")
		s.Put("/configmaps", fakekube.Object("istio-system", "istio", `{}`, `{"data":{"mesh":"serviceSettings: [{settings: {clusterLocal: true}, hosts: [db.shop.svc.cluster.local]}]"}}`))
		s.Set(func() { s.Fault = failing("/configmaps/istio", 503, "ServiceUnavailable") })
		w := s.mirrors("", discover)
		w.until("it was asked again", func() bool { return s.Asked("/configmaps/istio") > 2 })
		w.until("the status tells of it", func() bool {
			return strings.Contains(w.status().LastError, "options of services: ConfigMap istio-system/istio")
		})
		w.serves()
		s.Set(func() { s.Fault = nil })
		w.synced()
		w.serves("ServiceEntry shop/a")
		// Later failures leave the options as they were.
		s.Set(func() { s.Fault = failing("/configmaps/istio", 503, "ServiceUnavailable") })
		asked := s.Asked("/configmaps/istio")
		w.until("it was asked again", func() bool { return s.Asked("/configmaps/istio") > asked+2 })
		w.serves("ServiceEntry shop/a")
	})
}

// Whatever people and the guard hold, nobody is sent to an address that its source has taken away.
func TestEndpointsFollowWhileConfigIsFrozen_K16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		w := s.mirrors("", discover)
		w.synced()
		w.reaches("synthetic-db", dbEndpoints)
		if _, err := w.manager.Order(t.Context(), "east", "freeze", intake.Order{}); err != nil {
			t.Fatal(err)
		}
		s.slice("db", "db-2 10.0.0.2")
		w.reaches("synthetic-db", "10.0.0.2 8080 eu/eu-1 db v2")
		s.Remove(servicesOf, "shop/db")
		s.Remove(slicesOf, "shop/db-x")
		w.reaches("synthetic-db", "none")
	})
}

// What is on disk is served from the start, and follows once all inputs are known: also what has gone meanwhile.
func TestServicesOnDiskFollowWhenAllInputsAreKnown_K16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := serviceServer(t), t.TempDir()
		s.Put(servicesOf, service("shop", "web", ""))
		s.Put(entries, fakekube.Object("shop", "selects", selecting))
		w, end := s.keeps(dir, "", discover)
		w.synced()
		w.reaches("synthetic-db", dbEndpoints)
		w.reaches("selects", dbEndpoints)
		end()
		s.slice("db", "db-2 10.0.0.2")
		s.Remove(podsOf, "shop/db-1")
		s.Remove(servicesOf, "shop/web")
		s.Set(func() { s.Fault = failing("/nodes", 503, "ServiceUnavailable") })
		w, _ = s.keeps(dir, "", discover)
		w.until("it was asked again and again", func() bool { return s.Asked("/nodes") > 5 })
		w.reaches("synthetic-db", dbEndpoints)
		if w.serves("ServiceEntry shop/a", "ServiceEntry shop/selects", "ServiceEntry shop/synthetic-db", "ServiceEntry shop/synthetic-web"); w.status().Synced {
			t.Error("it has synced without the nodes")
		}
		s.Set(func() { s.Fault = nil })
		w.reaches("synthetic-db", "10.0.0.2 8080 eu/eu-1 db v2")
		w.reaches("selects", "10.0.0.2 8080 eu/eu-1 db v2")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/selects", "ServiceEntry shop/synthetic-db")
		w.answered()
	})
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

// A definition that is deleted takes its objects with it, although no watch tells of them.
func TestAKindThatIsServedNoMoreTakesItsEndpointsWithIt_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Put(workloadsOf, fakekube.Object("shop", "vm", `{"address":"192.0.2.7","labels":{"app":"db","version":"vm"},"serviceAccount":"vm"}`))
		w := s.mirrors("", discover)
		w.synced()
		w.reaches("synthetic-db", dbEndpoints+", 192.0.2.7 8080  vm vm")
		s.Define("networking.istio.io", "WorkloadEntry", "workloadentries")
		s.drop()
		w.reaches("synthetic-db", dbEndpoints)
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

// What is not imported is still an endpoint of the services that select it.
func TestWorkloadEntriesThatAreNotImportedAreEndpoints_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Put(workloadsOf, fakekube.Object("shop", "vm", `{"address":"192.0.2.7","labels":{"app":"db","version":"vm"},"serviceAccount":"vm"}`))
		w := s.mirrors("", discover+"  import: {kinds: [serviceentries]}\n")
		w.synced()
		w.reaches("synthetic-db", dbEndpoints+", 192.0.2.7 8080  vm vm")
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
	})
}
