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
	if full != usualSelections+1 || n > usualSelections*moreSelections+moreSelections || len(w.Problems()) != 2 || !strings.Contains(w.Problems()[0], "1000 ports of ServiceEntries have no endpoints: more than") || !strings.Contains(w.Problems()[1], "3 ports of ServiceEntries have no endpoints: all of") {
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
	if found, _ := w.Endpoints(mine); len(found) != 1 || len(w.reads.refused) != 3 {
		t.Errorf("%d endpoints, %d refused", len(found), len(w.reads.refused))
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
