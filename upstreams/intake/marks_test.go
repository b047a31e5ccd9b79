package intake

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

var testSeed = maphash.MakeSeed()

// answer is a complete update of a scope, with marks. looked counts the elements that were looked at.
func answer(t *testing.T, looked *int, url string, elements ...records.Element) Received {
	t.Helper()
	scope, err := records.TypeScope(url)
	if err != nil {
		t.Fatal(err)
	}
	for i := range elements {
		elements[i].Mark = maphash.Bytes(testSeed, elements[i].Raw)
	}
	u := records.Update{Scope: scope, Complete: true, Room: len(elements)}
	u.Marks = func(yield func(uint64, int) bool) {
		for _, el := range elements {
			if !yield(el.Mark, len(el.Raw)) {
				return
			}
		}
	}
	u.Elements = func(_ int, known records.Known) iter.Seq[records.Element] {
		return func(yield func(records.Element) bool) {
			for _, el := range elements {
				if known != nil && el.Mark != 0 && known(el.Mark, len(el.Raw)) {
					continue
				}
				if *looked++; !yield(el) {
					return
				}
			}
		}
	}
	return Received{Updates: []records.Update{u}}
}

func (m *machine) open(urls ...string) {
	m.t.Helper()
	var scopes []records.Scope
	for _, url := range urls {
		scope, err := records.TypeScope(url)
		if err != nil {
			m.t.Fatal(err)
		}
		scopes = append(scopes, scope)
	}
	m.step(Opened{Scopes: scopes})
}

func TestOfAnAnswerInAnyOrder_OnlyWhatDiffersIsLookedAt(t *testing.T) {
	const n = 2000
	m := newMachine(t, true, config.Provenance{})
	m.open(entryURL)
	looked := 0
	var all []records.Element
	for i := range n {
		all = append(all, records.Element{Raw: raw(t, entry(fmt.Sprintf("shop/e-%d", i), "one.example"))})
	}
	m.step(answer(t, &looked, entryURL, all...))
	again := slices.Clone(all)
	again[7] = records.Element{Raw: raw(t, entry("shop/e-7", "two.example"))}
	again = slices.Delete(again, 8, 10)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	looked = 0
	out := m.step(answer(t, &looked, entryURL, again...))
	if err := out.Err(); err != nil || out.Changed != 1 || out.Gone != 2 || out.Deleted != 2 {
		t.Errorf("changed %d, gone %d, deleted %d, refused: %v", out.Changed, out.Gone, out.Deleted, err)
	}
	if most := 2 * 4 * 3 * 8; looked > most { // twice, four groups of up to thrice the mean
		t.Errorf("%d elements were looked at, %d are the most", looked, most)
	}
	looked = 0
	allocs := testing.AllocsPerRun(5, func() { m.step(answer(t, &looked, entryURL, again...)) })
	if allocs > 20 || looked > 0 {
		t.Errorf("%v allocations, and %d looked at, for %d elements that are as they were", allocs, looked, len(again))
	}
}

