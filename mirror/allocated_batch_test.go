package mirror

import "testing"

// TestAnEntryThatComesAmongQueuedOnesIsJudgedWithThem: an earlier upstream has its address by the end of the same batch.
func TestAnEntryThatComesAmongQueuedOnesIsJudgedWithThem(t *testing.T) {
	f := &fleet{Aggregate: NewAggregate()}
	for _, name := range []string{"east", "west", "north"} {
		f.sources = append(f.sources, Source{name, NewStore()})
	}
	f.SetSources(f.sources)
	put := func(place int, name string) Key {
		s := entry(t, f.sources[place].Name, name, name+".example").Spec()
		s.Annotations = map[string]string{AllocatedAnnotation: "240.240.0.1"}
		s.Body.Value = append(s.Body.Value, "\x12\x0b240.240.0.1"...)
		r, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		f.sources[place].Store.Put(r)
		return r.Key()
	}
	put(1, "there")
	f.merge()
	put(2, "queues-those-of-west")
	key := put(1, "joins-them")
	put(0, "takes-the-address")
	f.merge()
	served := f.Get(key)
	if free, err := served.WithoutAllocated(); err != nil || free != served {
		t.Errorf("it is served with an address that an earlier upstream has for another host: %v", err)
	}
}
