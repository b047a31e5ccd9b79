package mirror

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fleet is an Aggregate over stores with resources of their own.
type fleet struct {
	*Aggregate
	sources   []Source
	resources [][]*Resource // by source
}

func newFleet(tb testing.TB, stores, resources int) *fleet {
	f := &fleet{Aggregate: NewAggregate()}
	for s := range stores {
		name := fmt.Sprint("cluster-", s)
		f.sources = append(f.sources, Source{name, NewStore()})
		var own []*Resource
		for i := s; i < resources; i += stores {
			own = append(own, entry(tb, name, fmt.Sprint("e", i), "e.example"))
		}
		f.resources = append(f.resources, own)
	}
	f.SetSources(f.sources)
	return f
}

// putAll puts every resource into its store.
func (f *fleet) putAll() {
	for i, s := range f.sources {
		for _, r := range f.resources[i] {
			s.Store.Put(r)
		}
	}
}

// merge handles the queue, and returns the number of keys.
func (f *fleet) merge() (n int) {
	batch := make([]change, 0, batchLen)
	for {
		if batch = f.next(batch[:0]); len(batch) == 0 {
			return n
		}
		f.deliver(batch)
		n += len(batch)
	}
}

// looks returns how often f makes the Aggregate look into a store.
func (f *fleet) looks(do func()) (n int) {
	f.holders.looked = func() { n++ }
	defer func() { f.holders.looked = nil }()
	do()
	return n
}

// TestMergingLooksIntoTheHoldersOfAKeyOnly: the number of other stores has no effect.
func TestMergingLooksIntoTheHoldersOfAKeyOnly(t *testing.T) {
	const keys = 300
	nothing := func(*Resource) bool { return false }
	for _, stores := range []int{3, 100} {
		f := newFleet(t, stores, keys)
		first, second := f.sources[0].Store, f.sources[1].Store
		own := f.resources[0][0]
		shared := entry(t, "cluster-1", own.Key().Name, "shared.example")
		update := entry(t, "cluster-0", own.Key().Name, "other.example")
		for _, step := range []struct {
			name string
			do   func()
			keys int // that are merged
			most int // looks
		}{
			{"start", f.putAll, keys, 2 * keys},
			{"a policy that may merge keys", func() { f.SetPolicies(nil, brittle{}) }, keys, 3 * keys},
			{"the first policy again", func() { f.SetPolicies(nil, nil) }, keys, 2 * keys},
			{"another order", func() {
				slices.Reverse(f.sources)
				f.SetSources(f.sources)
				slices.Reverse(f.sources)
				f.SetSources(f.sources)
			}, keys, 2 * keys},
			{"a source less", func() { f.SetSources(f.sources[1:]) }, keys, 2 * keys},
			{"a source more", func() { f.SetSources(f.sources) }, keys, 2 * keys},
			{"a change", func() { first.Put(update) }, 1, 2},
			{"a second copy", func() { second.Put(shared) }, 1, 4},
			{"a change of one of two", func() { first.Put(own) }, 1, 4},
			{"a view", func() { f.Select(own.Key(), "", everything) }, 0, 2},
			{"a view that shows nothing", func() { f.Select(own.Key(), "", nothing) }, 0, 2},
			{"a look at a conflict", func() { f.Resolve(own.Key()) }, 0, 2},
			{"the end of a copy", func() { second.Remove(own.Key()) }, 1, 3},
			{"the end of a key", func() { first.Remove(own.Key()) }, 1, 2},
		} {
			merged := 0
			if n := f.looks(func() { step.do(); merged = f.merge() }); n > step.most || merged != step.keys {
				t.Errorf("%s, %d stores: %d looks for %d keys, want %d and %d", step.name, stores, n, merged, step.most, step.keys)
			}
		}
		for k := range f.holders.entries {
			t.Errorf("%d stores: %s has an entry, although it has one holder", stores, k.key())
		}
	}
}

// TestViewSeesAReplacedStoreAtOnce: a view must not lose a resource while its key waits for the merge
// after a reload.
func TestViewSeesAReplacedStoreAtOnce(t *testing.T) {
	f := newFleet(t, 2, 2)
	f.putAll()
	east, west := f.resources[0][0], entry(t, "cluster-1", f.resources[0][0].Key().Name, "w.example")
	f.sources[1].Store.Put(west)
	f.merge()
	only := func(source string) *Resource {
		return f.Select(east.Key(), "", func(r *Resource) bool { return r.Source() == source })
	}
	again := NewStore()
	again.Put(east)
	f.SetSources([]Source{f.sources[1], {"cluster-0", again}})
	for _, when := range []string{"before", "after"} {
		if !only("cluster-0").Equal(east) || !only("cluster-1").Equal(west) {
			t.Errorf("%s the merge: %v, %v", when, only("cluster-0"), only("cluster-1"))
		}
		f.merge()
	}
	if got := f.Get(east.Key()); !got.Equal(west) {
		t.Errorf("served: %v", got)
	}
}