// With the same bytes under one name twice, one name with two contents, and what can not be read, the
// order of an answer matters.
func TestMarksChangeNothing(t *testing.T) {
	looked, all := 0, 0
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 3))
		marked, plain := newMachine(t, true, config.Provenance{}), newMachine(t, true, config.Provenance{})
		both := func(e, without Event) {
			t.Helper()
			a, b := marked.step(e), plain.step(without)
			if !reflect.DeepEqual(a.Result, b.Result) {
				t.Fatalf("seed %d: %+v with marks, %+v without", seed, a.Result, b.Result)
			}
			if a, b := hostsOf(marked.store), hostsOf(plain.store); !maps.Equal(a, b) {
				t.Fatalf("seed %d: %v with marks, %v without", seed, a, b)
			}
			if marked.records.Size() != plain.records.Size() {
				t.Fatalf("seed %d: it accounts for other sizes", seed)
			}
			checkRecords(t, marked.Intake, plain.Intake)
		}
		hosts := make([]int, 60)
		for i := range hosts {
			hosts[i] = random.IntN(4)
		}
		element := func(i, host int) records.Element {
			return records.Element{Raw: raw(t, entry(fmt.Sprintf("shop/e-%d", i), fmt.Sprintf("h-%d.example", host)))}
		}
		for range 40 {
			switch random.IntN(20) {
			case 0:
				marked.open(entryURL)
				plain.open(entryURL)
				continue
			case 1:
				u := config.Upstream{Guard: config.Guard{Percent: 100}}
				u.Limits.MaxResources = random.IntN(3) * 30
				u.Limits.MaxResourceBytes = random.IntN(2) * 120
				u.Limits.MaxBytes = random.IntN(2) * 12_000
				both(SetPolicy{u}, SetPolicy{u})
				continue
			case 2, 3, 4:
				u := config.Upstream{Guard: config.Guard{Percent: 100}}
				both(SetPolicy{u}, SetPolicy{u})
				continue
			}
			for range random.IntN(3) {
				hosts[random.IntN(len(hosts))] = random.IntN(4) // 0: it is gone
			}
			var elements []records.Element
			for i, host := range hosts {
				if host > 0 {
					elements = append(elements, element(i, host))
				}
			}
			switch random.IntN(12) {
			case 0:
				elements = append(elements, element(random.IntN(len(hosts)), random.IntN(4)))
			case 1:
				elements = append(elements, records.Element{Raw: raw(t, entry("no-namespace", "h.example"))})
			case 2:
				elements = append(elements, records.Element{Raw: raw(t, entry("shop/synthetic-"+fmt.Sprint(random.IntN(2)), "h.example"))})
			case 3:
				cut := element(random.IntN(len(hosts)), 1)
				elements = append(elements, records.Element{Raw: cut.Raw[:len(cut.Raw)-1]})
			case 4:
				elements = elements[:random.IntN(len(elements)+1)]
			}
			random.Shuffle(len(elements), func(i, j int) { elements[i], elements[j] = elements[j], elements[i] })
			all += len(elements)
			with, without := answer(t, &looked, entryURL, elements...), answer(t, new(int), entryURL, elements...)
			without.Updates[0].Marks = nil
			complete, believe := random.IntN(20) > 0, random.IntN(20) == 0
			with.Updates[0].Complete, without.Updates[0].Complete, with.Believe, without.Believe = complete, complete, believe, believe
			both(with, without)
		}
	}
	if looked > all*9/10 { // some elements twice
		t.Errorf("%d of %d elements were looked at", looked, all)
	}
}

func hostsOf(s *mirror.Store) map[string]string {
	out := map[string]string{}
	for _, r := range s.List(federation.ServiceEntry, "") {
		out[r.FullName()] = string(r.DeltaEntry())
	}
	return out
}

func checkRecords(t *testing.T, a, b *Intake) {
	t.Helper()
	x, y := sorted(a.records.Kept()), sorted(b.records.Kept())
	if !slices.EqualFunc(x, y, func(r, o state.Record) bool {
		return r.Resource.Key() == o.Resource.Key() && r.TypeURL == o.TypeURL && r.Version == o.Version && r.Hash == o.Hash && r.At.Equal(o.At)
	}) {
		t.Fatalf("%+v with marks, %+v without", x, y)
	}
}

func sorted(all []state.Record) []state.Record {
	return slices.SortedFunc(slices.Values(all), func(a, b state.Record) int {
		return cmp.Or(cmp.Compare(a.TypeURL, b.TypeURL), mirror.CompareKeys(a.Resource.Key(), b.Resource.Key()))
	})
}

// C1: a server may tell the same under each version.
func TestTheSameUnderTwoVersions_IsHeldOnce(t *testing.T) {
	const beta = "networking.istio.io/v1beta1/ServiceEntry"
	m := newMachine(t, true, config.Provenance{})
	m.open(entryURL, beta)
	element := func(name, host string) records.Element { return records.Element{Raw: raw(t, entry(name, host))} }
	looked := 0
	for _, url := range []string{entryURL, beta} {
		m.step(answer(t, &looked, url, element("shop/a", "one.example"), element("shop/b", cmp.Or(map[string]string{beta: "older.example"}[url], "one.example"))))
	}
	all := sorted(m.records.Kept())
	if len(all) != 4 || all[0].Resource != all[2].Resource {
		t.Errorf("the same bytes are held twice: %v", all)
	}
	if all[1].Resource == all[3].Resource {
		t.Error("other bytes are not held by themselves")
	}
	m.holds("shop/a=one.example", "shop/b=one.example")
	m.step(answer(t, &looked, entryURL))
	m.step(EndGraces{})
	m.holds("shop/a=one.example", "shop/b=older.example")
}
