package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The ServiceEntries and the workloads of a cluster are lists that others write: their product is bounded.
func TestSelectionsAreBounded_K17(t *testing.T) {
	w, every := newWorld(t, Options{}), map[string]struct{}{}
	for i := range 2 * maxAlike {
		every[fmt.Sprintf("workloads|shop|app=db,n=%d|http|80", i)] = struct{}{}
	}
	const all = "workloads|shop||http|%d"
	for i := range 20 {
		every[fmt.Sprintf(all, i+1)] = struct{}{}
	}
	w.Want(every)
	if n := len(w.reads.byCluster); n != maxAlike+20 {
		t.Errorf("%d selections are known", n)
	}
	for i := range moreSelections {
		w.workload(fmt.Sprint("shop/vm-", i), `"app":"db"`, fmt.Sprintf(`"address":"10.0.%d.%d"`, i/250, i%250+1))
	}
	full, n := 0, 0
	for i := range 20 {
		if found, known := w.Endpoints(fmt.Sprintf(all, i+1)); !known {
			t.Error("a selection is unknown")
		} else if n += len(found); len(found) > 0 {
			full++
		}
	}
	if full != usualSelections+1 || n > usualSelections*moreSelections+moreSelections || len(w.Problems()) != 2 || !strings.Contains(w.Problems()[0], "1000 ports of ServiceEntries have no endpoints: more than") || !strings.Contains(w.Problems()[1], "3 ports have none of the workloads that they select") {
		t.Errorf("%d of 20 have endpoints, %d in all: %q", full, n, w.Problems())
	}
	// What others give up is free for them.
	for i := range 10 {
		delete(every, fmt.Sprintf(all, i+1))
	}
	w.Want(every)
	for i := range 10 {
		if found, _ := w.Endpoints(fmt.Sprintf(all, i+11)); len(found) != moreSelections {
			t.Errorf("%d endpoints", len(found))
		}
	}
	if len(w.Problems()) != 1 {
		t.Errorf("problems: %q", w.Problems())
	}
}

// A Node changes what is on it, and nothing else: Nodes come and go with the load.
func TestANodeChangesWhatIsOnIt_K15(t *testing.T) {
	w := filled(t)
	for in := range inputs {
		w.Synced(in)
	}
	w.Flush()
	w.node("n2", "eu", "eu-2")
	if _, clusters := w.Flush(); len(clusters) > 0 {
		t.Errorf("a Node without pods changes %q", clusters)
	}
	w.node("n1", "eu", "eu-3")
	if _, clusters := w.Flush(); strings.Join(clusters, " ") != dbHTTP+" outbound|80||other.shop.svc.cluster.local "+someApp {
		t.Errorf("a Node changes %q", clusters)
	}
}

// What one namespace selects takes no room of another one, and what is given up in a namespace is tried again.
func TestSelectionsOfANamespaceTakeNothingOfOthers_K17(t *testing.T) {
	w, every := newWorld(t, Options{}), map[string]struct{}{}
	const theirs, mine = "workloads|shop||http|%d", "workloads|bank||http|80"
	for i := range 20 {
		every[fmt.Sprintf(theirs, i+1)] = struct{}{}
	}
	every[mine] = struct{}{}
	for i := range moreSelections {
		w.workload(fmt.Sprint("shop/vm-", i), `"app":"db"`, fmt.Sprintf(`"address":"10.0.%d.%d"`, i/250, i%250+1))
	}
	w.workload("bank/vm", `"app":"db"`, `"address":"10.1.0.1"`)
	w.Want(every)
	for i := range 20 {
		w.Endpoints(fmt.Sprintf(theirs, i+1))
	}
	if found, _ := w.Endpoints(mine); len(found) != 1 || w.quota.refused() != 3 {
		t.Errorf("%d endpoints, %d refused", len(found), w.quota.refused())
	}
	last := fmt.Sprintf(theirs, 20)
	for name, free := range map[string]func(){
		"a selection goes": func() { delete(every, fmt.Sprintf(theirs, 1)); w.Want(every) },
		"a selection has fewer": func() {
			w.Remove(Workloads, Name{"shop", "vm-0"})
			w.Flush()
			w.Endpoints(fmt.Sprintf(theirs, 2))
		},
	} {
		w.Flush()
		if free(); !slices.Contains(second(w.Flush()), last) {
			t.Errorf("%s: what had no room is not tried again", name)
		}
	}
}