// refuse is a Policy that serves nothing where there are several copies.
type refuse struct{}

func (refuse) Merge(copies []Copy) Decision {
	if len(copies) > 1 {
		return Decision{Winner: -1}
	}
	return Decision{Served: copies[0].Resource}
}

// TestHoldersAreTheStoresWithACopy: once the queue is empty, and with an entry only where what is
// served does not tell the holder, or the Policy has panicked.
func TestHoldersAreTheStoresWithACopy(t *testing.T) {
	names := []string{"a", "b", "bad"}
	rapid.Check(t, func(rt *rapid.T) {
		f := newFleet(t, 4, 0)
		current := f.sources
		draw := func(n int, what string) int { return rapid.IntRange(0, n-1).Draw(rt, what) }
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				s := f.sources[draw(4, "source")]
				s.Store.Put(entry(t, s.Name, names[draw(3, "name")], fmt.Sprint(draw(2, "host"))))
			},
			"remove": func(*rapid.T) {
				f.sources[draw(4, "source")].Store.Remove(Key{serviceEntries, "shop", names[draw(3, "name")]})
			},
			"merge one": func(*rapid.T) { f.deliver(f.next(make([]change, 0, 1))) },
			"policy": func(*rapid.T) {
				f.SetPolicies(nil, []Policy{nil, refuse{}, brittle{sameGroup: true}, brittle{}}[draw(4, "policy")])
			},
			"sources": func(*rapid.T) {
				current = rapid.Permutation(f.sources).Draw(rt, "order")[:1+draw(4, "how many")]
				f.SetSources(current)
			},
			"replace": func(*rapid.T) {
				n := draw(4, "source")
				f.sources[n].Store = NewStore()
				for i, s := range current {
					if s.Name == f.sources[n].Name {
						current = slices.Clone(current)
						current[i] = f.sources[n]
					}
				}
				f.SetSources(current)
			},
			"": func(*rapid.T) {
				if draw(3, "merge all") > 0 {
					return
				}
				f.merge()
				for _, name := range names {
					k := refOf(Key{serviceEntries, "shop", name})
					var want []int32
					for p, s := range current {
						if s.Store.named(k) != nil {
							want = append(want, int32(p))
						}
					}
					served := f.index.get(k)
					if got := f.holders.of(k, served); !slices.Equal(got, want) {
						rt.Fatalf("%s has the holders %v, want %v", name, got, want)
					}
					if places, ok := f.holders.several[k.kind][k.name]; ok && name != "bad" && slices.Equal(places, f.holders.sourceOf(served)) {
						rt.Fatalf("%s has an entry that is not needed: %v", name, places)
					}
				}
			},
		})
	})
}

// cpu returns the CPU time of the process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measured runs f, and reports its CPU time: other processes disturb it less than the clock.
func measured(b *testing.B, f func()) {
	before := cpu()
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64((cpu()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}

// BenchmarkManyStores compares few stores with many that have the same number of resources: a
// start, new policies, and a reload with one source less.
func BenchmarkManyStores(b *testing.B) {
	const resources = 100_000
	for _, stores := range []int{4, 250} {
		f := newFleet(b, stores, resources)
		b.Run(fmt.Sprint("start/", stores), func(b *testing.B) {
			measured(b, func() {
				f.Aggregate = NewAggregate()
				for i := range f.sources {
					f.sources[i].Store = NewStore()
				}
				f.SetSources(f.sources)
				f.putAll()
				if n := f.merge(); n != resources {
					b.Fatal(n)
				}
			})
		})
		b.Run(fmt.Sprint("policies/", stores), func(b *testing.B) {
			measured(b, func() {
				f.SetPolicies(nil, nil)
				f.merge()
			})
		})
		b.Run(fmt.Sprint("reload/", stores), func(b *testing.B) {
			measured(b, func() {
				f.SetSources(f.sources[1:])
				f.merge()
				f.SetSources(f.sources)
				f.merge()
			})
		})
	}
}
