package services

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
)

// worldOf returns a world of a seed. Hosts, names, labels, addresses and accounts have a mark with the numbers of the
// namespaces that see them.
func worldOf(t testing.TB, seed uint64) (all []one) {
	r := rand.New(rand.NewPCG(seed, 1)) // a test
	namespaces := []string{"a", "b", "c", "istio-system"}
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	exportTo := func() []string {
		return [][]string{nil, {"*"}, {"."}, {"~"}, {"a"}, {"b", "."}, {"c", "a"}}[r.IntN(7)]
	}
	mark := func(namespace string, to []string) string {
		v := federation.VisibilityOf(to, namespace)
		out := "x"
		for i, n := range namespaces {
			if v.Public || strings.Contains(","+strings.Join(v.Namespaces, ",")+",", ","+n+",") {
				out += fmt.Sprint(i)
			}
		}
		return "seen" + out + "end"
	}
	if r.IntN(2) == 0 {
		all = append(all, one{body: &meshconfig.MeshConfig{RootNamespace: pick("istio-system", "c")}})
	}
	hosts := []string{"db.a.svc.cluster.local", "web.b.svc.cluster.local", "*.example", "x.example"}
	for i := range 12 {
		ns, to := pick(namespaces...), exportTo()
		m := mark(ns, to)
		body := &networking.ServiceEntry{Hosts: []string{pick(hosts...), m + ".example"}, ExportTo: to,
			Resolution: networking.ServiceEntry_Resolution(r.IntN(4)), Ports: []*networking.ServicePort{tcp(80, pick("http", "web"))}}
		if r.IntN(2) == 0 {
			body.Ports = append(body.Ports, tcp(81, "admin"))
		}
		if r.IntN(3) == 0 {
			body.WorkloadSelector = &networking.WorkloadSelector{Labels: labelsOf("app=" + pick("x", "y"))}
		}
		for n := range r.IntN(3) {
			body.Endpoints = append(body.Endpoints, &networking.WorkloadEntry{Address: pick(fmt.Sprintf("10.%d.0.%d", i, n), m+".address"), ServiceAccount: m + "account",
				Labels: labelsOf("v="+pick("1", "2"), "mark="+m), Locality: m + "/z"})
		}
		all = append(all, one{namespace: ns, name: pick("", "synthetic-") + fmt.Sprintf("%s-%d", m, i), age: r.IntN(3), upstream: pick("east", "west"), body: body})
	}
	for i := range 6 {
		all = append(all, one{namespace: pick(namespaces...), name: fmt.Sprint("w", i), age: r.IntN(3), labels: labelsOf("app=" + pick("x", "y")), body: &networking.WorkloadEntry{Address: fmt.Sprintf("10.9.0.%d", i)}})
		ns, to := pick(namespaces...), exportTo()
		m := mark(ns, to)
		all = append(all, one{namespace: ns, name: fmt.Sprintf("%s-r%d", m, i), age: r.IntN(3), body: &networking.DestinationRule{Host: pick(append(hosts, "*")...), ExportTo: to,
			Subsets: []*networking.Subset{{Name: m, Labels: labelsOf("v=" + pick("1", "2"))}}}})
		ns, to = pick(namespaces...), exportTo()
		m = mark(ns, to)
		all = append(all, one{namespace: ns, name: fmt.Sprintf("%s-v%d", m, i), age: r.IntN(3), body: &networking.VirtualService{Hosts: []string{pick(append(hosts, "*")...)}, ExportTo: to}})
	}
	return all
}

// answers returns all answers for a client, as text.
func answers(t testing.TB, in Input, as string) string {
	t.Helper()
	a, err := Find(in, Query{As: as})
	if err != nil {
		t.Fatal(err)
	}
	texts := []any{a}
	for _, h := range []string{"db.a.svc.cluster.local", "web.b.svc.cluster.local", "y.example", "x.example", "seen", "nothing.example"} {
		a, err := Find(in, Query{Host: h, As: as})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, a)
	}
	out, err := json.MarshalIndent(texts, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestTheOrderOfTheInputDoesNotMatter.
func TestTheOrderOfTheInputDoesNotMatter(t *testing.T) {
	for seed := range uint64(60) {
		all := worldOf(t, seed)
		want := map[string]string{}
		for round := range 3 {
			rand.New(rand.NewPCG(seed, uint64(round))).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) // a test
			for _, as := range []string{"", "a", "b", "istio-system"} {
				got := answers(t, input(t, all...), as)
				if round > 0 && got != want[as] {
					t.Fatalf("seed %d, as %q: another order has another answer:\n%s\n%s", seed, as, want[as], got)
				}
				want[as] = got
			}
		}
	}
}

