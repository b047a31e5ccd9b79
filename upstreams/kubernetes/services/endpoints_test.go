package services

import (
	"fmt"
	"strings"
	"testing"

	endpoints "meshrelay/federation/services"
	"meshrelay/upstreams/kubernetes/object"
)

func TestEndpointsAreThoseOfTheSlices_K15(t *testing.T) {
	const ready, bare = `"conditions":{"ready":true}`, `"addresses":["10.0.0.1"]`
	for name, tc := range map[string]struct{ spec, endpoint, want string }{
		"ready":                           {``, bare + `,` + ready, "10.0.0.1:8080"},
		"not told, which means ready":     {``, bare + `,"conditions":{}`, "10.0.0.1:8080"},
		"no conditions":                   {``, bare, "10.0.0.1:8080"},
		"not ready":                       {``, bare + `,"conditions":{"ready":false}`, ""},
		"not ready and published":         {`,"publishNotReadyAddresses":true`, bare + `,"conditions":{"ready":false}`, "10.0.0.1:8080"},
		"terminating":                     {``, bare + `,"conditions":{"ready":true,"terminating":true}`, ""},
		"terminating and published":       {`,"publishNotReadyAddresses":true`, bare + `,"conditions":{"ready":true,"terminating":true}`, ""},
		"several addresses, made by hand": {``, `"addresses":["10.0.0.2","10.0.0.1"]`, "10.0.0.1:8080, 10.0.0.2:8080"},
		"no address":                      {``, `"addresses":["a.example","","10.0.0.1"]`, "10.0.0.1:8080"},
		"another kind of target":          {``, bare + `,"targetRef":{"kind":"Node","namespace":"shop","name":"a"}`, "10.0.0.1:8080"},
		"a pod of another namespace":      {``, bare + `,"targetRef":{"kind":"Pod","namespace":"bank","name":"a"}`, "10.0.0.1:8080"},
		"a pod":                           {``, bare + `,"targetRef":{"kind":"Pod","namespace":"shop","name":"a"}`, "10.0.0.1:8080 eu/eu-1 acc"},
		"a pod that is not known":         {``, bare + `,"nodeName":"n1","targetRef":{"kind":"Pod","namespace":"shop","name":"b"}`, "10.0.0.1:8080 eu/eu-1"},
		"the zone of the slice":           {``, bare + `,"nodeName":"n1","zone":"eu-2"`, "10.0.0.1:8080 eu/eu-2"},
		"a zone with a slash":             {``, bare + `,"nodeName":"n1","zone":"eu/2"`, "10.0.0.1:8080"},
		"the zone of the node":            {``, bare + `,"nodeName":"n1"`, "10.0.0.1:8080 eu/eu-1"},
		"no node":                         {``, bare + `,"nodeName":"n9","zone":"eu-1"`, "10.0.0.1:8080"},
	} {
		w := newWorld(t, Options{})
		w.node("n1", "eu", "eu-1")
		w.pod("shop/a", "10.9.9.9", `"app":"db"`)
		w.pod("bank/a", "10.0.0.1", `"app":"db"`)
		w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80}]`+tc.spec+`}`)
		w.slice("shop/db-1", "db", `{`+tc.endpoint+`}`)
		if have := w.text(dbHTTP); have != tc.want {
			t.Errorf("%s: %q, want %q", name, have, tc.want)
		}
	}
}

// Without its pod, clients would speak plaintext to an endpoint. An istiod waits for the pod as well.
func TestAPodThatIsNotKnownYetIsNoEndpoint_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", dbSpec)
	w.slice("shop/db-1", "db", target("a", "10.0.0.1"), target("b", "10.0.0.2"), `{"addresses":["10.0.0.3"]}`)
	w.flushed(dbHTTP, "shop/synthetic-db")
	w.has(dbHTTP, "10.0.0.1:8080, 10.0.0.2:8080, 10.0.0.3:8080")
	w.Synced(Pods) // the right to read them has come
	w.flushed(dbHTTP)
	w.has(dbHTTP, "10.0.0.3:8080")
	w.pod("shop/a", "10.0.0.1", `"app":"db"`)
	w.flushed(dbHTTP)
	w.has(dbHTTP, "10.0.0.1:8080 acc, 10.0.0.3:8080")
	w.Absent(Pods) // and goes: what was known stays
	w.flushed()
	w.has(dbHTTP, "10.0.0.1:8080 acc, 10.0.0.3:8080")
}

func TestLocalityIsOfTheNodeUnlessThePodTellsIt_K15(t *testing.T) {
	for node, want := range map[string]string{
		`"topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"eu-1","topology.istio.io/subzone":"r7"`: "eu/eu-1/r7",
		`"topology.kubernetes.io/region":"eu"`:                                  "eu",
		`"topology.kubernetes.io/region":"eu","topology.istio.io/subzone":"r7"`: "", // an istiod tells one without a zone
		`"topology.kubernetes.io/zone":"eu-1"`:                                  "",
		``:                                                                      "",
	} {
		w := newWorld(t, Options{})
		w.set(Nodes, "/n1", `{"metadata":{"labels":{`+node+`}}}`)
		w.service("shop/db", dbSpec)
		w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
		w.has(dbHTTP, strings.TrimSpace("10.0.0.1:8080 "+want))
		w.pod("shop/a", "10.0.0.1", `"istio-locality":"us.us-1"`)
		w.has(dbHTTP, "10.0.0.1:8080 us/us-1 acc")
		w.pod("shop/a", "10.0.0.1", `"istio-locality":"us.us-1.r7.more"`)
		w.has(dbHTTP, strings.Join(strings.Fields("10.0.0.1:8080 "+want+" acc"), " "))
	}
}

