package intake

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
)

func rawOf(t *testing.T, r fakexds.Resource) []byte {
	t.Helper()
	raw, err := proto.Marshal(r.Any)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// answer is a complete update of a scope.
func answer(t *testing.T, url string, elements ...Element) Received {
	t.Helper()
	scope, err := TypeScope(url)
	if err != nil {
		t.Fatal(err)
	}
	return Received{Updates: []Update{{Scope: scope, Complete: true, Room: len(elements), Elements: each(func(yield func(Element) bool) {
		for _, el := range elements {
			if !yield(el) {
				return
			}
		}
	})}}}
}

func (m *machine) open(urls ...string) {
	m.t.Helper()
	var scopes []Scope
	for _, url := range urls {
		scope, err := TypeScope(url)
		if err != nil {
			m.t.Fatal(err)
		}
		scopes = append(scopes, scope)
	}
	m.step(Opened{Scopes: scopes})
}

// An unparsable Head tells whether an element was parsed: it is refused then.
func TestAnElementThatIsAsItWas_IsNotParsed(t *testing.T) {
	const n = 100
	m := newMachine(t, true, config.Provenance{})
	m.open(entryURL)
	var all []Element
	for i := range n {
		all = append(all, Element{Raw: rawOf(t, entry(fmt.Sprintf("shop/e-%d", i), "one.example"))})
	}
	for range 2 { // the second answer marks what it has
		m.step(answer(t, entryURL, all...))
	}
	again := slices.Clone(all)
	for i := range again {
		again[i].Head = []byte{0xff}
	}
	again[7] = Element{Raw: rawOf(t, entry("shop/e-7", "two.example"))}
	again = slices.Delete(again, 8, 10)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
	out := m.step(answer(t, entryURL, again...))
	if err := out.Err(); err != nil || out.Changed != 1 || out.Gone != 2 || out.Deleted != 2 {
		t.Errorf("changed %d, gone %d, deleted %d, refused: %v", out.Changed, out.Gone, out.Deleted, err)
	}
	allocs := testing.AllocsPerRun(5, func() { m.step(answer(t, entryURL, again...)) })
	if allocs > 20 {
		t.Errorf("%v allocations for %d elements that are as they were", allocs, len(again))
	}
}

func TestAScopeThatIsToldOnce_KeepsNoMarks(t *testing.T) {
	m := newMachine(t, true, config.Provenance{})
	for range 3 { // streams to a relay: one complete answer, then what changes
		m.open(entryURL)
		m.step(Received{Updates: []Update{m.update(true, entry("shop/a", "one.example"), entry("shop/b", "one.example"))}})
		m.step(Received{Updates: []Update{m.update(false, entry("shop/a", "two.example"))}})
	}
	if n := m.scopes[entryURL].marked.n; n > 0 {
		t.Errorf("%d marks", n)
	}
}

// An intake with marks and one without make the same of any answers.
func TestMarksChangeNothing(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 3))
		marked, plain := newMachine(t, true, config.Provenance{}), newMachine(t, true, config.Provenance{})
		both := func(e Event) {
			t.Helper()
			if sc := plain.scopes[entryURL]; sc != nil {
				sc.repeats, sc.marked = false, marks{}
				for _, rec := range sc.byName {
					rec.mark = 0
				}
			}
			a, b := marked.step(e), plain.step(e)
			if !reflect.DeepEqual(a.Result, b.Result) {
				t.Fatalf("seed %d: %+v with marks, %+v without", seed, a.Result, b.Result)
			}
			if a, b := hostsOf(marked.store), hostsOf(plain.store); !maps.Equal(a, b) {
				t.Fatalf("seed %d: %v with marks, %v without", seed, a, b)
			}
			if marked.bytes != plain.bytes || marked.resources != plain.resources {
				t.Fatalf("seed %d: it accounts for other sizes", seed)
			}
			checkMarks(t, marked.Intake)
			checkRecords(t, marked.Intake, plain.Intake)
		}
		for range 30 {
			switch random.IntN(10) {
			case 0:
				marked.open(entryURL)
				plain.open(entryURL)
			case 1:
				u := config.Upstream{Guard: config.Guard{Percent: 100}}
				u.Limits.MaxResources = random.IntN(3) * 4
				u.Limits.MaxResourceBytes = random.IntN(2) * 120
				u.Limits.MaxBytes = random.IntN(2) * 1500
				both(SetPolicy{u})
			default:
				var elements []Element
				for range random.IntN(12) {
					el := Element{Version: []byte(fmt.Sprint(random.IntN(3))), Raw: rawOf(t, entry(fmt.Sprintf("shop/e-%d", random.IntN(8)), fmt.Sprintf("h-%d.example", random.IntN(2))))}
					switch random.IntN(20) {
					case 0:
						el.Raw = el.Raw[:len(el.Raw)-1]
					case 1:
						el.Raw = rawOf(t, entry("no-namespace", "h.example"))
					case 2:
						el.Raw = rawOf(t, entry("shop/synthetic-"+fmt.Sprint(random.IntN(2)), "h.example"))
					}
					elements = append(elements, el)
				}
				e := answer(t, entryURL, elements...)
				e.Updates[0].Complete = random.IntN(6) > 0
				e.Believe = random.IntN(8) == 0
				both(e)
			}
		}
	}
}

