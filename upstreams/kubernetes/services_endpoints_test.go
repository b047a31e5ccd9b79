package kubernetes

import (
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// selecting is a ServiceEntry that selects the workloads of the Service db.
const selecting = `{"hosts":["db.example"],"resolution":"STATIC","ports":[{"number":80,"name":"http","protocol":"HTTP","targetPort":8080}],"workloadSelector":{"labels":{"app":"db"}}}`

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