func TestSlicesOfOneServiceAreOne_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", dbSpec)
	w.slice("shop/db-1", "db", target("a", "10.0.0.1"), target("b", "10.0.0.2"))
	w.slice("shop/db-2", "db", target("b", "10.0.0.2"), target("c", "10.0.0.3"))
	w.slice("shop/other", "other", target("d", "10.0.0.4"))
	w.slice("bank/db-1", "db", target("e", "10.0.0.5"))
	w.set(Slices, "shop/names", `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"FQDN","endpoints":[{"addresses":["10.0.0.6"]}],"ports":[{"name":"http","port":1}]}`)
	w.set(Slices, "shop/imported", `{"metadata":{"labels":{"kubernetes.io/service-name":"db","multicluster.kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.7"]}],"ports":[{"name":"http","port":1}]}`)
	w.has(dbHTTP, "10.0.0.1:8080, 10.0.0.2:8080, 10.0.0.3:8080")
	w.Remove(Slices, Name{"shop", "db-1"})
	w.has(dbHTTP, "10.0.0.2:8080, 10.0.0.3:8080")
	w.slice("shop/db-2", "other", target("c", "10.0.0.3"))
	w.has(dbHTTP, "")
}

func TestAPodIsOneEndpointWhateverItsFamilies_K15(t *testing.T) {
	const six = `{"addresses":["fd00::1"],"targetRef":{"kind":"Pod","namespace":"shop","name":"a"}}`
	for families, want := range map[string]string{
		``: "10.0.0.1:8080", `,"ipFamilies":["IPv4","IPv6"]`: "10.0.0.1:8080", `,"ipFamilies":["IPv6","IPv4"]`: "[fd00::1]:8080",
	} {
		for range 2 { // whichever slice comes first
			w := newWorld(t, Options{})
			w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80}]`+families+`}`)
			w.slice("shop/db-6", "db", six)
			w.slice("shop/db-4", "db", target("a", "10.0.0.3", "10.0.0.1"))
			if have := strings.ReplaceAll(w.text(dbHTTP), "fd00::1", "[fd00::1]"); have != want {
				t.Errorf("%s: %q, want %q", families, have, want)
			}
			w.slice("shop/db-4", "db")
			w.has(dbHTTP, "fd00::1:8080") // there is no other address
		}
	}
}

func TestPortsOfSlicesAreThoseOfTheirNames_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80},{"name":"admin","port":81},{"name":"dns","port":80,"protocol":"UDP"}]}`)
	one := func(name, addr, ports string) {
		w.set(Slices, name, `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[{"addresses":["`+addr+`"]}],"ports":[`+ports+`]}`)
	}
	one("shop/1", "10.0.0.1", `{"name":"http","port":8080},{"name":"admin","port":9000}`)
	one("shop/2", "10.0.0.2", `{"name":"http","port":8081},{"name":"admin"}`)
	w.has(dbHTTP, "10.0.0.1:8080, 10.0.0.2:8081")
	w.has("outbound|81||db.shop.svc.cluster.local", "10.0.0.1:9000")
	w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"port":80}]}`)
	w.has(dbHTTP, "")
	one("shop/1", "10.0.0.1", `{"port":8080}`)
	w.has(dbHTTP, "10.0.0.1:8080")
	one("shop/1", "10.0.0.1", `{"name":"","port":8082}`)
	w.has(dbHTTP, "10.0.0.1:8082")
}

func TestOnlyClustersOfServicesAreKnown_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[{"name":"http","port":80},{"name":"dns","port":53,"protocol":"UDP"}]}`)
	w.has(dbHTTP, "")
	for _, name := range []string{
		"", "outbound", "|||", "outbound|81||db.shop.svc.cluster.local", "outbound|80|v1|db.shop.svc.cluster.local", "inbound|80||db.shop.svc.cluster.local",
		"outbound|80||db.shop.svc.other", "outbound|80||db.shop", "outbound|53||db.shop.svc.cluster.local", "outbound|080||db.shop.svc.cluster.local",
		"outbound|80||db.bank.svc.cluster.local", dbHTTP + "|", "workloads|shop|app=db|http", "workloads|shop|app=db|http|x", "workloads|shop|app=db|http|70000",
	} {
		w.has(name, "none")
	}
}