// Marks with many common slots stand for what happens in large tables.
func TestMarksFindWhatWasAddedLast(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 5))
	var m marks
	held := map[uint64]*record{}
	for range 20_000 {
		mark := 1 + random.Uint64N(256)<<random.IntN(3)
		if rec := held[mark]; rec != nil {
			m.remove(rec)
			delete(held, mark)
		} else {
			held[mark] = &record{mark: mark}
			m.add(held[mark], 0)
		}
		for i := range uint64(40) {
			if mark := 1 + i*13; m.find(mark) != held[mark] {
				t.Fatalf("mark %d of %d is not found, or is none", mark, len(held))
			}
		}
	}
}

func hostsOf(s *mirror.Store) map[string]string {
	out := map[string]string{}
	for _, r := range s.List(serviceEntryKind, "") {
		out[r.FullName()] = string(r.DeltaEntry())
	}
	return out
}

func checkRecords(t *testing.T, a, b *Intake) {
	t.Helper()
	for url, sc := range a.scopes {
		for name, rec := range sc.byName {
			other := b.scopes[url].byName[name]
			if rec.version != other.version || rec.relayed != other.relayed || rec.hash != other.hash || rec.at != other.at {
				t.Fatalf("%s: %+v with marks, %+v without", name, rec, other)
			}
		}
	}
}

// checkMarks demands that each mark is that of a record that is held and was accepted.
func checkMarks(t *testing.T, in *Intake) {
	t.Helper()
	for _, sc := range in.scopes {
		held := map[*record]bool{}
		for name, rec := range sc.byName {
			held[rec] = true
			if rec.mark != 0 && (!rec.accepted() || sc.marked.find(rec.mark) != rec) {
				t.Fatalf("the mark of %s is not that of an accepted element", name)
			}
		}
		n := 0
		for _, rec := range sc.marked.slots {
			if rec == nil {
				continue
			}
			if n++; !held[rec] || rec.mark == 0 {
				t.Fatalf("mark %x is of no record", rec.mark)
			}
		}
		if n != sc.marked.n || n*3 > len(sc.marked.slots)*2 {
			t.Fatalf("%d marks in %d slots, counted as %d", n, len(sc.marked.slots), sc.marked.n)
		}
	}
}

// C1: a server may tell the same under each version.
func TestTheSameUnderTwoVersions_IsHeldOnce(t *testing.T) {
	const beta = "networking.istio.io/v1beta1/ServiceEntry"
	m := newMachine(t, true, config.Provenance{})
	m.open(entryURL, beta)
	element := func(name, host string) Element { return Element{Raw: rawOf(t, entry(name, host))} }
	for _, url := range []string{entryURL, beta} {
		m.step(answer(t, url, element("shop/a", "one.example"), element("shop/b", cmp.Or(map[string]string{beta: "older.example"}[url], "one.example"))))
	}
	v1, v1beta1 := m.scopes[entryURL].byName, m.scopes[beta].byName
	if v1["shop/a"].resource != v1beta1["shop/a"].resource {
		t.Error("the same bytes are held twice")
	}
	if v1["shop/b"].resource == v1beta1["shop/b"].resource {
		t.Error("other bytes are not held by themselves")
	}
	m.holds("shop/a=one.example", "shop/b=one.example")
	m.step(answer(t, entryURL))
	m.step(EndGraces{})
	m.holds("shop/a=one.example", "shop/b=older.example")
}