func second[A, B any](_ A, b B) B { return b }

// The Services and the WorkloadEntries of a namespace are lists that others write as well.
func TestWorkloadEntriesOfServicesAreBounded_K17(t *testing.T) {
	w := newWorld(t, Options{})
	const services, entries = 40, 500
	for i := range entries {
		w.workload(fmt.Sprint("shop/vm-", i), `"app":"db"`, fmt.Sprintf(`"address":"10.0.%d.%d"`, i/250, i%250+1))
	}
	every := map[string]struct{}{}
	for i := range services {
		w.service(fmt.Sprint("shop/s", i), dbSpec)
		every[fmt.Sprintf("outbound|80||s%d.shop.svc.cluster.local", i)] = struct{}{}
	}
	w.Want(every)
	n := 0
	for cluster := range every {
		found, _ := w.Endpoints(cluster)
		n += len(found)
	}
	if n != usualSelections*entries+moreSelections || len(w.Problems()) != 1 || !strings.HasPrefix(w.Problems()[0], "22 ports have none of the workloads") {
		t.Errorf("%d endpoints, problems %q", n, w.Problems())
	}
	// A slice of a Service without room is served all the same.
	w.slice("shop/s39-1", "s39", target("a", "10.1.0.1"))
	w.service("shop/s39", strings.Replace(dbSpec, `"db"`, `"none"`, 1))
	w.has("outbound|80||s39.shop.svc.cluster.local", "10.1.0.1:8080")

	// Too many that begin alike select none, and the last one that is too many lets all select again.
	w = newWorld(t, Options{})
	w.workload("shop/vm", `"app":"db"`, `"address":"192.0.2.1"`)
	for i := range maxAlike + 1 {
		w.service(fmt.Sprint("shop/s", i), dbSpec)
	}
	w.Flush()
	w.has("outbound|80||s0.shop.svc.cluster.local", "")
	if all := w.Problems(); len(all) != 1 || !strings.HasPrefix(all[0], "1001 Services select no WorkloadEntries") {
		t.Errorf("problems %q", all)
	}
	w.Remove(Services, Name{"shop", "s1000"})
	if clusters := second(w.Flush()); len(clusters) != maxAlike+1 {
		t.Errorf("%d clusters have changed", len(clusters))
	}
	w.has("outbound|80||s0.shop.svc.cluster.local", "192.0.2.1:80")
	w.service("shop/s1000", dbSpec)
	if clusters := second(w.Flush()); len(clusters) != maxAlike+1 {
		t.Errorf("%d clusters have changed", len(clusters))
	}
}

// A workload is looked up by its labels: what has others costs nothing, however much there is.
func TestWorkloadsAreLookedUpByTheirLabels_K17(t *testing.T) {
	w, every := newWorld(t, Options{}), map[string]struct{}{}
	for i := range 2000 {
		w.service(fmt.Sprint("shop/s", i), strings.Replace(dbSpec, `"db"`, fmt.Sprintf(`"x%d"`, i), 1))
		every[fmt.Sprintf("workloads|shop|app=x%d|http|80", i)] = struct{}{}
		w.pod(fmt.Sprint("shop/p", i), "10.0.0.1", fmt.Sprintf(`"app":"x%d"`, i))
	}
	w.Want(every)
	sp := w.spaces["shop"]
	selecting, candidates := 0, 0
	one := get[workload](w.State, Pods, Name{"shop", "p7"})
	sp.index.selecting(one, func(string, *service) { selecting++ })
	for label := range one.lines() {
		selecting += len(sp.index.services[label])
		candidates += len(w.reads.alike[[2]string{"shop", label}])
	}
	if n := len(sp.index.pods["app=x7\n"]); n != 1 || selecting > 2 || candidates != 1 {
		t.Errorf("%d pods, %d Services, %d selections are looked at", n, selecting, candidates)
	}
	if w.Want(nil); len(sp.index.pods) != 0 || len(w.quota.taken) != 0 {
		t.Errorf("%d labels are kept for nobody", len(sp.index.pods))
	}
}