func TestAPodAddsLabelsAccountModeAndNetwork_K15(t *testing.T) {
	const off = "security.istio.io/tlsMode=disabled\n"
	for name, tc := range map[string]struct {
		options              Options
		pod, labels, network string
		tls                  bool
	}{
		"a mesh pod": {Options{}, `"app":"db","security.istio.io/tlsMode":"istio","topology.istio.io/network":"net1"`,
			"app=db\nsecurity.istio.io/tlsMode=istio\nservice.istio.io/canonical-name=db\ntopology.istio.io/network=net1\n", "net1", true},
		"canonical labels of its own": {Options{}, `"app":"x","version":"y","service.istio.io/canonical-name":"db","service.istio.io/canonical-revision":"v1"`,
			"app=x\n" + off + "service.istio.io/canonical-name=db\nservice.istio.io/canonical-revision=v1\nversion=y\n", "", false},
		"recommended labels": {Options{}, `"app":"x","version":"y","app.kubernetes.io/name":"db","app.kubernetes.io/version":"v1"`,
			"app=x\napp.kubernetes.io/name=db\napp.kubernetes.io/version=v1\n" + off + "service.istio.io/canonical-name=db\nservice.istio.io/canonical-revision=v1\nversion=y\n", "", false},
		"a pod of a Deployment":        {Options{}, `"pod-template-hash":"5d8"`, "pod-template-hash=5d8\n" + off + "service.istio.io/canonical-name=db\n", "", false},
		"a pod of a DaemonSet":         {Options{}, `"controller-revision-hash":"x"`, "controller-revision-hash=x\n" + off + "service.istio.io/canonical-name=db-5d8\n", "", false},
		"no labels":                    {Options{}, ``, off + "service.istio.io/canonical-name=db-5d8-qx\n", "", false},
		"a mode of its own":            {Options{}, `"app":"db","security.istio.io/tlsMode":"other"`, "app=db\nsecurity.istio.io/tlsMode=other\nservice.istio.io/canonical-name=db\n", "", false},
		"the configured network":       {Options{Network: "net3"}, `"app":"db"`, "app=db\n" + off + "service.istio.io/canonical-name=db\n", "net3", false},
		"that of the system namespace": {Options{SystemNetwork: "net2", Network: "net3"}, `"app":"db"`, "app=db\n" + off + "service.istio.io/canonical-name=db\n", "net2", false},
		"its own network": {Options{SystemNetwork: "net2", Network: "net3"}, `"app":"db","topology.istio.io/network":"net1"`,
			"app=db\n" + off + "service.istio.io/canonical-name=db\ntopology.istio.io/network=net1\n", "net1", false},
	} {
		w := newWorld(t, tc.options)
		w.service("shop/db", dbSpec)
		w.slice("shop/db-1", "db", target("db-5d8-qx", "10.0.0.1"), `{"addresses":["10.0.0.9"]}`)
		w.pod("shop/db-5d8-qx", "10.0.0.1", tc.pod)
		all, _ := w.Endpoints(dbHTTP)
		if e := all[0]; e.Labels != tc.labels || e.Network != tc.network || e.TLS != tc.tls || e.Account != "acc" || e.Weight > 1 {
			t.Errorf("%s: %+v", name, e)
		}
		byHand := endpoints.Endpoint{Addr: all[1].Addr, Port: 8080, Network: tc.options.SystemNetwork}
		if byHand.Network == "" {
			byHand.Network = tc.options.Network
		}
		if all[1] != byHand {
			t.Errorf("%s: by hand %+v", name, all[1])
		}
	}
}

