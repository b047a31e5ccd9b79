package services

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestNothingIsFlushedBeforeAllInputsHaveSynced_K15(t *testing.T) {
	for missing := range inputs {
		w := &world{New(Options{}), t}
		w.service("shop/db", dbSpec)
		w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
		for in := range inputs {
			if in != missing {
				w.Synced(in)
			}
		}
		if w.flushed(); len(w.All()) > 0 {
			t.Errorf("outputs without %s", kinds[missing])
		}
		w.Synced(missing)
		w.flushed(dbHTTP, "shop/synthetic-db")
		w.flushed()
	}
}

// filled has one object of each input.
func filled(t *testing.T) *world {
	w := newWorld(t, Options{})
	w.Want(map[string]struct{}{dbHTTP: {}, someApp: {}, "workloads|shop|app=x|http|7000": {}})
	w.service("shop/db", dbSpec)
	w.service("shop/other", strings.ReplaceAll(dbSpec, "db", "x"))
	w.slice("shop/db-1", "db", target("a", "10.0.0.1"))
	w.slice("shop/other-1", "other", target("b", "10.0.0.2"))
	w.pod("shop/a", "10.0.0.1", `"app":"db"`)
	w.node("n1", "eu", "eu-1")
	w.namespace("shop", "PreferClose")
	w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.1"`)
	w.set(Exports, "shop/db", `{}`)
	w.Flush()
	return w
}

// A status write changes the version, managedFields, heartbeats and the like.
func TestStatusWritesAndResyncsChangeNothing_K15(t *testing.T) {
	w := filled(t)
	noise := `"resourceVersion":"2","annotations":{"a":"b"},"managedFields":[{"manager":"kubelet"}],"labels":{"app":"db"}`
	for _, tc := range []struct {
		in         Input
		name, text string
	}{
		{Services, "shop/db", `{"metadata":{"resourceVersion":"2","annotations":{"a":"b"}},"spec":` + dbSpec + `,"status":{"loadBalancer":{}}}`},
		{Slices, "shop/db-1", `{"metadata":{"resourceVersion":"2","labels":{"kubernetes.io/service-name":"db","x":"y"}},"addressType":"IPv4","endpoints":[` + target("a", "10.0.0.1") + `],"ports":[{"name":"http","port":8080}]}`},
		{Pods, "shop/a", strings.Replace(podText("10.0.0.1", ``, ""), `{"labels":{}}`, `{`+noise+`}`, 1)},
		{Pods, "shop/a", strings.Replace(podText("10.0.0.1", `"app":"db"`, ""), `"conditions":[`, `"containerStatuses":[{"restartCount":1}],"conditions":[{"type":"Initialized","status":"True"},`, 1)},
		{Nodes, "/n1", `{"metadata":{"resourceVersion":"2","labels":{"x":"y","topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"eu-1"}},"status":{"conditions":[]}}`},
		{Workloads, "shop/vm", `{"metadata":{` + noise + `},"spec":{"address":"192.0.2.1"},"status":{"conditions":[{"type":"Healthy","status":"True"}]}}`},
	} {
		if w.set(tc.in, tc.name, tc.text); len(w.clusters)+len(w.changed) > 0 || len(w.nodes) > 0 {
			t.Errorf("%s changes something", tc.text)
		}
		w.flushed()
	}
	for in := range inputs {
		w.Remove(in, Name{"shop", "none"})
		w.Remove(in, Name{"none", "none"})
	}
	w.SetOptions(Options{Domain: "cluster.local"})
	if w.flushed(); len(w.spaces) != 2 {
		t.Errorf("%d namespaces", len(w.spaces))
	}
}

