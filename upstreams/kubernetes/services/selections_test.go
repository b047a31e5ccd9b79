package services

import (
	"fmt"
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
	if full != usualSelections+1 || n > usualSelections*moreSelections+moreSelections || len(w.Problems()) != 1 || !strings.Contains(w.Problems()[0], "3 ports of ServiceEntries have no endpoints") {
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
	if len(w.Problems()) > 0 {
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