// A consumer without an ambient mesh would send HBONE without a listener for it.
func TestAPodOfAnAmbientMeshTakesHBONEWhereThatIsSet_K15(t *testing.T) {
	const ambient, mesh = `,"annotations":{"ambient.istio.io/redirection":"enabled"}`, `"app":"db","security.istio.io/tlsMode":"istio"`
	for _, tc := range []struct {
		on            bool
		labels, more  string
		tunnel, tlsIs string
		tls           bool
	}{
		{false, `"app":"db"`, ambient, "", "disabled", false}, {true, `"app":"db"`, ambient, "http", "disabled", false},
		{true, `"app":"db"`, `,"annotations":{"ambient.istio.io/redirection":"disabled"}`, "", "disabled", false},
		{true, mesh, ``, "", "istio", true}, {true, mesh, ambient, "http", "disabled", false},
	} {
		w := newWorld(t, Options{HBONE: tc.on})
		w.Want(map[string]struct{}{someApp: {}})
		w.service("shop/db", dbSpec)
		w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
		w.set(Pods, "shop/a", podText("10.0.0.1", tc.labels, tc.more))
		for _, cluster := range []string{dbHTTP, someApp} {
			all, _ := w.Endpoints(cluster)
			want := "security.istio.io/tlsMode=" + tc.tlsIs + "\n"
			if tunnel := strings.Contains(all[0].Labels, "networking.istio.io/tunnel=http\n"); len(all) != 1 || all[0].TLS != tc.tls || tunnel != (tc.tunnel != "") || !strings.Contains(all[0].Labels, want) {
				t.Errorf("%+v: %+v", tc, all)
			}
		}
	}
}