func TestAChangeFlushesWhatItChanges_K15(t *testing.T) {
	const otherHTTP, x = "outbound|80||other.shop.svc.cluster.local", "workloads|shop|app=x|http|7000"
	for name, tc := range map[string]struct {
		change func(*world)
		want   []string
	}{
		"a label of a service":       {func(w *world) { w.set(Services, "shop/db", `{"metadata":{"labels":{"a":"b"}},"spec":`+dbSpec+`}`) }, []string{dbHTTP, "shop/synthetic-db"}},
		"publishNotReady":            {func(w *world) { w.service("shop/db", dbSpec[:1]+`"publishNotReadyAddresses":true,`+dbSpec[1:]) }, []string{dbHTTP}},
		"a target":                   {func(w *world) { w.service("shop/db", strings.Replace(dbSpec, "80", `80,"targetPort":1`, 1)) }, []string{dbHTTP}},
		"a service goes":             {func(w *world) { w.Remove(Services, Name{"shop", "db"}) }, []string{dbHTTP, "-shop/synthetic-db"}},
		"a service comes":            {func(w *world) { w.service("bank/db", dbSpec) }, []string{"outbound|80||db.bank.svc.cluster.local", "bank/synthetic-db"}},
		"a service is left out":      {func(w *world) { w.service("shop/db", dbSpec[:1]+`"internalTrafficPolicy":"Local",`+dbSpec[1:]) }, []string{dbHTTP, "shop/synthetic-db"}},
		"it goes and comes back":     {func(w *world) { w.Remove(Services, Name{"shop", "db"}); w.service("shop/db", dbSpec) }, []string{dbHTTP}},
		"a slice":                    {func(w *world) { w.slice("shop/db-1", "db") }, []string{dbHTTP}},
		"a slice goes":               {func(w *world) { w.Remove(Slices, Name{"shop", "db-1"}) }, []string{dbHTTP}},
		"a slice of another":         {func(w *world) { w.slice("shop/db-1", "other", target("a", "10.0.0.1")) }, []string{dbHTTP, otherHTTP}},
		"a slice of none":            {func(w *world) { w.slice("shop/x", "none", target("a", "10.0.0.1")) }, nil},
		"a label of a pod":           {func(w *world) { w.pod("shop/a", "10.0.0.1", `"app":"db","version":"v2"`) }, []string{dbHTTP, someApp}},
		"a pod changes its set":      {func(w *world) { w.pod("shop/a", "10.0.0.1", `"app":"x"`) }, []string{dbHTTP, someApp, x}},
		"a pod goes":                 {func(w *world) { w.Remove(Pods, Name{"shop", "a"}) }, []string{dbHTTP, someApp}},
		"a pod without service":      {func(w *world) { w.pod("shop/z", "10.0.0.1", `"app":"z"`) }, nil},
		"a pod of another namespace": {func(w *world) { w.pod("bank/a", "10.0.0.1", `"app":"db"`) }, nil},
		"a namespace":                {func(w *world) { w.namespace("shop", "PreferSameNode") }, []string{"shop/synthetic-db", "shop/synthetic-other"}},
		"a namespace says no more":   {func(w *world) { w.namespace("shop", "") }, []string{"shop/synthetic-db", "shop/synthetic-other"}},
		"a namespace goes":           {func(w *world) { w.Remove(Namespaces, Name{Name: "shop"}) }, []string{"shop/synthetic-db", "shop/synthetic-other"}},
		"another namespace":          {func(w *world) { w.namespace("bank", "PreferClose") }, nil},
		"a node":                     {func(w *world) { w.node("n1", "eu", "eu-2") }, []string{dbHTTP, otherHTTP, someApp}},
		"a node goes":                {func(w *world) { w.Remove(Nodes, Name{Name: "n1"}) }, []string{dbHTTP, otherHTTP, someApp}},
		"a workload":                 {func(w *world) { w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.2"`) }, []string{dbHTTP, someApp}},
		"a workload changes sets":    {func(w *world) { w.workload("shop/vm", `"app":"x"`, `"address":"192.0.2.1"`) }, []string{dbHTTP, otherHTTP, someApp, x}},
		"a workload goes":            {func(w *world) { w.Remove(Workloads, Name{"shop", "vm"}) }, []string{dbHTTP, someApp}},
		"a network":                  {func(w *world) { w.SetOptions(Options{Network: "net1"}) }, []string{dbHTTP, otherHTTP, someApp, x}},
		"a domain": {func(w *world) { w.SetOptions(Options{Domain: "d"}) }, []string{
			dbHTTP, "outbound|80||db.shop.svc.d", otherHTTP, "outbound|80||other.shop.svc.d", someApp, x, "shop/synthetic-db", "shop/synthetic-other",
		}},
		"an export":     {func(w *world) { w.set(Exports, "shop/none", `{}`) }, []string{}},
		"only exported": {func(w *world) { w.SetOptions(Options{Exported: true}) }, []string{dbHTTP, otherHTTP, someApp, x, "shop/synthetic-other"}},
		"an export goes": {func(w *world) {
			w.SetOptions(Options{Exported: true})
			w.Flush()
			w.Remove(Exports, Name{"shop", "db"})
		}, []string{"shop/synthetic-db"}},
		"an export comes": {func(w *world) { w.SetOptions(Options{Exported: true}); w.Flush(); w.set(Exports, "shop/other", `{}`) }, []string{"shop/synthetic-other"}},
		"a selector":      {func(w *world) { w.SetOptions(Options{Selector: labels.SelectorFromSet(labels.Set{"a": "b"})}) }, []string{dbHTTP, otherHTTP, someApp, x, "shop/synthetic-db", "shop/synthetic-other"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := filled(t)
			tc.change(w)
			w.flushed(tc.want...)
			w.flushed()
		})
	}
}

func TestARemovedObjectLeavesNothing_K15(t *testing.T) {
	for in := range inputs {
		w := filled(t)
		w.SetOptions(Options{Exported: in == Exports})
		w.Flush()
		removed := w.removeAll(in)
		if changes, clusters := w.Flush(); removed == 0 || len(changes)+len(clusters) == 0 {
			t.Errorf("%s: %d are removed, %v %q", kinds[in], removed, changes, clusters)
		}
		for in := range inputs {
			w.removeAll(in)
		}
		if w.Flush(); len(w.spaces) > 0 {
			t.Errorf("%d namespaces without objects", len(w.spaces))
		}
	}
}

// removeAll removes all objects of an input, and returns their number.
func (w *world) removeAll(in Input) (n int) {
	for namespace, sp := range w.spaces {
		for name := range sp.objects[in] {
			w.Remove(in, Name{namespace, name})
			n++
		}
	}
	return n
}

func TestAllHasWhatFlushHasNotReturnedYet_K15(t *testing.T) {
	w := filled(t)
	w.service("shop/new", dbSpec)
	if all := w.All(); len(all) != 3 {
		t.Errorf("%d outputs", len(all))
	}
	w.flushed("outbound|80||new.shop.svc.cluster.local", "shop/synthetic-new")
}

func TestFlushNamesSelectorsOnlyWhileSomebodyReadsThem_K15(t *testing.T) {
	w := newWorld(t, Options{})
	w.Want(map[string]struct{}{someApp: {}, anyApp: {}})
	w.Want(map[string]struct{}{someApp: {}, dbHTTP: {}})
	w.pod("shop/a", "10.0.0.1", `"app":"db"`)
	w.flushed(someApp)
	w.Want(nil)
	w.Remove(Pods, Name{"shop", "a"})
	w.flushed()
	w.has(someApp, "")
}

// The bugs of istio that have to do with endpoints of services.

func TestLabelsThatChangeLeaveTheOldServicesInOneFlush_istio25678(t *testing.T) {
	w := filled(t)
	w.workload("shop/vm", `"app":"x"`, `"address":"192.0.2.1"`)
	w.flushed(dbHTTP, "outbound|80||other.shop.svc.cluster.local", someApp, "workloads|shop|app=x|http|7000")
	w.has(dbHTTP, "10.0.0.1:8080 eu/eu-1 acc")
	w.has("outbound|80||other.shop.svc.cluster.local", "10.0.0.2:8080 eu/eu-1, 192.0.2.1:80")
	w.has(someApp, "10.0.0.1:7000 eu/eu-1 acc")
	w.has("workloads|shop|app=x|http|7000", "192.0.2.1:7000")
}

func TestAnAddressThatChangesTakesTheOldOneAway_istio26178_istio27935(t *testing.T) {
	w := filled(t)
	w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.2"`)
	w.slice("shop/db-1", "db", target("a", "10.0.0.3"))
	w.pod("shop/a", "10.0.0.3", `"app":"db"`)
	w.flushed(dbHTTP, someApp)
	w.has(dbHTTP, "10.0.0.3:8080 eu/eu-1 acc, 192.0.2.2:80")
	w.has(someApp, "10.0.0.3:7000 eu/eu-1 acc, 192.0.2.2:7000")
}

func TestAPortThatChangesIsSeen_istio52963_istio50746_istio51026(t *testing.T) {
	w := filled(t)
	w.set(Slices, "shop/db-1", `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"http","port":8081}]}`)
	w.flushed(dbHTTP)
	w.has(dbHTTP, "10.0.0.1:8081, 192.0.2.1:80")
}

func TestPortsStayWhenAnotherEndpointGoes_istio25309(t *testing.T) {
	w := filled(t)
	w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.1","ports":{"http":1}`)
	w.workload("shop/vm2", `"app":"db"`, `"address":"192.0.2.2","ports":{"http":2}`)
	w.Remove(Workloads, Name{"shop", "vm2"})
	w.has(dbHTTP, "10.0.0.1:8080 eu/eu-1 acc, 192.0.2.1:80")
	w.has(someApp, "10.0.0.1:7000 eu/eu-1 acc, 192.0.2.1:1")
}

func TestAServicePortThatIsRenamedLosesItsEndpointsUntilTheSliceHasTheName_istio38785(t *testing.T) {
	w := filled(t)
	w.service("shop/db", strings.Replace(dbSpec, `"http"`, `"web"`, 1))
	w.flushed(dbHTTP, "shop/synthetic-db")
	w.has(dbHTTP, "192.0.2.1:80")
	w.set(Slices, "shop/db-1", `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"name":"web","port":8080}]}`)
	w.flushed(dbHTTP)
	w.has(dbHTTP, "10.0.0.1:8080, 192.0.2.1:80")
}

func TestAWorkloadEntryThatComesFirstHasTheRightPort_istio38642(t *testing.T) {
	w := newWorld(t, Options{})
	w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.1"`)
	w.flushed()
	w.service("shop/db", strings.Replace(dbSpec, "80", `80,"targetPort":8080`, 1))
	w.flushed(dbHTTP, "shop/synthetic-db")
	w.has(dbHTTP, "192.0.2.1:8080")
}

func TestAServiceThatBecomesHeadlessLosesItsWorkloadEntries_istio18355(t *testing.T) {
	w := filled(t)
	w.service("shop/db", strings.Replace(dbSpec, "10.96.0.1", "None", 1))
	w.flushed(dbHTTP, "shop/synthetic-db")
	w.has(dbHTTP, "10.0.0.1:8080 eu/eu-1 acc")
}

func TestAPodThatComesAfterItsSliceIsSeen_istio61157(t *testing.T) {
	w := filled(t)
	w.has("outbound|80||other.shop.svc.cluster.local", "10.0.0.2:8080 eu/eu-1")
	w.pod("shop/b", "10.0.0.2", `"app":"other"`)
	w.flushed("outbound|80||other.shop.svc.cluster.local")
	w.has("outbound|80||other.shop.svc.cluster.local", "10.0.0.2:8080 eu/eu-1 acc")
}

func TestServicesOfOneNameInTwoNamespacesAreTwo_istio55879_istio56826_istio13008(t *testing.T) {
	w := filled(t)
	w.service("bank/db", dbSpec)
	w.set(Slices, "bank/db-1", `{"metadata":{"labels":{"kubernetes.io/service-name":"db"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.9"]}],"ports":[{"name":"http","port":1}]}`)
	w.has("outbound|80||db.bank.svc.cluster.local", "10.0.0.9:1")
	w.has(dbHTTP, "10.0.0.1:8080 eu/eu-1 acc, 192.0.2.1:80")
}