// TestNothingThatExportToHidesIsInAnAnswer: no host, name, label, account or address, and not in the counts: without what is
// hidden, the answer is the same but for rules that hide others.
func TestNothingThatExportToHidesIsInAnAnswer(t *testing.T) {
	found := 0
	for seed := range uint64(200) {
		all := worldOf(t, seed)
		in := input(t, all...)
		for i, as := range []string{"a", "b", "c", "istio-system"} {
			got := answers(t, in, as)
			for rest := got; ; {
				_, after, ok := strings.Cut(rest, "seenx")
				if !ok {
					break
				}
				seers, more, _ := strings.Cut(after, "end")
				rest = more
				if found++; !strings.Contains(seers, fmt.Sprint(i)) {
					t.Fatalf("seed %d: %s sees what only %q may see:\n%s", seed, as, seers, got)
				}
			}
			var seen []one
			for _, o := range all {
				if body, ok := o.body.(*networking.ServiceEntry); ok && !federationSees(body.GetExportTo(), o.namespace, as) {
					continue
				}
				if body, ok := o.body.(*networking.VirtualService); ok && !federationSees(body.GetExportTo(), o.namespace, as) {
					continue
				}
				seen = append(seen, o)
			}
			if without := answers(t, input(t, seen...), as); without != got {
				t.Fatalf("seed %d: what is hidden from %s changes the answer:\n%s\n%s", seed, as, got, without)
			}
		}
	}
	if found < 1000 {
		t.Errorf("the test saw %d marks", found)
	}
}

func federationSees(to []string, namespace, as string) bool {
	v := federation.VisibilityOf(to, namespace)
	return v.Public || strings.Contains(","+strings.Join(v.Namespaces, ",")+",", ","+as+",")
}

// steps returns the steps of an answer that may take some.
func steps(t testing.TB, all []one, q Query, most int) (int, Answer) {
	t.Helper()
	w := newWorld(input(t, all...), q)
	w.budget = most
	a, err := w.answer()
	if err != nil {
		t.Fatal(err)
	}
	return most - w.budget, a
}

// at returns a STATIC ServiceEntry of another host.
func at(i int, change func(*networking.ServiceEntry), addresses ...string) one {
	return one{namespace: "shop", name: fmt.Sprint("e", i), body: se(func(s *networking.ServiceEntry) {
		if s.Hosts = []string{fmt.Sprintf("h%d.example", i)}; change != nil {
			change(s)
		}
	}, addresses...)}
}

// TestWorkIsNotTheProductOfTwoLists: of entries and the workloads that they select, and of the entries of one host.
func TestWorkIsNotTheProductOfTwoLists(t *testing.T) {
	const n = 1000
	var apart, crowd []one
	for i := range n {
		app := fmt.Sprint("app=", i)
		apart = append(apart, at(i, selecting(app, "all=yes")), one{namespace: "shop", name: fmt.Sprint("w", i), labels: labelsOf(app, "all=yes"), body: &networking.WorkloadEntry{Address: "10.0.0.1"}})
		crowd = append(crowd, one{namespace: fmt.Sprint("n", i), name: "db", upstream: fmt.Sprint("u", i), body: se(nil, "10.0.0.1")})
	}
	for name, tc := range map[string]struct {
		all []one
		q   Query
	}{"workloads": {apart, Query{}}, "all hosts": {crowd, Query{}}, "a host": {crowd, Query{Host: host}}} {
		if got, a := steps(t, tc.all, tc.q, maxSteps); got < n || got > 10*n || a.Partial {
			t.Errorf("%s: %d steps, partial: %v", name, got, a.Partial)
		}
	}
}

// TestABudgetBoundsWhatIndexesDoNot: entries that all select all workloads, and rules of all hosts. All hosts are listed, the answer
// is partial, and nothing is found in what is not counted.
func TestABudgetBoundsWhatIndexesDoNot(t *testing.T) {
	const n, most = 1000, 50_000
	var crowd, nobody, rules []one
	for i := range n {
		half := labelsOf([]string{"a=1", "b=1"}[i%2])
		nobody = append(nobody, at(i, selecting("a=1", "b=1")), one{namespace: "shop", name: fmt.Sprint("w", i), labels: half, body: &networking.WorkloadEntry{Address: "10.0.0.1"}})
		crowd = append(crowd, at(i, selecting("app=db")), one{namespace: "shop", name: fmt.Sprint("w", i), labels: labelsOf("app=db"), body: &networking.WorkloadEntry{Address: "10.0.0.1"}})
		rules = append(rules, at(i, nil, "10.0.0.1"), dr("istio-system", fmt.Sprint("r", i), "*", i, nil))
	}
	for name, all := range map[string][]one{"workloads": crowd, "labels that no workload has together": nobody, "rules": rules} {
		got, a := steps(t, all, Query{Limit: MaxLimit}, most)
		if !a.Partial || len(a.Services) != n || got > most+n {
			t.Errorf("%s: %d steps, %d services, partial %v", name, got, len(a.Services), a.Partial)
		}
		for _, s := range a.Services[n/2:] {
			if len(s.Findings) > 0 {
				t.Fatalf("%s: %+v", name, s)
			}
		}
	}
	crowd = append(crowd, one{namespace: "shop", name: "all", body: se(selecting("app=db"))})
	if s := find(t, input(t, crowd...), Query{Host: host}); s.All != n {
		t.Errorf("one host: %d endpoints", s.All)
	}
}