func TestAPodIsFoundByItsNameNeverByItsIP_istio33050_istio37129(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", dbSpec)
	// Both are on the network of their host.
	w.set(Pods, "shop/a", strings.Replace(podText("10.0.0.1", `"app":"db"`, ""), "acc", "acc-a", 1))
	w.set(Pods, "shop/b", strings.Replace(podText("10.0.0.1", `"app":"db"`, ""), "acc", "acc-b", 1))
	w.slice("shop/db-1", "db", target("b", "10.0.0.1"))
	w.has(dbHTTP, "10.0.0.1:8080 acc-b")
	w.slice("shop/db-1", "db", target("b", "10.0.0.1"), target("a", "10.0.0.1"))
	if have := w.text(dbHTTP); have != "10.0.0.1:8080 acc-a, 10.0.0.1:8080 acc-b" && have != "10.0.0.1:8080 acc-b, 10.0.0.1:8080 acc-a" {
		t.Error(have)
	}
	w.Remove(Pods, Name{"shop", "a"})
	w.slice("shop/db-1", "db", target("b", "10.0.0.1"))
	w.has(dbHTTP, "10.0.0.1:8080 acc-b")
}

func (w *world) workload(name, labels, spec string) {
	w.set(Workloads, name, `{"metadata":{"labels":{`+labels+`}},"spec":{`+spec+`}}`)
}

func TestAServiceSelectsWorkloadEntries_K15(t *testing.T) {
	const vm = `"address":"192.0.2.1"`
	for name, tc := range map[string]struct{ service, labels, spec, want string }{
		"by labels of the object":      {``, `"app":"db"`, vm, "192.0.2.1:80"},
		"by labels of the spec":        {``, ``, vm + `,"labels":{"app":"db"}`, "192.0.2.1:80"},
		"those of the object win":      {``, `"app":"x"`, vm + `,"labels":{"app":"db"}`, ""},
		"not by other ones":            {``, `"app":"x"`, vm, ""},
		"not without labels":           {``, ``, vm, ""},
		"not by a name":                {``, `"app":"db"`, `"address":"vm.example"`, ""},
		"not by a socket":              {``, `"app":"db"`, `"address":"unix:///a"`, ""},
		"by its network":               {``, `"app":"db"`, `"network":"net1","locality":"us-1","serviceAccount":"vm"`, ":80 us-1 net1 vm mtls"},
		"not by a network of a label":  {``, `"app":"db","topology.istio.io/network":"net1"`, ``, ""},
		"not by the one of a socket":   {``, `"app":"db"`, `"address":"unix:///a","network":"net1"`, ""},
		"not without an address":       {``, `"app":"db"`, ``, ""},
		"not if it is headless":        {`10.96.0.1>None`, `"app":"db"`, vm, ""},
		"not if it is an alias":        {`{>{"type":"ExternalName","externalName":"a.b",`, `"app":"db"`, vm, ""},
		"not without a selector":       {`"app":"db">`, `"app":"db"`, vm, ""},
		"the numbered target":          {`80>80,"targetPort":8080`, `"app":"db"`, vm, "192.0.2.1:8080"},
		"its port of the name":         {`80>80,"targetPort":8080`, `"app":"db"`, vm + `,"ports":{"http":9000}`, "192.0.2.1:9000"},
		"its port of the named target": {`80>80,"targetPort":"web"`, `"app":"db"`, vm + `,"ports":{"web":9000,"http":1}`, "192.0.2.1:9000"},
		"no port of the named target":  {`80>80,"targetPort":"web"`, `"app":"db"`, vm + `,"ports":{"http":9000}`, ""},
		"all that it tells":            {``, `"app":"db"`, vm + `,"network":"net1","locality":"eu/eu-1/r7","weight":5,"serviceAccount":"vm"`, "192.0.2.1:80 eu/eu-1/r7 net1 vm mtls x5"},
		"what labels tell":             {``, `"app":"db","topology.istio.io/network":"net1","istio-locality":"eu.eu-1","security.istio.io/tlsMode":"istio"`, vm, "192.0.2.1:80 eu/eu-1 net1 mtls"},
		"no mtls":                      {``, `"app":"db","security.istio.io/tlsMode":"disabled"`, vm + `,"serviceAccount":"vm"`, "192.0.2.1:80 vm"},
	} {
		w := newWorld(t, Options{})
		before, after, _ := strings.Cut(tc.service, ">")
		spec := strings.Replace(dbSpec, before, after, 1)
		w.service("shop/db", spec)
		w.workload("shop/vm", tc.labels, tc.spec)
		w.workload("bank/vm", `"app":"db"`, vm)
		if have := w.text(dbHTTP); have != tc.want {
			t.Errorf("%s: %q, want %q (%s)", name, have, tc.want, spec)
		}
	}
}

func TestAWorkloadEntryIsServedWhileItIsHealthy_K15(t *testing.T) {
	const checked, healthy, sick = `,"annotations":{"proxy.istio.io/health-checks-enabled":"true"}`, `{"conditions":[{"type":"Healthy","status":"True"}]}`, `{"conditions":[{"type":"Healthy","status":"False"}]}`
	for _, tc := range []struct{ annotations, status, want string }{
		{``, `{}`, "192.0.2.1:80"}, {``, sick, "192.0.2.1:80"}, {checked, `{}`, ""}, {checked, sick, ""}, {checked, healthy, "192.0.2.1:80"},
		{`,"annotations":{"proxy.istio.io/health-checks-enabled":"x"}`, sick, "192.0.2.1:80"},
	} {
		w := newWorld(t, Options{})
		w.service("shop/db", dbSpec)
		w.set(Workloads, "shop/vm", `{"metadata":{"labels":{"app":"db"}`+tc.annotations+`},"spec":{"address":"192.0.2.1"},"status":`+tc.status+`}`)
		w.has(dbHTTP, tc.want)
	}
}

func TestASelectorHasPodsAndWorkloadEntriesOfItsNamespace_K15(t *testing.T) {
	w := newWorld(t, Options{Network: "net1"})
	w.node("n1", "eu", "eu-1")
	w.pod("shop/a", "10.0.0.1", `"app":"db","version":"v1"`)
	w.pod("shop/b", "10.0.0.1", `"app":"x"`) // on the network of the same host
	w.pod("bank/c", "10.0.0.3", `"app":"db"`)
	w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.1","ports":{"http":9000}`)
	w.workload("shop/name", ``, `"address":"vm.example"`)
	w.workload("shop/far", `"app":"far"`, `"network":"net2"`)
	w.has("workloads|shop|app=far|http|7000", ":7000 net2")
	w.Remove(Workloads, Name{"shop", "far"})
	const a, b, vm, name = "10.0.0.1:7000 eu/eu-1 net1 acc", "10.0.0.1:7000 eu/eu-1 net1 acc", "192.0.2.1:9000 net1", "vm.example:7000 net1"
	w.has(someApp, a+", "+vm)
	w.has(anyApp, strings.Join([]string{name, a, b, vm}, ", "))
	w.has("workloads|shop|app=db,version=v1|http|7000", a)
	w.has("workloads|shop|app=db|web|7000", strings.Replace(a, "7000", "9000", 1)+", 192.0.2.1:7000 net1")
	w.has("workloads|none|app=db|http|7000", "")
	// A label that the relay adds selects nothing.
	w.has("workloads|shop|service.istio.io/canonical-name=db|http|7000", "")
	w.has("workloads|shop|pp=db|http|7000", "")
	w.has("workloads|shop|app=d|http|7000", "")
}

func TestASelectorHasPodsThatAreReady_K15(t *testing.T) {
	ready := podText("10.0.0.1", `"app":"db"`, "")
	for change, want := range map[string]string{
		"": "10.0.0.1:7000 acc", `"status":"True">"status":"False"`: "", `"Ready">"Other"`: "", `Running>Succeeded`: "", `10.0.0.1>`: "",
		`"metadata":{>"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z",`: "",
	} {
		before, after, _ := strings.Cut(change, ">")
		w := newWorld(t, Options{})
		w.set(Pods, "shop/a", strings.Replace(ready, before, after, 1))
		w.has(someApp, want)
	}
}

func TestAPodThatIsBeingDeletedIsNoEndpoint_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.service("shop/db", dbSpec)
	w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
	w.pod("shop/a", "10.0.0.1", `"app":"db"`)
	w.Flush()
	w.set(Pods, "shop/a", podText("10.0.0.1", `"app":"db"`, `,"deletionTimestamp":"2026-01-01T00:00:00Z"`))
	w.flushed(dbHTTP)
	w.has(dbHTTP, "")
}

func TestThePortOfAContainerIsTheFirstOfItsName_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.set(Pods, "shop/a", strings.Replace(podText("10.0.0.1", `"app":"db"`, ""), `{"name":"web","containerPort":9000}`,
		`{"name":"http","containerPort":1,"protocol":"UDP"},{"containerPort":2},{"name":"http","containerPort":3,"protocol":"TCP"},{"name":"http","containerPort":4}`, 1))
	w.has(someApp, "10.0.0.1:3 acc")
	w.workload("shop/a=1\nhttp", `"app":"db"`, fmt.Sprintf(`"address":"192.0.2.1","ports":{%q:5}`, "x=1\nhttp"))
	w.has(someApp, "10.0.0.1:3 acc, 192.0.2.1:7000")
}

// The ports of a Service and its addresses are lists that others write: their product is bounded.
func TestTheEndpointsOfAServiceAreBounded_K15(t *testing.T) {
	portsOf := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`{"name":"p%d","port":%d}`, i, i+1)
		}
		return strings.Join(all, ",")
	}
	for ports, want := range map[int]int{100: 9000, 200: 0, maxPorts + 1: 0} {
		w, members := newWorld(t, Options{}), make([]string, 9000)
		for i := range members {
			members[i] = fmt.Sprintf(`{"addresses":["10.0.%d.%d"]}`, i/250, i%250+1)
		}
		if ports > maxPorts {
			members = members[:1]
		}
		w.service("shop/db", `{"clusterIP":"10.96.0.1","ports":[`+portsOf(ports)+`]}`)
		w.set(Slices, "shop/db-1", `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[`+strings.Join(members, ",")+`],"ports":[`+portsOf(1)+`]}`)
		all, known := w.Endpoints("outbound|1||db.shop.svc.cluster.local")
		if told := len(w.Problems()) == 1; len(all) != want || !known || told != (want == 0) {
			t.Errorf("%d ports: %d endpoints, %v, problems %q", ports, len(all), known, w.Problems())
		}
	}
}

// A pod has its labels once, and the endpoints of each Service have them again.
func TestLongTextsAreLeftOutOfEndpoints_K15(t *testing.T) {
	w, many := newWorld(t, Options{SystemNetwork: strings.Repeat("n", maxText+1)}), strings.Builder{}
	for i := range 1000 {
		fmt.Fprintf(&many, `,"label-%d":"x"`, i)
	}
	w.node("n1", strings.Repeat("r", maxText), "eu-1")
	w.service("shop/db", dbSpec)
	w.pod("shop/a", "10.0.0.1", `"app":"db","security.istio.io/tlsMode":"istio"`+many.String())
	w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
	all, _ := w.Endpoints(dbHTTP)
	if len(all) != 1 || all[0].Labels+all[0].Network+all[0].Locality != "" || all[0].Account != "acc" || !all[0].TLS {
		t.Errorf("%.200v", all)
	}
}

// What is mirrored of a WorkloadEntry has its health, also if no endpoint can be made of it.
func TestAWorkloadEntryThatIsWrongHasItsHealth_K15(t *testing.T) {
	o := &object.Object{Spec: []byte(`{"address":"10.0.0.1","weight":"5"}`), Status: []byte(`{"conditions":[{"type":"Healthy","status":"True"}]}`)}
	if _, err := Decode(Workloads, o); err == nil || o.Healthy == nil || !*o.Healthy {
		t.Errorf("healthy: %v, error: %v", o.Healthy, err)
	}
}
